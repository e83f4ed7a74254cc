"""The log of a node whose processes all write at once: lines are whole, and a rotation loses none."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.load import load
from tests.support.node import Node
from tests.support.until import until
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]

MESSAGE = 'a thousand characters, more or less, and some that JSON escapes: " \\ \n \x1b \u2028 é ' * 12


def finished(text: str) -> list[dict[str, Any]]:
    """The lines of attempts that were made; every line must be an object, and end."""
    assert text.endswith("\n")
    entries = [json.loads(line) for line in text[:-1].split("\n")]
    assert all({"ts", "level", "event"} <= set(entry) for entry in entries)
    return [e for e in entries if e["event"] == "finished" and e["outcome"] != "released"]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_lines_of_sixteen_processes_stay_whole(start_embedded: StartNode, tmp_path: Path, kind: str) -> None:
    written = bytearray()
    reader, writer = os.pipe()

    def read() -> None:
        with os.fdopen(reader, "rb", buffering=0) as log:
            while chunk := log.read(65_536):
                written.extend(chunk)

    listener = threading.Thread(target=read)
    listener.start()
    try:
        log_file = tmp_path / "own.log" if kind == "file" else None
        node = start_embedded(workers=16, output=writer, log_file=log_file)
        os.close(writer)
        ids = node.submit_many("raise", [{"message": MESSAGE[:900], "after": 0.05}] * 300, max_attempts=3)
        until(all_ended(node, 300), 60, "the end of all tasks", every=0.2)
        assert node.stop() == 0
    finally:
        listener.join(10)

    lines = finished((log_file.read_bytes() if log_file else bytes(written)).decode())
    assert sorted((line["id"], line["attempt"]) for line in lines) == sorted(
        (id, attempt) for id in ids for attempt in (1, 2, 3)
    )
    assert len({line["pid"] for line in lines}) > 8
    assert {line["worker"] for line in lines} <= set(range(16))
    assert all(len(line["error_message"]) > 800 for line in lines)


@pytest.mark.parametrize("is_told", [True, False], ids=["told by USR1", "not told"])
def test_a_rotation_under_load_loses_no_line(
    start_embedded: StartNode, tmp_path: Path, is_told: bool
) -> None:
    log_file = tmp_path / "own.log"
    node = start_embedded(workers=4, log_file=log_file)
    with load(node, "return", {"value": 1}, rate=150) as submitted:
        for turn in range(4):
            wanted = 60 * (turn + 1)
            until(lambda at=wanted: len(submitted.ids) > at, 20, "some load")  # type: ignore[misc]
            log_file.rename(tmp_path / f"own.log.{turn}")
            if is_told:
                node.send(signal.SIGUSR1)
            until(lambda: log_file.exists() and log_file.stat().st_size > 0, 10, "a new file")
    until(all_ended(node, len(submitted.ids)), 30, "the end of all tasks")
    assert node.stop() == 0

    texts = [path.read_text() for path in tmp_path.glob("own.log*")]
    assert len(texts) == 5
    lines = [line["id"] for text in texts for line in finished(text)]
    assert sorted(lines) == sorted(submitted.ids)


def test_what_handlers_print_is_there_at_once_and_once(start_node: StartNode, tmp_path: Path) -> None:
    target = tmp_path / "chatty.py"
    target.write_text(
        "from prefork_q import App\n"
        "app = App()\n"
        "print('printed by the import')\n"
        "@app.task('chat')\n"
        "def chat(number: int) -> None:\n"
        "    print(f'printed by handler {number}')\n"
    )
    node = start_node(workers=2, target=f"{target}:app")

    for number in range(10):
        assert node.ended(node.submit("chat", {"number": number}))["status"] == "succeeded"
        assert node.log().count(f"printed by handler {number}\n") == 1

    assert node.stop() == 0
    assert node.log().count("printed by the import\n") == 1
