"""Imports go one way: down the list of layers; and the master stays free of Redis, HTTP and user code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "prefork_q"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "units", "fresh"),
    ("ids", "states", "keys", "retry", "task", "strict_json", "sink", "scripts"),
    ("events", "addresses", "journal"),
    ("option_types", "passwords"),
    ("options",),
    ("config", "places", "folder", "tokens"),
    ("ipc",),
    ("connection", "nonblocking", "outage", "sentinels"),
    ("calls",),
    ("leases", "layout"),
    ("broker",),
    ("records",),
    ("inspector", "survey", "acl"),
    ("context",),
    ("signature",),
    ("schema",),
    ("submission",),
    ("waiting", "client", "handler"),
    ("app", "target"),
    ("presentation",),
    ("control",),
    ("master",),
    ("template", "worker", "keeper", "api", "store", "watcher"),
    ("cli", "__main__"),
)
"""A module imports only from the lines above its own, and from its own line."""

PROCESSES = ("master", "template", "worker", "keeper", "api", "store", "watcher")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def noun(path: Path) -> str:
    """The first name below the package: a module or a folder."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The nouns of the package that a module imports, inside of functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "prefork_q":
                names |= {alias.name for alias in node.names if (PACKAGE / f"{alias.name}.py").exists()}
                names |= {alias.name for alias in node.names if (PACKAGE / alias.name).is_dir()}
            elif node.module.startswith("prefork_q."):
                names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("prefork_q.")}
    return names


def layer_of(name: str) -> int:
    for number, layer in enumerate(LAYERS):
        if name in layer:
            return number
    raise AssertionError(f"prefork_q/{name} is in no layer: give it a place in tests/unit/test_imports.py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    own = noun(path)
    if own == "__init__":
        return
    for other in imported(path):
        assert other == own or layer_of(other) <= layer_of(own), f"{own} imports {other}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_process_imports_another(path: Path) -> None:
    own = noun(path)
    if own in PROCESSES:
        assert not (imported(path) & set(PROCESSES) - {own}), own


def test_the_master_brings_no_client_of_redis_and_no_web_framework() -> None:
    code = "import sys, prefork_q.master.master, prefork_q.control.server\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    loaded = set(done.stdout.split())
    assert not loaded & {"redis", "bottle", "waitress", "prometheus_client", "prefork_q.app"}
