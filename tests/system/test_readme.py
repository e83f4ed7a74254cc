"""What the README tells a newcomer to do works, and its tables are those of the program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefork_q.config import OPTIONS
from tests.support.node import Node
from tests.support.until import until

README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
HANDLERS, CLIENT, LONGER, CANCELLED, CALL = PYTHON

HTTPX = """
from types import SimpleNamespace

def get(url):
    return SimpleNamespace(status_code=404 if "nowhere" in url else 200, content=b"abc")
"""
"""What stands for the package, which the tests do not install."""
ANSWER = {"words": 4, "longest": "quick"}


@contextmanager
def running(folder: Path, text: str, **options: str) -> Iterator[Node]:
    """A node with these handlers and, since no URL is given, the embedded server."""
    (folder / "handlers.py").write_text(text)
    node = Node(None, folder, target="handlers:app", environ=settings(folder), **options)
    try:
        yield node.start()
    finally:
        node.close()
        print(node.log_end())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with the handlers of the quick start."""
    with running(tmp_path, HANDLERS) as node:
        yield node


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


def test_the_longer_examples_run_as_printed(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text(HTTPX)
    (queues,) = re.findall(r"^ +prefork-q run handlers:app --queues (.*)$", README, re.MULTILINE)

    with running(tmp_path, LONGER + CANCELLED + CALL, queues=queues) as node:
        assert not node.events("queues_left_out")
        fetched = node.submit("fetch", {"url": "http://here"})
        missed = node.ended(node.submit("fetch", {"url": "http://nowhere"}))
        assert node.ended(fetched)["result"] == 3
        assert (missed["status"], missed["queue"], missed["max_attempts"]) == ("dead", "slow", 5)

        counting = node.submit("count_up", {"to": 100_000})
        until(lambda: node.task(counting)["status"] == "processing", 10, "its start")
        node.cli("task", "cancel", counting)
        ended = node.ended(counting)
        assert (ended["status"], ended["attempts"]) == ("cancelled", 1)


def test_what_submits_without_the_handlers_takes_the_default_queue_and_attempts(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text(HTTPX)
    with running(tmp_path, LONGER, queues="default,slow") as node:
        by_type = node.cli("task", "submit", "fetch", '{"url": "http://here"}').stdout.strip()
        many = (
            "from prefork_q import Client, NewTask; from handlers import fetch; client = Client()\n"
            "for task in client.submit_many([NewTask('fetch', {'url': 'http://a'}), fetch.new(url='http://a')]):\n"
            "    print(task.id)"
        )
        program = subprocess.run(
            [sys.executable, "-c", many], cwd=tmp_path, env=without_settings() | settings(tmp_path),
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        tasks = [node.task(id) for id in (by_type, *program.stdout.split())]

    shown = [(task["queue"], task["max_attempts"]) for task in tasks]
    assert shown == [("default", 3), ("default", 3), ("slow", 5)], program.stderr


def test_the_table_of_options_is_that_of_the_program() -> None:
    table = re.findall(r"^\| `(--[a-z-]+|TARGET)` \| (.*?) \| (.*) \|$", README, re.MULTILINE)

    assert table == [("TARGET" if o.kind == "argument" else o.flag, o.default, o.help) for o in OPTIONS]


def without_settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PREFORK_Q_") and k != "REDIS_URL"}
