"""What a node gets from whoever starts it, and what becomes of its log: it works and ends all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.node import PROGRAM, Node
from tests.support.until import until

StartNode = Callable[..., Node]

INHERITED = {
    "blocked signals": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "ignored signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 10, 12, 13, 15, 17)]",
    "no stdin": "os.close(0)",
    "no stdout": "os.close(1)",
    "no stderr": "os.close(2)",
    "nothing open": "os.closerange(0, 3)",
    "a full disk": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "nobody who reads": "r, w = os.pipe(); os.dup2(w, 2); os.close(r); os.close(w)",
    "few descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
}


def started_after(code: str) -> list[str]:
    """The words that carry out code in the process that becomes the program named after them."""
    program = f"import os, resource, signal, sys; {code}; os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", program]


@pytest.mark.parametrize("code", INHERITED.values(), ids=INHERITED)
def test_a_node_works_and_ends_whatever_it_inherits(
    start_embedded: StartNode, ledger: Ledger, code: str
) -> None:
    node = start_embedded(workers=2, prefix=started_after(code))
    assert node.ended(node.submit("subprocess", {"seconds": 0.05}))["result"] == 0
    (killed,) = node.kill("worker:0")
    until(lambda: node.pids()["worker:0"] not in ([], [killed]), 15, "an heir")
    assert node.ended(node.submit("terminate"))["result"] == -15
    running = node.submit("sleep", {"seconds": 0.5})
    until(lambda: ledger.starts(running), 10, "a start")

    assert node.stop(timeout=10) == 0

    assert ledger.runs(running)[0].outcome == "returned"
    assert node.leftovers() == []


def test_a_log_file_on_a_full_disk_stops_nothing(start_embedded: StartNode) -> None:
    node = start_embedded(workers=1, log_file="/dev/full")

    assert node.ended(node.submit("return", {"value": 1}))["result"] == 1
    assert node.stop() == 0


@pytest.mark.parametrize("stream", ["1", "2"], ids=["stdout", "stderr"])
@pytest.mark.parametrize("arguments", [["--version"], ["ctl", "ping"]], ids=["version", "ctl"])
def test_a_command_without_a_stream_tells_no_traceback(
    tmp_path: Path, stream: str, arguments: list[str]
) -> None:
    done = subprocess.run(
        [*started_after(f"os.close({stream})"), str(PROGRAM), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert done.returncode == (0 if arguments == ["--version"] else 69)
    assert "Traceback" not in done.stdout + done.stderr


def test_code_that_is_being_imported_is_not_waited_for(start_embedded: StartNode, tmp_path: Path) -> None:
    target = tmp_path / "slow.py"
    target.write_text(
        "import time\nfrom prefork_q import App\napp = App()\n"
        "open('importing', 'w').close()\ntime.sleep(60)\n@app.task\ndef nothing(): ...\n"
    )
    node = start_embedded(target=f"{target}:app", wait_ready=False)
    until((node.folder / "importing").exists, 20, "the import")

    assert node.stop(timeout=3) == 0
    assert node.leftovers() == []


OWN = """
from prefork_q import App

app = App()


@app.task("add")
def add(a: int, b: int) -> int:
    return a + b
"""


def test_modules_beside_the_handlers_that_are_named_as_ours_need_them_do_no_harm(
    start_embedded: StartNode, tmp_path: Path
) -> None:
    for name in ("http", "wsgiref", "queue", "hmac"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('taken for the standard library')\n")
    (tmp_path / "own.py").write_text(OWN)

    node = start_embedded(target=f"{tmp_path / 'own.py'}:app", workers=1)

    assert node.ended(node.submit("add", {"a": 1, "b": 2}))["result"] == 3
    assert node.http("GET", "/openapi.json").status == 200
    assert node.metrics()["completed_total"] == 1
