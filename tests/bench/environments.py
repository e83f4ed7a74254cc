"""A virtual environment a peer, with pinned versions, in a cache folder outside of the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.bench.contenders import PROJECT

REQUIREMENTS = Path(__file__).with_name("requirements")
SHOWN = {"taskiq": ("taskiq", "taskiq-redis"), "bullmq-node": ("bullmq",)}


def cache_folder() -> Path:
    """Return where environments are kept: $PREFORK_Q_BENCH_CACHE, else a folder of the user's cache."""
    named = os.environ.get("PREFORK_Q_BENCH_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prefork-q-bench"


def environment(library: str) -> Path:
    """Return the environment of a library, made if it is missing or its requirements have changed.

    Raises:
        subprocess.CalledProcessError, FileNotFoundError: it cannot be installed here.
    """
    if library == PROJECT:
        return Path(sys.prefix)
    if library == "bullmq-node":
        return _node_environment()
    requirements = REQUIREMENTS / f"{library}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"{library}-{digest}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--requirement", str(requirements)], check=True, stderr=subprocess.DEVNULL)
        (folder / "done").touch()
    return folder


def _node_environment() -> Path:
    if shutil.which("npm") is None:
        raise FileNotFoundError("npm is not installed")
    requirements = REQUIREMENTS / "bullmq-node.json"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"bullmq-node-{digest}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(requirements, folder / "package.json")
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)
        (folder / "done").touch()
    return folder


def versions(library: str) -> str:
    """Return the versions of a library that are pinned, to be shown."""
    if library == PROJECT:
        return f"prefork-q {version('prefork-q')}"
    if library == "bullmq-node":
        text = (REQUIREMENTS / "bullmq-node.json").read_text()
        return "bullmq " + text.split('"bullmq": "')[1].split('"')[0]
    pins = dict(
        line.split("==") for line in (REQUIREMENTS / f"{library}.txt").read_text().split() if "==" in line
    )
    return ", ".join(f"{name} {pins[name]}" for name in SHOWN.get(library, (library,)))
