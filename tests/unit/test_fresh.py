"""Imports see the code as it is on disk, also right after it was written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

IMPORT = """
from prefork_q.fresh import import_fresh
import_fresh()
import code_of_test
print(code_of_test.N)
"""


def imported(folder: Path) -> str:
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ.pop("PYTHONPYCACHEPREFIX", None)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=folder, capture_output=True, text=True, check=True, env=environ
    )
    return done.stdout.strip()


def caches(folder: Path) -> list[Path]:
    return list((folder / "__pycache__").glob("code_of_test.*"))


def test_code_is_cached_once_it_has_settled(tmp_path: Path) -> None:
    code = tmp_path / "code_of_test.py"
    code.write_text("N = 1")
    assert imported(tmp_path) == "1"
    assert caches(tmp_path) == []

    then = time.time() - 60
    os.utime(code, (then, then))
    assert imported(tmp_path) == "1"
    assert len(caches(tmp_path)) == 1
    assert imported(tmp_path) == "1"


def test_an_edit_within_the_second_is_seen(tmp_path: Path) -> None:
    code = tmp_path / "code_of_test.py"
    now = time.time()
    for n in ("1", "2", "3"):
        code.write_text(f"N = {n}")
        os.utime(code, (now, now))
        assert imported(tmp_path) == n
