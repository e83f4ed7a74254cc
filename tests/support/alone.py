"""Tests that fork need a process with one thread, and a process of pytest-xdist has two.

A test that uses the fixture `single_threaded` is run by a pytest of its own wherever there are more threads;
for a whole file: `pytestmark = pytest.mark.usefixtures("single_threaded")`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURE = "single_threaded"
TIMEOUT = 110.0
"""Seconds; under the limit of a test, so that the output of the other pytest is shown."""


def needs_its_own_process(test: pytest.Function) -> bool:
    return FIXTURE in test.fixturenames and len(os.listdir("/proc/self/task")) > 1


def run_alone(test: pytest.Function, folder: Path) -> None:
    """Run the test in another pytest and fail with its output if it fails there."""
    words = ["-p", "pytest_timeout", "-p", "no:cacheprovider", "-q", "--basetemp", str(folder)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, test.nodeid],
        cwd=test.config.rootpath,
        # Plugins and the look for a Docker engine take longer than such a test.
        env=environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PREFORK_Q_TEST_DOCKER": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"in a process of its own (exit code {done.returncode}):\n{done.stdout}", pytrace=False)
    if " skipped" in done.stdout:
        pytest.skip(done.stdout)
