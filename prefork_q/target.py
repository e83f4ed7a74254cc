"""Imports what a target names: `package.module:attribute` or `path/to/file.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from prefork_q.errors import ConfigurationError
from prefork_q.fresh import FreshLoader

TRACEBACK_LIMIT = 8_000
"""Characters of a traceback that an error repeats, from its end."""


def import_target(target: str) -> tuple[ModuleType, object]:
    """Import the module or file of `target`; return it and what its attribute holds, None if it has none.

    The current folder is on the path of imports, and the folder of the file if it is one.

    Raises:
        ConfigurationError: it cannot be imported; the text holds the traceback.
    """
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        raise ConfigurationError(
            f"target {target!r}: write package.module:attribute or path/to/file.py:attribute, "
            "as in handlers:app"
        )
    is_file = place.endswith(".py") or os.sep in place
    module = _import_file(target, Path(place)) if is_file else _import_module(target, place)
    found: object = module
    for name in attribute.split("."):
        found = getattr(found, name, None)
    return module, found


def _import_module(target: str, name: str) -> ModuleType:
    _add_to_path(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"target {target!r}: there is no module {error.name} in {os.getcwd()} or installed"
            ) from None
        raise _failed(target, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(target, error) from error


def _import_file(target: str, path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        raise ConfigurationError(f"target {target!r}: there is no file {file}")
    _add_to_path(os.getcwd())
    _add_to_path(str(file.parent))
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    # Under its own name, so that what it defines can be found again by name; but never in the
    # place of another module that somebody may still want to import.
    is_free = known is None and file.stem.isidentifier() and file.stem not in sys.stdlib_module_names
    name = file.stem if is_free else f"_prefork_q_target_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=FreshLoader(name, str(file)))
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"target {target!r}: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _failed(target, error) from error
    return module


def _add_to_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _failed(target: str, error: BaseException) -> ConfigurationError:
    told = traceback.TracebackException.from_exception(error)
    # The frames of the import itself tell nobody anything.
    told.stack = traceback.StackSummary.from_list(
        frame
        for frame in told.stack
        if frame.filename not in (__file__, importlib.__file__)
        and not frame.filename.startswith("<frozen importlib")
    )
    text = "".join(told.format()).rstrip()[-TRACEBACK_LIMIT:]
    return ConfigurationError(f"target {target!r} cannot be imported:\n{text}")
