"""The demonstration, as a newcomer runs it: `bin/demo`."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import leaks
from tests.support.until import until

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "bin" / "demo"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with names and files of all kinds, two of which cannot be used."""
    tree = tmp_path / "tree"
    (tree / "sub folder" / "deep").mkdir(parents=True)
    (tree / "empty").touch()
    (tree / "no newline at the end").write_bytes(b"one\ntwo")
    (tree / "sub folder" / "ünïcode-✓.txt").write_text("ä\n" * 1000, encoding="utf-8")
    (tree / "sub folder" / "[red]\nline\x1b[31m").write_bytes(b"x\n")
    (tree / "sub folder" / "deep" / "random").write_bytes(os.urandom(300_000))
    (tree / "link").symlink_to("empty")
    (tree / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "broken link").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    return tree


def run_demo(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEMO), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=110, check=False
    )


def service_of(output: str) -> int:
    """Return the pid of the service's master, which leads the session of all its processes."""
    found = re.search(r"^The service runs: pid (\d+),", output, re.MULTILINE)
    assert found, output
    return int(found[1])


def test_every_file_becomes_a_succeeded_task_with_the_right_result(tree: Path, tmp_path: Path) -> None:
    ran = run_demo(tree, "--json", "out.json", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert leaks.session(service_of(ran.stdout)) == []
    assert "2 skipped" in ran.stdout
    assert "\x1b" not in ran.stdout
    out = json.loads((tmp_path / "out.json").read_text())
    files = {str(path): path for path in tree.rglob("*") if path.is_file() and not path.is_fifo()}
    assert (out["tasks"], out["succeeded"], out["dead"]) == (len(files), len(files), 0)
    assert out["seconds"] > 0
    assert {result["path"] for result in out["results"]} == set(files)
    for result in out["results"]:
        content = files[result["path"]].read_bytes()
        assert result == {
            "path": result["path"],
            "bytes": len(content),
            "lines": content.count(b"\n"),
            "sha256": hashlib.sha256(content).hexdigest(),
            "compressed_bytes": len(lzma.compress(content, preset=1)),
        }


def test_a_file_that_cannot_be_read_is_told_and_fails_the_demonstration(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "good").write_bytes(b"x\n")
    (tree / "bad").symlink_to("/proc/self/mem")  # it opens, and its first byte cannot be read

    ran = run_demo(tree, "--json", tmp_path / "out.json", cwd=tmp_path)

    assert ran.returncode == 1
    assert re.search(r"bad.*dead.*3.*OSError", ran.stdout)
    out = json.loads((tmp_path / "out.json").read_text())
    assert (out["tasks"], out["succeeded"], out["dead"]) == (2, 1, 1)
    assert [Path(result["path"]).name for result in out["results"]] == ["good"]
    assert leaks.session(service_of(ran.stdout)) == []


class Running(NamedTuple):
    """A demonstration over the whole standard library, where it writes to, and where its files are."""

    process: subprocess.Popen[bytes]
    output: Path
    folder: Path

    def wait_for(self, pattern: str) -> None:
        """Wait for a line of its output."""
        until(lambda: self.process.poll() is not None or re.search(pattern, self.told(), re.MULTILINE), 60)
        assert self.process.poll() is None, self.told()

    def told(self) -> str:
        return self.output.read_text()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    output = tmp_path / "output"
    # Not below tmp_path: the path of a Unix socket has to be short.
    with tempfile.TemporaryDirectory() as folder, output.open("wb") as file:
        environ = os.environ | {"TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen([str(DEMO)], env=environ, stdout=file, stderr=file, start_new_session=True)
        leaks.watch_session(process.pid)
        yield Running(process, output, Path(folder))
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_the_service_cleanly(running: Running, number: signal.Signals) -> None:
    running.wait_for(r"^[\d,]+ of [\d,]+ tasks")
    master = service_of(running.told())
    leaks.watch_session(master)

    running.process.send_signal(number)

    assert running.process.wait(20) == 130, running.told()
    assert leaks.session(master) == []
    assert list(running.folder.iterdir()) == []
    assert "Traceback" not in running.told()


def test_the_service_ends_with_a_demonstration_that_is_killed(running: Running) -> None:
    running.wait_for(r"^The service runs")
    master = service_of(running.told())
    leaks.watch_session(master)

    running.process.kill()

    until(lambda: leaks.session(master) == [], 20, "an end of the service")


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], [".", "--json", "nosuch/out.json"]])
def test_wrong_usage_is_told_before_anything_starts(tmp_path: Path, arguments: list[str]) -> None:
    ran = run_demo(*arguments, cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (2, "")


def test_a_tree_without_a_file_is_wrong_usage(tmp_path: Path) -> None:
    ran = run_demo(tmp_path, cwd=tmp_path)

    assert ran.returncode == 2
    assert "no file" in ran.stderr
