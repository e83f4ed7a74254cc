from __future__ import annotations

import os
import subprocess
import sys

from tests.support import leaks
from tests.support.until import until

SLEEP = "import time; time.sleep(60)"


def is_found(pid: int) -> bool:
    return pid in [process.pid for process in leaks.left_behind(os.environ[leaks.VARIABLE])]


def test_a_child_is_found_until_it_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        assert is_found(child.pid)
    finally:
        child.kill()
        child.wait()

    assert not is_found(child.pid)


def test_an_orphan_is_found_by_its_mark_and_can_be_ended() -> None:
    orphan = int(
        subprocess.check_output(["bash", "-c", f'"{sys.executable}" -c "{SLEEP}" >/dev/null 2>&1 & echo $!'])
    )

    assert until(lambda: is_found(orphan))

    leaks.end([process for process in leaks.left_behind(os.environ[leaks.VARIABLE]) if process.pid == orphan])

    assert not is_found(orphan)


def test_an_orphan_that_wrote_over_its_environment_is_found_by_its_session() -> None:
    titled = (
        "import setproctitle, time; setproctitle.setproctitle('x' * 4000); print(flush=True); time.sleep(60)"
    )
    leader = subprocess.Popen(
        ["bash", "-c", '"$0" -c "$1" & echo $!; wait', sys.executable, titled],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert leader.stdout
    leaks.watch_session(leader.pid)
    orphan = int(leader.stdout.readline())
    leader.stdout.readline()
    leader.kill()
    leader.wait()
    leader.stdout.close()

    assert is_found(orphan)

    os.kill(orphan, 9)
    until(lambda: not is_found(orphan))
