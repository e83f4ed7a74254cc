"""`run --no-fork`: one process does what a node does, and a debugger can stop in a handler."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefork_q.client import Client
from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import PROGRAM, Node, flags
from tests.support.server import Server, dies_with_its_parent
from tests.support.state import State
from tests.support.until import until

pytestmark = pytest.mark.either_server

SOON = 10.0
"""Seconds for what takes a moment on an idle machine."""


class Solo(Node):
    """A node in one process. Warnings are errors in it."""

    def __init__(self, url: str | None, folder: Path, **options: Any) -> None:
        environ = {"PYTHONWARNINGS": "error"} | options.pop("environ", {})
        super().__init__(url, folder, environ=environ, **({"workers": 1, "no_fork": True} | options))

    def _is_ready(self) -> bool:
        if self.exit_code is not None:
            raise AssertionError(f"the node exited {self.exit_code}\n{self.log_end()}")
        return bool(self.events("running")) and ("http" not in self._options or self._answers_ready())

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)


StartSolo = Callable[..., Solo]


@pytest.fixture
def start_solo(tmp_path: Path, keys: Keys, ledger: Ledger) -> Iterator[StartSolo]:
    nodes: list[Solo] = []

    def start(url: str | None, *, wait_ready: bool = True, **options: Any) -> Solo:
        common: dict[str, Any] = {"namespace": keys.namespace, "ledger": ledger.path}
        node = Solo(url, tmp_path / f"node-{len(nodes) + 1}", **(common | options))
        nodes.append(node)
        node.start(wait_ready=wait_ready)
        return node

    yield start
    for node in nodes:
        node.close()
        print(node.log_end())


@pytest.fixture
def state(server: Server, keys: Keys) -> Iterator[State]:
    client = server.client()
    yield State(client, keys)
    client.close()


def troubles(node: Solo) -> list[dict[str, Any]]:
    """The node's own, not those of handlers."""
    return [event for event in node.events(level="error") if event["event"] != "finished"]


def leave_well(node: Solo) -> None:
    """It stops in order, by itself, and has never been in trouble."""
    assert node.stop(timeout=SOON) == 0, node.log_end()
    assert not node.leftovers()
    assert not troubles(node), node.log_end()
    for word in ("Traceback", "Warning"):
        assert word not in node.log(), node.log_end()


def run_of_everything(node: Solo, ledger: Ledger) -> None:
    ids = node.submit_many("return", [{"value": n} for n in range(50)])
    assert [node.ended(id)["result"] for id in ids] == list(range(50))

    retried = node.ended(node.submit("flaky", {"failures": 2, "value": "at last"}))
    assert (retried["status"], retried["attempts"], retried["result"]) == ("succeeded", 3, "at last")

    dead = node.ended(node.submit("raise", {"message": "no"}, max_attempts=2))
    assert (dead["status"], dead["attempts"], dead["error"]["message"]) == ("dead", 2, "no")

    asked_at = time.time()
    delayed = node.submit("sleep", {"seconds": 0}, delay_s=3)
    assert node.task(delayed)["status"] == "delayed"
    assert node.ended(delayed)["status"] == "succeeded"
    assert ledger.starts(delayed)[0] >= asked_at + 2.95

    cancelled = node.submit("watch_cancel", {"seconds": 20})
    until(lambda: ledger.starts(cancelled), SOON, "its start")
    assert node.http("POST", f"/tasks/{cancelled}/cancel").status == 202
    assert node.ended(cancelled)["result"] is True

    assert ledger.pids() == {node.pid}
    assert not ledger.overlaps()


def test_it_does_what_a_node_does(start_solo: StartSolo, server: Server, ledger: Ledger) -> None:
    node = start_solo(server.url, lease="2s")

    run_of_everything(node, ledger)

    assert node.children() == []
    assert node.ended(node.submit("fork"))["status"] == "succeeded"
    leave_well(node)


def test_the_embedded_server_is_its_only_child(start_solo: StartSolo, ledger: Ledger) -> None:
    node = start_solo(None, lease="2s")

    run_of_everything(node, ledger)

    (store,) = node.children()
    assert "redis.sock" in " ".join(store.cmdline())
    leave_well(node)


def test_without_the_embedded_server_it_ends(start_solo: StartSolo) -> None:
    node = start_solo(None)
    (store,) = node.children()

    store.kill()

    assert node.wait(SOON) == 1
    assert node.events("failed", role="store")
    assert not node.leftovers()


def test_threads_run_side_by_side(start_solo: StartSolo, server: Server, ledger: Ledger) -> None:
    node = start_solo(server.url, threads=3)
    ids = node.submit_many("sleep", [{"seconds": 3.0}] * 3)

    until(lambda: len(ledger.running()) == 3, SOON, "three at once")

    assert {node.ended(id)["status"] for id in ids} == {"succeeded"}
    leave_well(node)


def test_the_lease_of_a_long_task_is_renewed(start_solo: StartSolo, server: Server, ledger: Ledger) -> None:
    node = start_solo(server.url, lease="1s")

    ids = [node.submit("sleep", {"seconds": 3}), node.submit("spin", {"seconds": 3})]

    assert {node.ended(id)["status"] for id in ids} == {"succeeded"}
    assert [len(ledger.runs(id)) for id in ids] == [1, 1]
    leave_well(node)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_drain_lets_what_runs_finish_and_gives_the_rest_back(
    start_solo: StartSolo, server: Server, state: State, ledger: Ledger, number: signal.Signals
) -> None:
    node = start_solo(server.url)
    running = node.submit("sleep", {"seconds": 4.0})
    until(lambda: ledger.starts(running), SOON, "its start")
    others = node.submit_many("return", [{}] * 20)

    assert node.stop(number, timeout=SOON) == 0

    assert state.status(running) == "succeeded"
    assert {state.status(id) for id in others} == {"pending"}
    assert {state.task(id).get("attempts", "0") for id in others} == {"0"}
    assert not node.leftovers()
    assert not troubles(node)
    state.assert_sums()


def test_what_outlasts_the_drain_is_pending_again_and_not_charged(
    start_solo: StartSolo, server: Server, state: State, ledger: Ledger
) -> None:
    node = start_solo(server.url, drain_timeout="1s")
    running = node.submit("spin", {"seconds": 30})
    until(lambda: ledger.starts(running), SOON, "its start")

    began = time.monotonic()
    assert node.stop(timeout=SOON) == 0

    assert 0.5 < time.monotonic() - began < 4
    assert state.status(running) == "pending"
    assert state.task(running).get("attempts", "0") == "0"
    assert "crashes" not in state.task(running)
    assert node.events("handed_back", id=running)
    state.assert_sums()


def test_a_second_signal_ends_it_at_once(
    start_solo: StartSolo, server: Server, state: State, ledger: Ledger
) -> None:
    node = start_solo(server.url, drain_timeout="60s")
    running = node.submit("sleep", {"seconds": 30})
    until(lambda: ledger.starts(running), SOON, "its start")

    node.send(signal.SIGINT)
    node.wait_event("drain_began")
    assert node.exit_code is None
    node.send(signal.SIGINT)

    assert node.wait(4) == 0
    assert state.status(running) == "pending"
    assert not node.leftovers()


def test_redis_may_restart_under_it(start_solo: StartSolo, own_server: Server, ledger: Ledger) -> None:
    node = start_solo(own_server.url, lease="5s")
    running = node.submit("sleep", {"seconds": 3})
    until(lambda: ledger.starts(running), SOON, "its start")

    own_server.restart()

    until(lambda: node.http("GET", "/readyz").status == 200, SOON, "an API that answers")
    assert node.ended(running)["status"] == "succeeded"
    assert node.ended(node.submit("return", {"value": 1}))["result"] == 1
    assert len(ledger.runs(running)) == 1
    assert node.stop(timeout=SOON) == 0


def test_without_redis_it_stops_in_time(start_solo: StartSolo, own_server: Server, ledger: Ledger) -> None:
    node = start_solo(own_server.url, drain_timeout="1s")
    running = node.submit("sleep", {"seconds": 30})
    until(lambda: ledger.starts(running), SOON, "its start")
    own_server.kill()

    began = time.monotonic()
    assert node.stop(timeout=2 * SOON) == 0

    assert time.monotonic() - began < SOON
    assert node.events("left_to_leases", ids=[running])
    assert not node.leftovers()


def test_a_soft_time_limit_holds_and_the_process_goes_on(
    start_solo: StartSolo, server: Server, tmp_path: Path
) -> None:
    target = own_handlers(tmp_path, """
        import time

        @app.task("nap", timeout=0.5, max_attempts=1)
        def nap(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.01)
        """)  # fmt: skip
    node = start_solo(server.url, target=target)

    assert node.events("soft_limits_only", types=["nap"])
    assert node.ended(node.submit("nap", {"seconds": 20}))["error"]["type"].endswith("TaskTimeout")
    assert node.ended(node.submit("nap", {"seconds": 0}))["status"] == "succeeded"
    assert len(node.events("soft_limits_only")) == 1
    leave_well(node)


def test_the_hooks_run(start_solo: StartSolo, server: Server, tmp_path: Path) -> None:
    target = own_handlers(tmp_path, """
        def note(word: str) -> None:
            with open("hooks", "a") as file:
                print(word, file=file)

        @app.on_template_start
        def first() -> None:
            note("template_start")

        @app.on_worker_start
        def begin() -> None:
            note("worker_start")

        @app.on_worker_stop
        def end() -> None:
            note("worker_stop")

        @app.task("add")
        def add(a: int) -> int:
            note("task")
            return a + 1
        """)  # fmt: skip
    node = start_solo(server.url, target=target)
    assert node.ended(node.submit("add", {"a": 1}))["result"] == 2

    leave_well(node)

    words = (node.folder / "hooks").read_text().split()
    assert words == ["template_start", "worker_start", "task", "worker_stop"]


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("import nosuchmodule", 78, "nosuchmodule"),
        ("@app.on_template_start\ndef fail() -> None:\n    raise OSError('no template')", 78, "no template"),
        ("@app.on_worker_start\ndef fail() -> None:\n    raise OSError('no worker')", 1, "no worker"),
        ("@app.on_worker_start\ndef fail() -> None:\n    raise SystemExit(0)", 1, "SystemExit"),
    ],
    ids=["import", "template_start", "worker_start", "exit"],
)
def test_what_cannot_begin_says_why_and_ends(
    start_solo: StartSolo, server: Server, tmp_path: Path, body: str, code: int, told: str
) -> None:
    target = own_handlers(tmp_path, f"{body}\n\n@app.task('add')\ndef add(a: int) -> int:\n    return a\n")

    node = start_solo(server.url, target=target, wait_ready=False)

    assert node.wait(SOON) == code
    assert told in node.log()
    assert "Traceback" in node.log()
    assert not node.leftovers()
    assert not node.ctl_socket.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"api_processes": 2},
        {"grace": "3s"},
        {"max_rss": "1GiB"},
        {"max_tasks": 10},
        {"preload": "on"},
        {"reload": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_cannot_hold_is_refused(start_solo: StartSolo, options: dict[str, Any]) -> None:
    node = start_solo(None, wait_ready=False, **options)

    assert node.wait(SOON) == 78
    (line,) = node.log().splitlines()
    assert "cannot work with no_fork" in line
    assert f"{next(iter(options))}:" in line
    assert not node.state_dir.exists()


def test_without_a_master_ctl_says_so(start_solo: StartSolo, server: Server) -> None:
    node = start_solo(server.url, no_http=True)

    assert node.ctl("ping")["pid"] == node.pid
    for command in ("status", "reload", "workers", "quiet"):
        done = node.cli("ctl", command)
        assert done.returncode == 1, done
        assert "--no-fork" in done.stderr, done
    leave_well(node)
    assert node.cli("ctl", "status").returncode == 3


def test_a_breakpoint_reads_the_terminal_and_the_lease_lives_meanwhile(
    server: Server, keys: Keys, tmp_path: Path
) -> None:
    target = own_handlers(tmp_path, """
        runs = []

        @app.task("divide", max_attempts=1)
        def divide(by: int) -> float:
            runs.append(by)
            secret = 6 * 7
            try:
                return secret / by
            except ZeroDivisionError:
                breakpoint()
                raise ValueError(f"{secret} of {len(runs)}") from None
        """)  # fmt: skip
    with (
        Terminal(server.url, keys, tmp_path, target) as terminal,
        Client(server.url, keys.namespace) as client,
    ):
        id = client.submit("divide", {"by": 0}).id
        terminal.expect("(Pdb)")
        terminal.say("p 'secret', secret")
        terminal.expect("('secret', 42)")
        terminal.expect("(Pdb)")
        # Three leases.
        time.sleep(3)
        other = client.submit("divide", {"by": 2}).id
        terminal.say("!secret = 'looked at'")
        terminal.expect("(Pdb)")
        terminal.say("c")

        assert client.wait(other, timeout=SOON) == 21
        failed = client.get(id)
        assert failed.attempts == 1
        assert failed.error is not None
        assert failed.error["message"] == "looked at of 1"

        # The terminal's Ctrl-C.
        client.submit("divide", {"by": 0})
        terminal.expect("(Pdb)")
        until(lambda: terminal.modes() != terminal.modes_before, SOON, "a prompt that edits its line")
        terminal.interrupt()
        terminal.expect("drain_began")
        terminal.interrupt()
        assert terminal.process.wait(SOON) == 0
        assert terminal.modes() == terminal.modes_before


class Terminal:
    """`prefork-q run --no-fork` on a terminal of its own."""

    def __init__(self, url: str, keys: Keys, folder: Path, target: str) -> None:
        self._ours, self._theirs = os.openpty()
        self._heard = ""
        self.modes_before = self.modes()
        options = flags(
            {"redis_url": url, "namespace": keys.namespace, "no_fork": True, "no_http": True, "lease": "1s",
             "state_dir": folder / "state", "ctl_socket": folder / "ctl.sock"}
        )  # fmt: skip
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PREFORK_Q_")}
        self.process = subprocess.Popen(
            [*dies_with_its_parent("TERM"), "setsid", "--ctty", str(PROGRAM), "run", target, *options],
            cwd=folder, env=environ | {"TERM": "xterm", "NO_COLOR": "1"},
            stdin=self._theirs, stdout=self._theirs, stderr=self._theirs,
        )  # fmt: skip

    def __enter__(self) -> Terminal:
        self.expect("running")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SOON)
        os.close(self._ours)
        os.close(self._theirs)

    def say(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def modes(self) -> list[Any]:
        """Whether it echoes, and the like."""
        return termios.tcgetattr(self._theirs)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._ours, b"\x03")

    def expect(self, text: str, timeout: float = SOON) -> None:
        """Read until this was said; what follows it is for the next time."""
        deadline = time.monotonic() + timeout
        while text not in self._heard:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} in {self._heard!r}"
            if select.select([self._ours], [], [], left)[0]:
                self._heard += os.read(self._ours, 4_096).decode(errors="replace")
        self._heard = self._heard.split(text, 1)[1]


def own_handlers(folder: Path, body: str) -> str:
    """Write handlers and return their target."""
    path = folder / "own.py"
    path.write_text(f"from prefork_q import App\n\napp = App()\n\n{textwrap.dedent(body)}")
    return f"{path}:app"
