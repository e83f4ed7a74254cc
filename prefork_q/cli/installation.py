"""The files that an installation needs, made of those in the package's folder `systemd`.

Those are real units, for an installation in /opt/prefork-q; for another one the words that differ are
replaced. So there is one source: what is written, what is verified and what stands in the repository.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final

from prefork_q.cli.manager import UNIT_MARGIN

PLACES: Final[Mapping[str, str]] = {
    "prefork-q.service": "/etc/systemd/system/prefork-q.service",
    "prefork-q@.service": "/etc/systemd/system/prefork-q@.service",
    "prefork-q.socket": "/etc/systemd/system/prefork-q.socket",
    "prefork-q-api.service": "/etc/systemd/system/prefork-q-api.service",
    "prefork-q-api.socket": "/etc/systemd/system/prefork-q-api.socket",
    "prefork-q.notify-reload.conf": "/etc/systemd/system/prefork-q.service.d/50-notify-reload.conf",
    "prefork-q.sysusers.conf": "/etc/sysusers.d/prefork-q.conf",
    "prefork-q.tmpfiles.conf": "/etc/tmpfiles.d/prefork-q.conf",
    "config.toml": "/etc/prefork-q/config.toml",
}
"""Where each file belongs; config.toml beside the configuration that is given."""

EXAMPLE: Final = "config.toml"
NOTIFY_RELOAD: Final = "prefork-q.notify-reload.conf"

PROGRAM: Final = "/opt/prefork-q/bin/prefork-q"
CONFIG_FOLDER: Final = "/etc/prefork-q"
USER: Final = "prefork-q"
LISTEN: Final = "127.0.0.1:8420"
"""What stands in the files for what may differ."""


def this_program() -> str:
    """Return the path of `prefork-q` in the environment that runs now."""
    return os.path.join(os.path.abspath(sys.prefix), "bin", "prefork-q")


@dataclass(frozen=True, slots=True)
class Installation:
    """What differs from one installation to another; `drain_timeout` in seconds.

    `memory_max` and `cpu_quota` are as systemd takes them, None for no limit.
    """

    program: str = field(default_factory=this_program)
    config: Path = Path(CONFIG_FOLDER, EXAMPLE)
    user: str = USER
    listen: str = LISTEN
    drain_timeout: float = 30.0
    memory_max: str | None = None
    cpu_quota: str | None = None
    notify_reload: bool = False

    def files(self) -> dict[str, str]:
        """Return the text of each file, by its name."""
        return {name: self._text(name) for name in PLACES if name != NOTIFY_RELOAD or self.notify_reload}

    def place(self, name: str) -> Path:
        """Return where a file belongs."""
        return self.config if name == EXAMPLE else Path(PLACES[name])

    @property
    def stop_limit(self) -> float:
        """What a stop may take, seconds."""
        return self.drain_timeout + UNIT_MARGIN

    def _text(self, name: str) -> str:
        text = files("prefork_q").joinpath("systemd", name).read_text("utf-8")
        text = text.replace(PROGRAM, _escaped(self.program)).replace(LISTEN, self.listen)
        # First the file and then its folder, which instances' files stand in too.
        text = text.replace(f"{CONFIG_FOLDER}/{EXAMPLE}", _escaped(str(self.config)))
        text = re.sub(rf"{CONFIG_FOLDER}(?=[/ ])", _escaped(str(self.config.parent)), text)
        for pattern in (r"^(User=).*", r"^(Group=).*", r"^(u )\S+", r"^([dz] \S+ \d+ root )prefork-q"):
            text = re.sub(pattern, rf"\g<1>{self.user}", text, flags=re.MULTILINE)
        text = re.sub(r"^TimeoutStopSec=.*", f"TimeoutStopSec={self.stop_limit:g}", text, flags=re.MULTILINE)
        for name_, value in (("MemoryMax", self.memory_max), ("CPUQuota", self.cpu_quota)):
            if value is not None:
                text = text.replace(f"#{name_}=\n", f"{name_}={value}\n")
        return text


def _escaped(path: str) -> str:
    """A path in a unit: a percent sign begins a specifier there (systemd.unit(5))."""
    return path.replace("%", "%%")
