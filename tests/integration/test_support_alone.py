from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.usefixtures("single_threaded")


def test_a_test_that_forks_runs_with_one_thread() -> None:
    assert len(os.listdir("/proc/self/task")) == 1
