"""Who may use a state folder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prefork_q.errors import ConfigurationError
from prefork_q.folder import acquire_state_folder

HOLD = """
import sys, time
from pathlib import Path
from prefork_q.folder import acquire_state_folder
acquire_state_folder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(1000)
"""


def holder_of(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate(timeout=10)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    folder = acquire_state_folder(tmp_path / "a" / "b")

    assert mode(folder.path) == 0o700
    assert mode(folder.path / "master.lock") == 0o600
    folder.close()


def test_a_folder_in_use_is_refused_and_its_user_named(tmp_path: Path) -> None:
    process = holder_of(tmp_path)
    try:
        with pytest.raises(ConfigurationError, match=f"in use by another master.*pid {process.pid}"):
            acquire_state_folder(tmp_path)
    finally:
        end(process, signal.SIGTERM)


def test_a_killed_master_leaves_the_folder_free(tmp_path: Path) -> None:
    end(holder_of(tmp_path), signal.SIGKILL)

    acquire_state_folder(tmp_path).close()


def test_a_closed_folder_is_free_at_once(tmp_path: Path) -> None:
    acquire_state_folder(tmp_path).close()

    acquire_state_folder(tmp_path).close()


def test_an_empty_folder_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)

    acquire_state_folder(folder).close()

    assert mode(folder) == 0o700


def test_a_folder_with_other_files_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "theirs").touch()

    acquire_state_folder(folder).close()

    assert mode(folder) == 0o755


@pytest.mark.parametrize("its_mode", [0o1777, 0o777])
def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path, its_mode: int) -> None:
    folder = tmp_path / "public"
    folder.mkdir()
    (folder / "theirs").touch()
    folder.chmod(its_mode)

    with pytest.raises(ConfigurationError, match="writable by everybody"):
        acquire_state_folder(folder)

    assert mode(folder) == its_mode


def test_what_cannot_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match="Not a directory"):
        acquire_state_folder(tmp_path / "file" / "state")


def test_the_lock_does_not_pass_to_programs_that_are_started(tmp_path: Path) -> None:
    folder = acquire_state_folder(tmp_path)

    assert not os.get_inheritable(folder.descriptor)
    folder.close()
