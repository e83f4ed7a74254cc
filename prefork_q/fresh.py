"""Imports that see the code as it is on disk now, also right after it was written.

Python takes cached bytecode for that of a source whose size and whose time of change, in whole seconds, are
those noted in it (PEP 552). An edit within the second of the one before, of the same length, would not be
seen: so nothing is cached of a source that has only just changed.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from typing import Any, Final

SETTLED: Final = 2.0
"""Seconds after which a later change has another time: file systems have coarse clocks, too."""


class FreshLoader(SourceFileLoader):
    """Loads as its base does, and caches only what has settled."""

    def set_data(self, path: str, data: Any, **options: Any) -> None:
        if time.time() - os.stat(self.path).st_mtime > SETTLED:
            super().set_data(path, data, **options)


def import_fresh() -> None:
    """Let all imports of this process from now on be such ones."""
    finder = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (FreshLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
