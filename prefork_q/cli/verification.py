"""Verifies installed units: are they there, as they would be written now, and does systemd accept them?"""

from __future__ import annotations

import difflib
import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from prefork_q.cli.findings import Finding
from prefork_q.cli.installation import EXAMPLE, PLACES, Installation
from prefork_q.cli.manager import Unit, properties, stop_troubles
from prefork_q.config import load
from prefork_q.errors import ConfigurationError

SERVICE: Final = "prefork-q.service"
TIMEOUT: Final = 20.0
"""Seconds for systemd-analyze."""
FIELDS: Final = {
    "config": re.compile(r"^Environment=PREFORK_Q_CONFIG=(.+)$", re.MULTILINE),
    "user": re.compile(r"^User=(.+)$", re.MULTILINE),
    "memory_max": re.compile(r"^MemoryMax=(.+)$", re.MULTILINE),
    "cpu_quota": re.compile(r"^CPUQuota=(.+)$", re.MULTILINE),
}
LISTENS: Final = re.compile(r"^ListenStream=(.+)$", re.MULTILINE)
EXPECTED: Final = {"NotifyAccess": "main", "Restart": "on-failure", "OOMPolicy": "continue"}


def inferred(output: Path | None = None) -> dict[str, Any]:
    """Return what the installed units say of the installation; nothing if there are none."""
    service, socket = (_text(_place(name, output)) for name in (SERVICE, "prefork-q.socket"))
    found: dict[str, Any] = {
        name: match[1].replace("%%", "%") for name, p in FIELDS.items() if (match := p.search(service or ""))
    }
    if "config" in found:
        found["config"] = Path(found["config"])
    if listens := LISTENS.search(socket or ""):
        found["listen"] = listens[1]
    if output is None and Path(PLACES["prefork-q.notify-reload.conf"]).exists():
        found["notify_reload"] = True
    return found


class Verification:
    """Of one installation; with `output` only of the files in that folder."""

    def __init__(self, installation: Installation, output: Path | None) -> None:
        self._installation = installation
        self._output = output

    def findings(self) -> list[Finding]:
        """Return what is well and what is not."""
        found = [*self._files(), *self._accepted()]
        if self._output is None:
            found += [*self._configuration(), *self._user(), *self._effective()]
        return found

    def _files(self) -> Iterator[Finding]:
        for name, text in self._installation.files().items():
            if name == EXAMPLE:
                continue
            path = self._path(name)
            there = _text(path)
            if there is None and name != SERVICE:
                yield Finding(name, "warning", f"{path} is not there")
            elif there is None:
                yield _failed(name, f"{path} is not there: `prefork-q systemd` writes it")
            elif there != text:
                yield _failed(name, f"{path} is not what would be written now: {_difference(there, text)}")
            else:
                yield Finding(name, "ok", str(path))
        program = self._installation.program
        if not os.access(program, os.X_OK):
            yield _failed("program", f"{program} cannot be executed")

    def _accepted(self) -> Iterator[Finding]:
        paths = [str(p) for name in PLACES if name.endswith((".service", ".socket"))
                 and (p := self._path(name)).exists()]  # fmt: skip
        if not paths:
            return
        try:
            done = subprocess.run(
                ["systemd-analyze", "verify", *paths],
                capture_output=True, text=True, timeout=TIMEOUT, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            yield Finding("verify", "warning", f"systemd-analyze cannot be asked: {error}")
            return
        said = "; ".join(line for line in (done.stdout + done.stderr).splitlines() if "prefork-q" in line)
        yield (
            _failed("verify", said) if said else Finding("verify", "ok", "systemd-analyze has no complaints")
        )

    def _configuration(self) -> Iterator[Finding]:
        path = self._installation.config
        folders = {"STATE_DIRECTORY": "/var/lib/prefork-q", "RUNTIME_DIRECTORY": "/run/prefork-q"}
        try:
            config = load({}, folders, path)
        except ConfigurationError as error:
            yield _failed("configuration", str(error))
            return
        if config.target is None:
            yield _failed("configuration", f"{path} names no handlers: set target")
        elif (
            any(one.kind == "fd" for one in config.http_addresses)
            and not self._path("prefork-q.socket").exists()
        ):
            yield _failed(
                "configuration", "http takes a socket of systemd's, and prefork-q.socket is not there"
            )
        else:
            yield Finding("configuration", "ok", str(path))

    def _user(self) -> Iterator[Finding]:
        user = self._installation.user
        try:
            pwd.getpwnam(user)
        except KeyError:
            yield _failed("user", f"there is no user {user}: `systemd-sysusers` makes it")
        else:
            yield Finding("user", "ok", user)

    def _effective(self) -> Iterator[Finding]:
        """What systemd has loaded, drop-ins included."""
        names = (
            "LoadState",
            "NeedDaemonReload",
            "Type",
            "WatchdogUSec",
            "KillMode",
            "TimeoutStopUSec",
            *EXPECTED,
        )
        shown = properties(Unit(SERVICE), names)
        if not shown:
            yield Finding("systemd", "warning", "systemctl cannot be asked")
            return
        if shown.get("LoadState") != "loaded":
            yield _failed("systemd", f"{SERVICE} is {shown.get('LoadState')}: `systemctl daemon-reload`")
            return
        troubles = stop_troubles(shown, self._installation.drain_timeout)
        if shown.get("NeedDaemonReload") == "yes":
            troubles.append("the files are newer than what systemd has read: `systemctl daemon-reload`")
        if not shown.get("Type", "").startswith("notify"):
            troubles.append(f"Type is {shown.get('Type')}: it should be notify")
        troubles += [
            f"{name} is {shown[name]}: it should be {value}"
            for name, value in EXPECTED.items()
            if shown.get(name, value) != value
        ]
        for trouble in troubles:
            yield _failed("systemd", trouble)
        if shown.get("WatchdogUSec") in ("0", "infinity"):
            yield Finding("systemd", "warning", "no WatchdogSec: a master that hangs is not restarted")
        if not troubles:
            yield Finding(
                "systemd", "ok", f"stop limit {shown.get('TimeoutStopUSec')}, {shown.get('KillMode')}"
            )

    def _path(self, name: str) -> Path:
        return _place(name, self._output)


def _place(name: str, output: Path | None) -> Path:
    return Path(PLACES[name]) if output is None else output / name


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _failed(subject: str, detail: str) -> Finding:
    return Finding(subject, "failed", detail, ConfigurationError.code)


def _difference(there: str, wanted: str) -> str:
    """Return the first place where they differ."""
    before, after = there.splitlines(), wanted.splitlines()
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            has, lacks = " ".join(before[i1:i2]).strip(), " ".join(after[j1:j2]).strip()
            return ", ".join([*([f"it has {has}"] if has else []), *([f"it lacks {lacks}"] if lacks else [])])
    return "the end of its last line"
