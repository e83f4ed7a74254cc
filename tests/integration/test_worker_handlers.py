"""Handlers that fork, start processes, strike the worker's threads: the worker goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prefork_q.states import Status
from tests.support.ledger import Ledger
from tests.support.state import State
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

pytestmark = pytest.mark.either_server

StartWorker = Callable[..., Worker]


def test_a_child_of_a_handler_that_returns_is_no_worker(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    worker = start_worker(threads=2)

    ids = tasks.submit("fork", n=6)
    tasks.wait(*ids)
    after = tasks.submit("return", n=20)
    tasks.wait(*after)

    assert tasks.statuses([*ids, *after]) == {Status.SUCCEEDED}
    # Both ends of each fork noted their end, and one outcome was committed.
    until(lambda: worker.counters()["completed"] == 26)
    assert worker.counters()["stale"] == 0
    assert {run.pid for run in ledger.runs() if run.id in after} == {worker.pid}


FORKS = '''
import os, signal, sys, time
from prefork_q import App
app = App()

def state():
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)]
    return {
        "default": all(handler is signal.SIG_DFL for handler in handlers),
        "wakeup": signal.set_wakeup_fd(-1),
        "sockets": sum("socket:" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                       if os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}")),
    }

@app.task("look")
def look() -> dict:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        import json
        os.write(writer, json.dumps(state()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    import json
    return json.loads(os.read(reader, 10_000))

@app.task("grandchild")
def grandchild(path: str) -> int:
    """A child that opens files, and forks: its child must find them open."""
    pid = os.fork()
    if pid == 0:
        files = [open(f"{path}/{n}", "w") for n in range(30)]
        inner = os.fork()
        if inner == 0:
            for n, file in enumerate(files):
                file.write(str(n))
                file.close()
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@app.task("terminate_at_birth")
def terminate_at_birth(n: int) -> list:
    """Terminate children at once; return how they ended."""
    ends = []
    for _ in range(n):
        pid = os.fork()
        if pid == 0:
            time.sleep(5)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return ends

@app.task("pool")
def pool() -> list:
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])
'''


@pytest.fixture
def forks(tmp_path: Path) -> str:
    (tmp_path / "forks.py").write_text(FORKS)
    return f"{tmp_path / 'forks.py'}:app"


def test_a_child_of_a_handler_has_nothing_of_the_worker(
    start_worker: StartWorker, tasks: Tasks, forks: str
) -> None:
    start_worker(target=forks)

    id = tasks.submit_one("look")
    tasks.wait(id)

    assert tasks.get(id).result == {"default": True, "wakeup": -1, "sockets": 0}


CONTEXTS = """
import decimal
from contextvars import ContextVar
from prefork_q import App

app = App()
request: ContextVar[str] = ContextVar("request", default="none")

@app.task("leave")
def leave(name: str, fails: bool = False) -> list:
    seen = [request.get(), decimal.getcontext().prec]
    request.set(name)
    decimal.getcontext().prec = 5
    if fails:
        raise ValueError(name)
    return seen
"""


def test_what_a_handler_sets_in_context_variables_is_gone_with_it(
    start_worker: StartWorker, tasks: Tasks, tmp_path: Path
) -> None:
    (tmp_path / "contexts.py").write_text(CONTEXTS)
    start_worker(target=f"{tmp_path / 'contexts.py'}:app", threads=1)

    failed = tasks.submit_one("leave", {"name": "first", "fails": True}, max_attempts=1)
    timed = tasks.submit_one("leave", {"name": "second"}, timeout=60.0)
    last = tasks.submit_one("leave", {"name": "third"})
    tasks.wait(failed, timed, last)

    assert tasks.status(failed) is Status.DEAD
    assert tasks.get(timed).result == tasks.get(last).result == ["none", 28]


def test_a_child_of_a_child_keeps_its_files(
    start_worker: StartWorker, tasks: Tasks, forks: str, tmp_path: Path
) -> None:
    start_worker(target=forks)
    (tmp_path / "files").mkdir()

    id = tasks.submit_one("grandchild", {"path": str(tmp_path / "files")})
    tasks.wait(id)

    assert tasks.get(id).result == 0
    assert sorted(int(file.read_text()) for file in (tmp_path / "files").iterdir()) == list(range(30))


def test_a_child_can_be_terminated_from_its_birth_on(
    start_worker: StartWorker, tasks: Tasks, forks: str
) -> None:
    start_worker(target=forks)

    id = tasks.submit_one("terminate_at_birth", {"n": 100})
    tasks.wait(id)

    assert tasks.get(id).result == [-signal.SIGTERM] * 100


def test_a_handler_may_use_a_pool_of_processes(start_worker: StartWorker, tasks: Tasks, forks: str) -> None:
    worker = start_worker(target=forks)

    ids = tasks.submit("pool", n=3)
    tasks.wait(*ids, timeout=30)

    assert [tasks.get(id).result for id in ids] == [[1, 2, 3]] * 3
    assert not worker.has_ended()


def test_a_handler_can_terminate_what_it_started(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    start_worker(threads=2)

    ids = tasks.submit("terminate", n=4)
    tasks.wait(*ids)

    assert [tasks.get(id).result for id in ids] == [-signal.SIGTERM] * 4


# -- exceptions set in threads from outside


@pytest.mark.parametrize("error", ["SystemExit", "ValueError"])
def test_threads_that_are_struck_from_outside_lose_no_task(
    start_worker: StartWorker, tasks: Tasks, state: State, error: str
) -> None:
    worker = start_worker(threads=4)
    ids: list[str] = []
    for _ in range(3):
        ids += tasks.submit("strike", {"seconds": 0.4, "error": error})
        ids += tasks.submit("return", n=60, max_attempts=20)

    begun = time.monotonic()
    while any(tasks.status(id) not in (Status.SUCCEEDED, Status.DEAD) for id in ids):
        delayed = state.ids("delayed")
        if delayed:
            tasks.make_due(*delayed)
        assert time.monotonic() - begun < 60
        time.sleep(0.02)

    assert until(lambda: worker.holds() == [])
    until(lambda: worker.threads() == 1 + 4, what="all threads replaced")
    after = tasks.submit("return", n=50)
    tasks.wait(*after)
    assert tasks.statuses(after) == {Status.SUCCEEDED}
    assert not worker.said("failed")
    # Nobody is said to run what has ended: its hard limit would kill the worker.
    assert worker.running() == []


def test_a_thread_that_was_ended_is_replaced_and_its_task_retried(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker(threads=2)
    victim = tasks.submit_one("guarded", {"seconds": 30})
    tasks.wait(victim, status="processing")
    until(worker.running)
    began = time.monotonic()

    tasks.submit("strike", {"seconds": 0.5})
    until(lambda: tasks.status(victim) is Status.DELAYED)

    assert time.monotonic() - began < 4.5
    until(lambda: not worker.running())
    both = tasks.submit("sleep", {"seconds": 0.5}, n=2)
    until(lambda: {one.id for one in worker.running()} == set(both), what="both threads at work")


def test_a_handler_that_holds_the_interpreter_delays_only_its_own_worker(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    worker = start_worker()
    id = tasks.submit_one("hold_gil", {"seconds": 1.5})
    tasks.wait(id, status="processing")
    before = worker.last_beat()

    tasks.wait(id)

    assert tasks.get(id).result == 1.5
    assert worker.last_beat() > before


def test_a_round_trip_beside_busy_threads_is_short(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    start_worker(threads=4)
    spinning = tasks.submit("spin", {"seconds": 3.0}, n=3)
    tasks.wait(*spinning, status="processing")

    times = []
    for _ in range(20):
        began = time.monotonic()
        tasks.wait(tasks.submit_one("return"))
        times.append(time.monotonic() - began)

    assert sorted(times)[10] < 0.15
