"""docs/deploy.md: its commands, word for word, on an empty server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.systemd import System, docker, wheelhouse
from tests.support.until import until

pytestmark = pytest.mark.timeout(300)

GUIDE = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
INSTALL, LOOK = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """Split a block of shell into its commands; a here-document belongs to the command before it."""
    found: list[str] = []
    is_inside = False
    for line in block.splitlines():
        if is_inside:
            found[-1] += f"\n{line}"
            is_inside = line != "END"
        elif line:
            found.append(line)
            is_inside = "<<'END'" in line
    return found


def test_the_guide_takes_ten_commands() -> None:
    assert len(commands(INSTALL)) == 10


def test_the_guides_commands_make_a_running_service(empty_server: System) -> None:
    # In place of the package index, which is out of reach.
    docker("cp", f"{wheelhouse()}/.", f"{empty_server.name}:/wheelhouse")

    for command in commands(INSTALL):
        empty_server.sh(f"set -e\n{command}", timeout=180)

    assert empty_server.run("systemctl is-active prefork-q").stdout.strip() == "active"
    until(lambda: "workers" in empty_server.show("prefork-q", "StatusText"), 5, "the sentence")
    status, submit, ready, verify = commands(LOOK)
    assert re.search(r'Status: "\d+/\d+ workers, [\d,]+ tasks/s, [\d,]+ pending"', empty_server.sh(status))
    assert empty_server.sh(submit).strip() == "4"
    empty_server.sh(ready)
    assert "failed" not in empty_server.sh(verify)
    # What Redis keeps was said for its next start too.
    empty_server.sh("systemctl restart redis-server")
    assert empty_server.sh("redis-cli CONFIG GET appendonly").split() == ["appendonly", "yes"]


def test_every_unit_and_file_that_the_guide_names_is_there() -> None:
    units = Path(__file__).parents[2] / "systemd"
    for name in re.findall(r"/(prefork-q[\w@.-]*\.(?:service|socket))", GUIDE):
        assert (units / name).exists(), name


def test_every_command_of_ours_in_the_guide_exists() -> None:
    called = set(re.findall(r"`(?:…|prefork-q) ((?:ctl|dead|task|queue) [a-z]+|check|systemd)\b", GUIDE))
    assert len(called) > 4
    for words in called:
        done = subprocess.run(
            [sys.executable, "-m", "prefork_q", *words.split(), "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
