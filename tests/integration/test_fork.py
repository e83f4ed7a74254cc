"""Fork and birth, with real processes."""

from __future__ import annotations

import os
import random
import resource
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.fork import INTERNAL_ERROR, fork, fork_detached, shed_protection
from prefork_q.ipc.messages import Drain, Go, Hello
from prefork_q.ipc.scoreboard import Scoreboard, boot_time

pytestmark = pytest.mark.usefixtures("single_threaded")


def wait(pid: int, timeout: float = 10.0) -> int:
    """Return the exit code, negative for a signal."""
    poller = select.poll()
    pidfd = os.pidfd_open(pid)
    poller.register(pidfd, select.POLLIN)
    ended = poller.poll(timeout * 1000)
    os.close(pidfd)
    assert ended, f"process {pid} still lives"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ask(child: Callable[[], object], *, keep_fds: tuple[int, ...] = ()) -> str:
    """Return what a forked child says."""
    reader, writer = os.pipe()

    def run() -> int:
        os.write(writer, str(child()).encode())
        return 0

    pid = fork(run, keep_fds=(writer, *keep_fds))
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    assert wait(pid) == 0
    return text


def test_a_child_exits_with_its_code() -> None:
    assert wait(fork(lambda: 7)) == 7


def test_an_exception_is_printed_and_ends_the_child(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise ValueError("no such luck")

    assert wait(fork(fail)) == INTERNAL_ERROR
    assert "ValueError: no such luck" in capfd.readouterr().err


def test_exit_calls_keep_their_code() -> None:
    def leave() -> int:
        raise SystemExit(5)

    assert wait(fork(leave)) == 5


def test_a_child_keeps_only_the_named_descriptors() -> None:
    reader, writer = os.pipe()
    spare = [os.dup(reader) for _ in range(5)]

    def listing() -> list[int]:
        return sorted(int(name) for name in os.listdir("/proc/self/fd") if is_open(int(name)))

    def is_open(fd: int) -> bool:
        try:
            os.fstat(fd)
        except OSError:
            return False
        return True

    answer = ask(listing, keep_fds=(spare[2],))
    open_fds = {int(text) for text in answer.strip("[]").split(",")}
    assert spare[2] in open_fds
    assert not open_fds & {reader, writer, *(fd for fd in spare if fd != spare[2])}
    for fd in (reader, writer, *spare):
        os.close(fd)


def test_a_child_closes_what_is_above_the_limit_too() -> None:
    """What is open is listed: to try all numbers up to the limit takes minutes where that is high."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = os.dup2(0, 200)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, limits[1]))
        answer = ask(lambda: os.path.exists(f"/proc/self/fd/{high}"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(high)
    assert answer == "False"


def test_a_child_that_cannot_list_its_descriptors_closes_them_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefork_q.ipc.fork.OPEN_FDS", "/proc/self/no-such")
    low, high = os.dup(0), os.dup(0)
    answer = ask(
        lambda: [os.path.exists(f"/proc/self/fd/{fd}") for fd in (low, high)], keep_fds=(high,)
    )
    os.close(low)
    os.close(high)
    assert answer == "[False, True]"


def test_a_child_has_lost_the_parents_handlers() -> None:
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    wakeup = signal.set_wakeup_fd(-1)
    try:
        handler = ask(lambda: signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        mask = ask(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.set_wakeup_fd(wakeup)
    assert handler == "True"
    assert mask == "set()"


def test_signals_to_the_group_do_nothing_to_a_child_but_term_does() -> None:
    reader, writer = os.pipe()

    def linger() -> int:
        os.write(writer, b".")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.05)
        return 0

    pid = fork(linger, keep_fds=(writer,))
    os.read(reader, 1)
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGUSR1,
        signal.SIGWINCH,
    ):
        os.kill(pid, number)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGTERM)
    assert wait(pid) == -signal.SIGTERM
    os.close(reader)
    os.close(writer)


def test_programs_that_a_child_starts_have_default_handlers() -> None:
    def masks() -> str:
        status = os.popen("grep SigIgn /proc/self/status").read()  # the shell's child
        return status.split()[1]

    ignored = int(ask(masks), 16)
    assert not ignored & (1 << (signal.SIGINT - 1))
    assert not ignored & (1 << (signal.SIGHUP - 1))


def test_children_differ_in_what_they_draw() -> None:
    assert ask(random.random) != ask(random.random)


def test_a_process_of_several_threads_is_not_forked() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="poller")
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="poller"):
            fork(lambda: 0)
    finally:
        done.set()
        thread.join()


def test_a_detached_child_belongs_to_another() -> None:
    reader, writer = os.pipe()

    def report() -> int:
        os.write(writer, str(os.getpid()).encode())
        return 0

    pid = fork_detached(report, keep_fds=(writer,))
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert int(answer.read()) == pid
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_what_a_killed_process_wrote_stays_readable() -> None:
    id = b"01987654-3210-7abc-8def-0123456789ab"
    slot = Scoreboard(1, 1, 2).worker(0)
    slot.open("node.0.1", generation=1)

    def work() -> int:
        slot.hold(1, id, 5, 1.0)
        slot.start(0, id, b"t", 1, 5, 1.0, 0.0)
        slot.state = "ready"
        slot.beat(boot_time())
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert wait(fork(work)) == -signal.SIGKILL

    shot = slot.snapshot()
    assert shot.state == "ready"
    assert shot.running[0].id == shot.holds[0].id == id.decode()
    assert 0 <= boot_time() - shot.last_beat < 60


def birth(channel: Channel, board: Scoreboard, master: int) -> Birth:
    return Birth("worker", 0, "node.0.1", 1, master, channel, board)


def test_a_newborn_says_hello_and_begins_when_told() -> None:
    parent, child = Channel.pair()
    board, master = Scoreboard(1, 1, 1), os.getpid()
    pid = fork(lambda: 0 if birth(child, board, master).introduce() else 3, keep_fds=(child.fileno(),))
    child.close()
    assert parent.wait(10) == Hello(pid)
    parent.send(Go())
    assert wait(pid) == 0
    parent.close()


@pytest.mark.parametrize("ends", ["closed", "told to drain"])
def test_a_newborn_that_is_not_wanted_any_more_exits(ends: str) -> None:
    parent, child = Channel.pair()
    board, master = Scoreboard(1, 1, 1), os.getpid()
    pid = fork(lambda: 0 if birth(child, board, master).introduce() else 3, keep_fds=(child.fileno(),))
    child.close()
    assert parent.wait(10) == Hello(pid)
    if ends == "told to drain":
        parent.send(Drain(0))
    parent.close()
    assert wait(pid) == 3


def test_a_newborn_dies_with_its_master() -> None:
    reader, writer = os.pipe()
    board = Scoreboard(1, 1, 1)

    def master() -> int:
        parent, child = Channel.pair()
        own = os.getpid()

        def newborn() -> int:
            birth(child, board, own).introduce()
            os.write(writer, b".")
            time.sleep(60)
            return 0

        fork(newborn, keep_fds=(child.fileno(), writer))
        child.close()
        parent.wait(10)
        parent.send(Go())
        time.sleep(60)
        return 0

    pid = fork(master, keep_fds=(writer,))
    os.close(writer)
    assert os.read(reader, 1) == b"."
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    assert poller.poll(5_000), "the newborn outlived its master"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_child_is_as_likely_to_be_ended_for_memory_as_any_other(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    for before, after in (("-100\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")):
        score.write_text(before)
        shed_protection(str(score))
        # The kernel takes each write for the whole value; a file keeps what stood before it.
        assert score.read_text().removeprefix(before if after != before else "") == after


def test_a_process_is_made_also_where_children_are_not_waited_for() -> None:
    def bear() -> str:
        # As an import may do that wants no zombies.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        reader, writer = os.pipe()

        def tell() -> int:
            os.write(writer, b"here")
            return 0

        pid = fork_detached(tell, keep_fds=(writer,))
        return f"{os.read(reader, 10).decode()} {pid > 1}"

    assert ask(bear) == "here True"


def test_what_numpy_draws_is_different_in_each_process() -> None:
    # A stand-in, with a state that a fork copies as it does that of numpy.
    class Random(types.ModuleType):
        state = 7

        def seed(self) -> None:
            self.state = int.from_bytes(os.urandom(8), "big")

    module = Random("numpy.random")
    sys.modules["numpy.random"] = module
    try:
        drawn = {ask(lambda: module.state) for _ in range(3)}
    finally:
        del sys.modules["numpy.random"]

    assert len(drawn | {"7"}) == 4
