"""The benchmark runs: its figures are for people, but that it measures something is for us to know."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="it starts redis-server from PATH")
def test_a_quick_run_measures_the_project_and_the_limit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "--quick", "--peers", "none"]
    done = subprocess.run(
        [*command, "--only", "limit", "submission", "drain", "--json", str(tmp_path / "run.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

    found = json.loads((tmp_path / "run.json").read_text())["found"]
    assert found["drain"]["prefork-q"]["rate"]["median"] > 0
    assert found["submission"]["prefork-q"]["bytes"]["median"] > 100
    assert found["limit"]["bare loop, 64 a call, 2 processes"]["rate"]["median"] > 0
