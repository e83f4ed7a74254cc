"""Log lines: their form, what may not get into them, and how they reach a file, pipe or socket."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from prefork_q.events import Events, Format, Sink, mask_url

ID = "0197e2a4-0000-7000-8000-000000000001"
PROCESS = {"worker": 3, "gen": 2, "pid": 4711}


def without_time(line: bytes) -> bytes:
    return re.sub(rb"\d{4}-\d\d-\d\dT[\d:.]+Z", b"", line, count=1)


class Log:
    """Events to a file, and what stands in it."""

    def __init__(self, path: Path, format: Format, level: Any = "debug") -> None:
        self.path = path
        self.events = Events(Sink.file(path), format=format, level=level, process=PROCESS)

    def text(self) -> str:
        return self.path.read_text("utf-8")

    def objects(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.path.read_bytes().splitlines()]


@pytest.fixture
def json_log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log", "json")
    yield log
    log.events.sink.close()


@pytest.fixture
def text_log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log", "text")
    yield log
    log.events.sink.close()


def test_a_text_line_has_time_level_event_fields_and_process(text_log: Log) -> None:
    text_log.events.emit("completed", id=ID, attempt=1, note="two words", empty="", missing=None)

    assert re.fullmatch(
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    completed "
        rf'id={ID} attempt=1 note="two words" empty="" worker=3 gen=2 pid=4711\n',
        text_log.text(),
    )


def test_a_json_line_is_one_object_with_ts_level_and_event_first(json_log: Log) -> None:
    json_log.events.emit(
        "exited", level="warning", cause="killed by signal 9", seconds=1.5, ids=["a"], gone=None
    )

    [entry] = json_log.objects()
    assert list(entry) == ["ts", "level", "event", "cause", "seconds", "ids", "worker", "gen", "pid"]
    assert entry["level"] == "warning"
    assert entry["event"] == "exited"
    assert entry["cause"] == "killed by signal 9"


def test_lines_below_the_level_are_not_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", "json", level="warning")

    log.events.emit("noticed")
    log.events.lines([log.events.attempt_line(ID, "t", "q", 1, "succeeded", 0.1)])
    log.events.lines(log.events.attempt_lines("t", "q", 1, "succeeded", [(ID.encode(), 0.1)]))
    log.events.lines([log.events.attempt_line(ID, "t", "q", 1, "dead", 0.1)])

    assert [entry["level"] for entry in log.objects()] == ["error"]
    assert not log.events.is_on("info")


@pytest.mark.parametrize(
    "value",
    [
        "a\nb",
        "a\r\nb",
        "\x1b[31m",
        "\x9b31m",
        "\u2028",
        "\u202e",
        "\ud800",
        "\0",
        "\x7f",
        "\x85",
        "é😀",
        2**80,
        b"\xff",
    ],
)
@pytest.mark.parametrize("format", ["json", "text"])
def test_no_value_breaks_its_line_or_steers_a_terminal(tmp_path: Path, format: Format, value: object) -> None:
    log = Log(tmp_path / "log", format)

    log.events.emit("noticed", value=value)
    log.events.lines([log.events.attempt_line(ID, str(value), "q", 1, "dead", 0.1, "E", str(value))])

    text = log.text()
    assert text.count("\n") == 2
    assert len(text.splitlines()) == 2
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
    if format == "json":
        assert len(log.objects()) == 2


def test_a_value_whose_str_raises_is_named_and_not_raised(json_log: Log) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    json_log.events.emit("noticed", value=Broken())

    assert json_log.objects()[0]["value"] == "<Broken: RuntimeError in __str__>"


def test_lines_are_utf8_under_the_c_locale(tmp_path: Path) -> None:
    program = (
        "from prefork_q.events import Events, Sink\n"
        "Events(Sink.stderr(), format='text', level='info', process={}).emit('noticed', note='é😀')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=30,
    )

    assert done.stderr.decode("utf-8").endswith('note="é😀"\n')


@pytest.mark.parametrize("outcome", ["succeeded", "retrying", "dead", "released", "cancelled"])
def test_an_attempts_line_has_what_the_interface_promises(json_log: Log, outcome: Any) -> None:
    line = json_log.events.attempt_line(ID, "thumb", "low", 2, outcome, 0.0125, "ValueError", 'bad\n"width"')

    entry = orjson.loads(line)
    assert entry.pop("ts").endswith("Z")
    assert entry.pop("level") in ("info", "warning", "error")
    assert entry == {
        "event": "finished",
        "id": ID,
        "type": "thumb",
        "queue": "low",
        "attempt": 2,
        "outcome": outcome,
        "duration_ms": 12.5,
        "error_type": "ValueError",
        "error_message": 'bad\n"width"',
        "worker": 3,
        "gen": 2,
        "pid": 4711,
    }


def test_an_attempts_line_in_text(text_log: Log) -> None:
    line = text_log.events.attempt_line(ID, "thumb", "low", 2, "dead", 0.0125, "ValueError", "bad width")

    assert line.decode().partition("Z ")[2] == (
        f"error   finished id={ID} type=thumb queue=low attempt=2 outcome=dead duration_ms=12.500 "
        'error_type=ValueError error_message="bad width" worker=3 gen=2 pid=4711\n'
    )


@pytest.mark.parametrize("name", ["thumb", "50%", "%s %(a)b", "a\0\1b", "é😀", "redis://u:s3cret@h/0"])
@pytest.mark.parametrize("format", ["json", "text"])
def test_lines_of_attempts_that_ended_alike_are_those_of_each(
    tmp_path: Path, format: Format, name: str
) -> None:
    events = Log(tmp_path / "log", format).events
    ended = [(ID.encode(), 0.0125), (b"another", 3.0004)]

    together = events.attempt_lines(name, name, 2, "succeeded", ended)
    alone = [events.attempt_line(id.decode(), name, name, 2, "succeeded", ran) for id, ran in ended]

    assert [without_time(line) for line in together] == [without_time(line) for line in alone]


@pytest.mark.parametrize(
    "message", ["x" * 100_000, "\0" * 100_000, "😀" * 50_000, "\ud800" * 9000, "\u202e" * 9000]
)
@pytest.mark.parametrize("format", ["json", "text"])
def test_an_attempts_line_is_never_longer_than_one_atomic_write(
    tmp_path: Path, format: Format, message: str
) -> None:
    log = Log(tmp_path / "log", format)

    line = log.events.attempt_line(ID, message, message, 1, "dead", 0.1, message, message)

    assert len(line) <= 4096
    assert line.endswith(b"\n")


def test_what_is_cut_of_a_long_message_is_its_middle(json_log: Log) -> None:
    line = json_log.events.attempt_line(ID, "t", "q", 1, "dead", 0.1, "E", "first " + "x" * 9000)

    message = orjson.loads(line)["error_message"]
    assert message.startswith("first x")
    assert " ... " in message


def test_passwords_in_urls_are_masked_everywhere(json_log: Log) -> None:
    url = "redis://user:s3cret@host:6379/0?password=s3cret&db=1"

    json_log.events.emit("connecting", url=url, nested=f"Error: {url} refused")
    json_log.events.lines(
        [json_log.events.attempt_line(ID, "t", "q", 1, "dead", 0.1, "E", f"cannot reach {url}")]
    )

    assert "s3cret" not in json_log.text()
    assert json_log.objects()[0]["url"] == "redis://user:***@host:6379/0?password=***&db=1"


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://host/0", "redis://host/0"),
        ("redis://:pass@host", "redis://:***@host"),
        ("rediss://u:p@ss:w/rd@host:1/0", "rediss://u:***@host:1/0"),
        ("unix:///run/redis.sock?db=1&password=x", "unix:///run/redis.sock?db=1&password=***"),
        ("no url: a:b@c", "no url: a:b@c"),
    ],
)
def test_mask_url(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_with_process_adds_to_what_ends_each_line(json_log: Log) -> None:
    json_log.events.with_process(pid=5, role="keeper").emit("started")

    assert json_log.objects()[0] == {**json_log.objects()[0], "worker": 3, "pid": 5, "role": "keeper"}


def test_a_long_line_to_a_pipe_is_cut_to_one_atomic_write() -> None:
    reader, writer = os.pipe()
    events = Events(Sink(writer), format="json", level="info", process={})

    events.emit("import_failed", traceback="Traceback\n" * 3000 + "ValueError: why", where="handlers.py")

    data = os.read(reader, 100_000)
    events.sink.close()
    os.close(reader)
    os.close(writer)
    assert len(data) <= 4096
    entry = orjson.loads(data)
    assert entry["traceback"].startswith("Traceback")
    assert entry["traceback"].endswith("ValueError: why")
    assert entry["where"] == "handlers.py"


def test_many_lines_reach_a_pipe_in_whole_lines_a_write(tmp_path: Path) -> None:
    # Packets of a SOCK_SEQPACKET socket show where each write began and ended.
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sink = Sink(writer.fileno())
    lines = [b"%04d %s\n" % (n, b"x" * (n % 300)) for n in range(100)]

    sink.write(lines)

    reader.setblocking(False)
    packets = []
    while True:
        try:
            packets.append(reader.recv(65_536))
        except BlockingIOError:
            break
    sink.close()
    reader.close()
    writer.close()
    assert b"".join(packets) == b"".join(lines)
    assert all(len(packet) <= 4096 and packet.endswith(b"\n") for packet in packets)
    assert len(packets) < 10


def test_lines_of_several_processes_do_not_mix_in_one_pipe() -> None:
    reader, writer = os.pipe()
    program = (
        "from prefork_q.events import Events, Sink\n"
        "import sys\n"
        "events = Events(Sink.stderr(patience=20), format='json', level='info', process={'p': sys.argv[1]})\n"
        "line = lambda n: events.attempt_line(str(n), 't', 'q', 1, 'dead', 0.1, 'E', 'x' * 600)\n"
        "for start in range(0, 400, 20):\n"
        "    events.lines([line(n) for n in range(start, start + 20)])\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(n)], stderr=writer) for n in range(4)]
    os.close(writer)

    with os.fdopen(reader, "rb") as log:
        entries = [orjson.loads(line) for line in log]
    for child in children:
        assert child.wait(30) == 0

    assert len(entries) == 1600
    for n in range(4):
        assert [int(entry["id"]) for entry in entries if entry["p"] == str(n)] == list(range(400))


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_stalls_costs_lines_and_not_time_and_the_loss_is_told(kind: str) -> None:
    if kind == "pipe":
        reader, writer = os.pipe()
    else:
        left, right = socket.socketpair()
        reader, writer = left.detach(), right.detach()
    events = Events(Sink(writer, patience=0), format="json", level="info", process={})

    started = time.monotonic()
    for n in range(3000):
        events.emit("noticed", n=n, filler="x" * 100)
    took = time.monotonic() - started

    assert took < 20
    assert events.sink.dropped > 0
    assert os.get_blocking(writer), "the inherited description belongs to our parent too"
    os.set_blocking(reader, False)
    first = _drain(reader)
    events.emit("noticed", n=3000)
    entries = [orjson.loads(line) for line in (first + _drain(reader)).splitlines() if line]
    assert entries[-1]["event"] == "lines_dropped"
    told = [entry["lines"] for entry in entries if entry["event"] == "lines_dropped"]
    assert sum(told) == events.sink.dropped == 3001 - (len(entries) - len(told))
    events.sink.close()
    os.close(reader)
    os.close(writer)


def test_a_patient_sink_waits_for_a_slow_reader() -> None:
    reader, writer = os.pipe()
    events = Events(Sink(writer, patience=10), format="json", level="info", process={})
    received = bytearray()

    def read() -> None:
        while chunk := os.read(reader, 1000):
            received.extend(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    for n in range(2000):
        events.emit("noticed", n=n, filler="x" * 200)
    events.sink.close()
    os.close(writer)
    thread.join(20)
    os.close(reader)

    assert events.sink.dropped == 0
    assert [orjson.loads(line)["n"] for line in received.splitlines()] == list(range(2000))


def test_a_reader_that_is_gone_or_a_closed_descriptor_raises_nothing() -> None:
    reader, writer = os.pipe()
    gone = Events(Sink(writer), format="text", level="info", process={})
    os.close(reader)
    closed = Events(Sink(writer + 100), format="text", level="info", process={})

    gone.emit("noticed")
    closed.emit("noticed")

    assert (gone.sink.dropped, closed.sink.dropped) == (1, 1)
    gone.sink.close()
    os.close(writer)


def test_reopen_follows_a_rotation_at_once(tmp_path: Path, json_log: Log) -> None:
    json_log.events.emit("first")
    json_log.path.rename(tmp_path / "log.1")

    json_log.events.sink.reopen()
    json_log.events.emit("second")

    assert [entry["event"] for entry in json_log.objects()] == ["second"]
    assert b"first" in (tmp_path / "log.1").read_bytes()


def test_a_rotation_is_noticed_without_being_told(tmp_path: Path, json_log: Log) -> None:
    json_log.events.emit("first")
    json_log.path.rename(tmp_path / "log.1")

    deadline = time.monotonic() + 10
    while not json_log.path.exists() and time.monotonic() < deadline:
        json_log.events.emit("second")
        time.sleep(0.05)

    assert json_log.objects()[0]["event"] == "second"


def _drain(fd: int) -> bytes:
    data = b""
    while True:
        try:
            chunk = os.read(fd, 1 << 20)
        except BlockingIOError:
            return data
        if not chunk:
            return data
        data += chunk
