"""What systemd says of a unit: asked with `systemctl show`, where there is one. Never waits for long."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from prefork_q.config import Config
from prefork_q.events import Events

TIMEOUT: Final = 2.0
STOP_MARGIN: Final = 2.0
"""Seconds that a stop may take beyond the drain timeout: one is promised, one is for a busy machine."""
UNIT_MARGIN: Final = 5.0
"""Seconds that our units give beyond the drain timeout."""

SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|w|month|y)?")
SECONDS: Final = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0,
    "month": 2_629_800.0, "y": 31_557_600.0,
}  # fmt: skip


class Unit(NamedTuple):
    """A unit's name, and whether it belongs to a user's own manager."""

    name: str
    is_users: bool = False


def own_unit(cgroups: str) -> Unit | None:
    """Return the service that a process runs in, by its /proc/PID/cgroup; None if in none."""
    for line in cgroups.splitlines():
        parts = line.partition(":")[2].partition(":")[2].split("/")
        if parts[-1].endswith(".service"):
            return Unit(parts[-1], any(part.startswith("user@") for part in parts[:-1]))
    return None


def properties(unit: Unit, names: Sequence[str]) -> dict[str, str]:
    """Return these properties of a unit as text; none if systemd cannot be asked."""
    command = ["systemctl", *(["--user"] if unit.is_users else []), "show", "--property", ",".join(names)]
    try:
        done = subprocess.run(
            [*command, "--", unit.name], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def parse_span(text: str) -> float:
    """Return a time span as systemd writes it ("1min 30s", "infinity") in seconds.

    Raises:
        ValueError: it is none.
    """
    if text.strip() == "infinity":
        return float("inf")
    if not re.fullmatch(rf"(?:{SPAN.pattern}\s*)+", text.strip()):
        raise ValueError(f"no time span: {text!r}")
    return sum(float(number) * SECONDS[unit] for number, unit in SPAN.findall(text))


def stop_troubles(shown: Mapping[str, str], drain_timeout: float) -> list[str]:
    """Return what is wrong with how a unit's stop is limited; `shown` are its properties."""
    troubles = []
    try:
        limit = parse_span(shown.get("TimeoutStopUSec", "infinity"))
    except ValueError:
        limit = float("inf")
    if limit < drain_timeout + STOP_MARGIN:
        troubles.append(
            f"TimeoutStopSec is {limit:g} s and the drain timeout {drain_timeout:g} s: running tasks will be "
            f"killed; set TimeoutStopSec={drain_timeout + UNIT_MARGIN:g}"
        )
    kill_mode = shown.get("KillMode", "mixed")
    if kill_mode != "mixed":
        troubles.append(
            f"KillMode is {kill_mode}: set KillMode=mixed, so that what handlers have started lives through "
            "the drain and nothing is left after it"
        )
    return troubles


def warn_of_limits(config: Config, events: Events) -> None:
    """Tell the log if the service manager would end this process before its drain is over. At the start, in
    the master, before it has children."""
    try:
        unit = own_unit(Path("/proc/self/cgroup").read_text())
    except OSError:
        return
    if unit is None:
        return
    for trouble in stop_troubles(properties(unit, ("TimeoutStopUSec", "KillMode")), config.drain_timeout):
        events.emit("unit_disagrees", level="warning", unit=unit.name, detail=trouble)
