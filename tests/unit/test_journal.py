"""The log in the journal: one record a line, its fields by name, and what is too long for a datagram."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefork_q.journal import JournalEvents, JournalSink, is_journal

Record = list[tuple[str, str]]


class Journal:
    """The other end of the journal's socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.open()

    def open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(5)

    def close(self) -> None:
        self._socket.close()
        os.unlink(self.path)

    def record(self) -> Record:
        """Return the next record, as its fields in order."""
        data, ancillary, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        for _, kind, content in ancillary:
            assert (kind, data) == (socket.SCM_RIGHTS, b"")
            (fd,) = array.array("i", content)
            with open(fd, "rb") as memory:
                memory.seek(0)
                data = memory.read()
        return decoded(data)


def decoded(data: bytes) -> Record:
    fields = []
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if equals:
            fields.append((name.decode(), value.decode()))
            data = rest
        else:
            (size,) = struct.unpack("<Q", rest[:8])
            fields.append((name.decode(), rest[8 : 8 + size].decode()))
            assert rest[8 + size : 9 + size] == b"\n"
            data = rest[9 + size :]
    return fields


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal")
    yield journal
    journal.close()


@pytest.fixture
def sink(journal: Journal) -> Iterator[JournalSink]:
    sink = JournalSink.connect(journal.path)
    yield sink
    sink.close()


@pytest.fixture
def events(sink: JournalSink) -> JournalEvents:
    return JournalEvents(sink, level="info", process={"worker": 3, "gen": 2, "pid": 4711})


def test_an_event_is_a_record_with_a_priority_and_its_fields(journal: Journal, events: JournalEvents) -> None:
    events.emit("commit_refused", level="warning", id="t1", type="thumb nail", attempt=2, cause=None)

    record = journal.record()
    assert record[0] == (
        "MESSAGE", 'commit_refused id=t1 type="thumb nail" attempt=2 worker=3 gen=2 pid=4711',
    )  # fmt: skip
    assert dict(record[1:]) == {
        "PRIORITY": "4",
        "PREFORKQ_EVENT": "commit_refused",
        "PREFORKQ_TASK_ID": "t1",
        "PREFORKQ_TYPE": "thumb nail",
        "PREFORKQ_ATTEMPT": "2",
        "SYSLOG_IDENTIFIER": "prefork-q",
        "PREFORKQ_WORKER": "3",
        "PREFORKQ_GEN": "2",
        "PREFORKQ_PID": "4711",
    }


def test_attempts_that_are_written_together_are_a_record_each(
    journal: Journal, events: JournalEvents
) -> None:
    done = events.attempt_line("t1", "thumb", "default", 1, "succeeded", 0.25)
    failed = events.attempt_line("t2", "thumb", "default", 3, "dead", 0.5, "ValueError", "two\nlines")
    events.lines([done, b"", failed])

    first, second = dict(journal.record()), dict(journal.record())
    assert first["MESSAGE"].startswith("finished id=t1 type=thumb queue=default attempt=1 outcome=succeeded")
    assert (first["PRIORITY"], first["PREFORKQ_TASK_ID"], first["PREFORKQ_DURATION_MS"]) == (
        "6",
        "t1",
        "250.000",
    )
    assert (second["PRIORITY"], second["PREFORKQ_TASK_ID"]) == ("3", "t2")
    assert (second["PREFORKQ_OUTCOME"], second["PREFORKQ_ERROR_TYPE"]) == ("dead", "ValueError")
    assert r'error_message="two\nlines"' in second["MESSAGE"]


def test_attempts_that_ended_alike_are_a_record_each(journal: Journal, events: JournalEvents) -> None:
    events.lines(events.attempt_lines("thumb", "default", 1, "succeeded", [(b"t1", 0.25), (b"t2", 0.5)]))

    records = [dict(journal.record()) for _ in range(2)]
    assert [(one["PREFORKQ_TASK_ID"], one["PREFORKQ_DURATION_MS"]) for one in records] == [
        ("t1", "250.000"), ("t2", "500.000"),
    ]  # fmt: skip


def test_a_value_of_several_lines_stays_one_value(journal: Journal, events: JournalEvents) -> None:
    trace = "Traceback\n  File x\nPREFORKQ_TASK_ID=forged\nValueError: redis://u:geheim@h/0"
    events.emit("failed", level="error", traceback=trace)

    record = journal.record()
    assert [name for name, _ in record].count("PREFORKQ_TASK_ID") == 0
    assert dict(record)["PREFORKQ_TRACEBACK"] == trace.replace("geheim", "***")
    assert "geheim" not in str(record)


def test_a_line_about_several_tasks_is_found_by_each(journal: Journal, events: JournalEvents) -> None:
    events.emit("tasks_left", level="error", ids=["a", "b"])

    assert [value for name, value in journal.record() if name == "PREFORKQ_TASK_ID"] == ["a", "b"]


def test_what_is_too_long_for_a_datagram_comes_as_a_memory_file(journal: Journal, sink: JournalSink) -> None:
    text = "x" * 20_000_000
    sink.write([b"MESSAGE=" + text.encode() + b"\n"])

    assert journal.record() == [("MESSAGE", text)]
    assert sink.dropped == 0


def test_a_restarted_journal_gets_the_next_record(journal: Journal, events: JournalEvents) -> None:
    events.emit("before")
    assert dict(journal.record())["PREFORKQ_EVENT"] == "before"
    journal.close()
    events.emit("lost")
    journal.open()
    events.emit("after")

    assert dict(journal.record())["PREFORKQ_EVENT"] == "after"
    assert dict(journal.record())["PREFORKQ_EVENT"] == "lines_dropped"


def test_a_journal_that_does_not_read_is_not_waited_for(journal: Journal, sink: JournalSink) -> None:
    sink.patience = 0.0
    for _ in range(10_000):
        sink.write([b"MESSAGE=x\n"])
        if sink.dropped:
            return
    pytest.fail("nothing was ever dropped")


def test_levels_that_are_off_make_no_record(events: JournalEvents) -> None:
    events.set_level("error")

    assert events.attempt_line("t", "a", "q", 1, "succeeded", 0.1) == b""
    assert events.attempt_lines("a", "q", 1, "succeeded", [(b"t", 0.1)]) == []


def test_the_fields_of_a_process_are_kept(journal: Journal, events: JournalEvents) -> None:
    events.with_process(role="keeper").emit("ready")

    assert {("PREFORKQ_ROLE", "keeper"), ("PREFORKQ_WORKER", "3")} <= set(journal.record())


def test_the_journal_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with open(tmp_path / "stream", "w") as stream:
        status = os.fstat(stream.fileno())
        named = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(named, stream.fileno())
        assert not is_journal({"JOURNAL_STREAM": f"{status.st_dev}:1"}, stream.fileno())
        assert not is_journal({}, stream.fileno())
    assert not is_journal(named, 999)
