from __future__ import annotations

import json
from pathlib import Path

from tests.support.node import Node, flags


def test_options_are_written_as_a_command_lines() -> None:
    options = {"max_crashes": 2, "no_http": True, "embedded": False, "http": ["a:1", "b:2"], "log_file": None}

    assert flags(options) == ["--max-crashes", "2", "--no-http", "--http", "a:1", "--http", "b:2"]


def test_events_are_found_among_other_lines(tmp_path: Path) -> None:
    node = Node(None, tmp_path)
    lines = [{"event": "ready", "worker": 1}, {"event": "ready", "worker": 2}, {"event": "drained"}]
    node.log_path.write_text(
        "Traceback\n" + "".join(json.dumps(line) + "\n" for line in lines) + '{"event": "re'
    )

    assert node.events("ready", worker=2) == [{"event": "ready", "worker": 2}]
    assert len(node.events()) == 3
    assert node.wait_event("ready", count=2) == {"event": "ready", "worker": 2}
