"""Where the files of a node stand when nobody says otherwise: systemd's folders, else the current one."""

from __future__ import annotations

import os
from collections.abc import Mapping


def default_state_dir(environ: Mapping[str, str]) -> str:
    """Return the state folder: the one that systemd gives, else `.prefork-q`."""
    return _first(environ, "STATE_DIRECTORY") or ".prefork-q"


def default_ctl_socket(environ: Mapping[str, str], state_dir: str) -> str:
    """Return the control socket: in the run-time folder that systemd gives, else in the state folder."""
    return os.path.join(_first(environ, "RUNTIME_DIRECTORY") or state_dir, "ctl.sock")


def credential(environ: Mapping[str, str], name: str) -> str | None:
    """Return the file of a credential that systemd has passed to this service, if there is one of that name
    (LoadCredential= in systemd.exec(5))."""
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    path = os.path.join(folder, name)
    return path if folder and os.path.isfile(path) else None


def _first(environ: Mapping[str, str], variable: str) -> str:
    # systemd lists several folders with colons between them; the first is ours.
    return environ.get(variable, "").split(":")[0]
