"""Where a process of the command line logs: to a file, to the journal as records, or to stderr."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prefork_q.config import Config
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events
from prefork_q.journal import JournalEvents, JournalSink, is_journal
from prefork_q.sink import Sink


def open_events(config: Config, process: Mapping[str, object]) -> Events:
    """Return the log; its sink is to be closed. It never waits for a reader: children set its patience anew.

    Where stderr is connected to the journal, and neither a file nor a form is asked for, each line is a
    record with its fields.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if config.log_file is None and config.log_format is None and is_journal(os.environ):
        try:
            journal = JournalSink.connect(patience=0.0)
        except OSError:
            # Something of that name, and nobody there: lines to stderr reach it too.
            pass
        else:
            return JournalEvents(journal, level=config.log_level, process=process)
    sink = _sink(config)
    form = config.log_format or ("text" if sink.isatty() else "json")
    return Events(sink, format=form, level=config.log_level, process=process)


def require_log_file(path: Path) -> None:
    """Check that there can be a log file of this path, without making it.

    Raises:
        ConfigurationError: its folder is not there, or it is a folder itself.
    """
    if not os.path.isdir(path.parent):
        raise ConfigurationError(f"log_file {str(path)!r}: there is no folder {path.parent}")
    if os.path.isdir(path):
        raise ConfigurationError(f"log_file {str(path)!r} is a folder")


def _sink(config: Config) -> Sink:
    if config.log_file is None:
        return Sink.stderr(patience=0.0)
    require_log_file(config.log_file)
    try:
        return Sink.file(config.log_file, patience=0.0)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"log_file {str(config.log_file)!r}: {reason}") from error
