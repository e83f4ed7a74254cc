"""The master is killed while a worker is being born: whatever moment that is, nobody survives it for long."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import leaks
from tests.support.household import SETTINGS, household
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("single_threaded")

ROUNDS = 15
WINDOW = 0.02
"""Seconds after the death of a worker; its heir is up after a few milliseconds."""


@pytest.mark.parametrize(
    "switches", [(), ("no_parent_death_signal",)], ids=["both ties", "the channel alone"]
)
def test_a_newborn_does_not_outlive_its_master(tmp_path: Path, switches: tuple[str, ...]) -> None:
    rng = random.Random(3)
    for turn in range(ROUNDS):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with household(folder, replace(SETTINGS, workers=1), switches=switches) as home:
            home.until_running()
            home.send(signal.SIGKILL, "worker 0")
            time.sleep(rng.uniform(0, WINDOW))
            os.kill(home.pid, signal.SIGKILL)
            home.wait()
            until(lambda master=home.pid: not leaks.session(master), 5, "an end of them all")  # type: ignore[misc]
