"""What the README tells a newcomer to do works, and its tables are those of the program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefork_q.config import OPTIONS
from tests.support.node import Node

README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
HANDLERS, CLIENT, LONGER = PYTHON

ANSWER = {"words": 4, "longest": "quick"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with the README's handlers and, since no URL is given, the embedded server."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    node = Node(None, tmp_path, target="handlers:app", environ=settings(tmp_path))
    try:
        yield node.start()
    finally:
        node.close()
        print(node.log_end())


def settings(folder: Path) -> dict[str, str]:
    """What stands for the default place of the state folder, which is the current folder."""
    return {"PREFORK_Q_STATE_DIR": str(folder / "state")}


def test_the_quick_start_works(node: Node, tmp_path: Path) -> None:
    (body,) = re.findall(r"^ +-d '(.*)'$", README, re.MULTILINE)
    accepted = node.http("POST", "/tasks", body.encode())
    assert accepted.status == 202
    assert node.task(accepted.json["id"], wait=10)["result"] == ANSWER

    (shell,) = re.findall(r"^ +prefork-q (task submit) (\w+) '(.*)' (--wait)$", README, re.MULTILINE)
    ran = node.cli(*shell[0].split(), *shell[1:])
    assert json.loads(ran.stdout) == ANSWER, ran.stderr

    program = subprocess.run(
        [sys.executable, "-c", CLIENT], cwd=tmp_path, env=without_settings() | settings(tmp_path),
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert program.stdout.strip() == str(ANSWER), program.stderr


def test_a_payload_that_does_not_fit_is_refused(node: Node) -> None:
    for payload in ({"text": 7}, {}, {"text": "a", "nosuch": 1}):
        reply = node.http("POST", "/tasks", {"type": "count_words", "payload": payload})
        assert reply.status == 422


def test_the_longer_example_is_right(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("")
    (tmp_path / "longer.py").write_text(LONGER)
    code = "import longer; h = longer.app.handlers['fetch']; print(h.queue, h.max_attempts, h.timeout)"

    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ran.stdout == "slow 5 30\n", ran.stderr


def test_the_table_of_options_is_that_of_the_program() -> None:
    table = re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \| (.*) \|$", README, re.MULTILINE)

    assert table == [(o.flag, o.default, o.help) for o in OPTIONS if o.kind != "argument"]


def without_settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PREFORK_Q_") and k != "REDIS_URL"}
