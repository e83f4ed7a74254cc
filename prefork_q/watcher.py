"""The watcher: asks the master for a reload when the code changes on disk. Development only.

A process of its own, since the library that watches uses threads, and the master has none. It imports
none of the code that it watches.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from setproctitle import setproctitle

from prefork_q.errors import ConfigurationError
from prefork_q.events import Events
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import ChannelClosed
from prefork_q.ipc.messages import Drain, Ready, ReloadWanted

LOOK: Final = 200
"""Milliseconds between two looks at the master's channel."""
QUIET: Final = 100
"""Milliseconds without a change after which those before are told: an editor saves in several steps."""
TOLD: Final = 20
"""Paths of one change that are told."""
SUFFIXES: Final = (".py", ".pyi", ".pyx", ".so", ".lua")


def require_watchfiles() -> None:
    """Check that the library is there.

    Raises:
        ConfigurationError: it is not; the text says how to get it.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigurationError("reload needs the package watchfiles: pip install 'prefork-q[reload]'")


def folders_of(target: str) -> list[Path]:
    """Return what to watch for a target: the folder of its file, or that of its top-level package or module.

    A package that cannot be found is not an error here: the import of the handlers will say so.
    """
    place = target.rpartition(":")[0]
    if place.endswith(".py") or "/" in place:
        return [Path(place).resolve().parent]
    top = place.partition(".")[0]
    here = Path.cwd()
    if (here / top).is_dir() or (here / f"{top}.py").is_file():
        return [here]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return [here]
    if spec.submodule_search_locations is not None:
        return [Path(folder).resolve() for folder in spec.submodule_search_locations]
    return [Path(spec.origin).resolve().parent] if spec.origin else [here]


def run_watcher(birth: Birth, target: str, files: Iterable[Path], events: Events) -> int:
    """Watch until the end of the node. Entry point of the watcher's process; returns its exit code.

    Args:
        birth: what the master gave.
        target: the handlers.
        files: more files whose change matters, such as the configuration.
        events: the log.
    """
    from watchfiles import DefaultFilter, watch

    setproctitle("prefork-q: watcher")
    if not birth.introduce():
        return 0
    wanted = {path.resolve() for path in files}
    folders = list(dict.fromkeys([*folders_of(target), *(path.parent for path in wanted)]))

    class Filter(DefaultFilter):
        """Python's files, and those that were named; not the caches and hidden folders."""

        def __call__(self, change: object, path: str) -> bool:
            is_code = path.endswith(SUFFIXES) and super().__call__(change, path)  # type: ignore[arg-type]
            return is_code or Path(path) in wanted

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    channel = birth.channel
    is_told = False
    try:
        channel.send(Ready())
        for changes in watch(
            *folders, watch_filter=Filter(), step=QUIET, rust_timeout=LOOK, yield_on_timeout=True,
            raise_interrupt=False,
        ):  # fmt: skip
            if not is_told:
                # Only now: a change that was made before the watch is set up goes unseen.
                events.emit("watching", folders=[str(folder) for folder in folders])
                is_told = True
            if isinstance(channel.receive(), Drain):
                return 0
            if changes:
                paths = sorted({path for _, path in changes})
                channel.send(ReloadWanted(tuple(paths[:TOLD])))
    except ChannelClosed:
        return 0
    return 0
