"""The only way to a log line: `events.emit("ready", seconds=..., worker=...)`.

- An event is a past-tense word and fields. A finished attempt is a line, a change of a
  process's life is a line with its cause, all else is at level debug. Payloads never.
- Lines are UTF-8 whatever the locale. What could break a line or steer a terminal is escaped;
  a password inside a URL is masked; a line too long for one write loses the middle of its
  longest fields.
- `attempt_lines` is on a worker's hot path: about 0.3 us a line, written many at a time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import orjson

from prefork_q.sink import Sink

__all__ = ["Events", "Format", "Level", "Outcome", "Sink", "mask_url"]

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]
Outcome = Literal["succeeded", "retrying", "dead", "released", "cancelled"]

RANK: dict[str, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
OUTCOME_LEVEL: dict[str, str] = {
    "succeeded": "info",
    "retrying": "warning",
    "dead": "error",
    "released": "info",
    "cancelled": "info",
}
ATTEMPT_LINE_LIMIT = 4096
NAME_LIMIT = 100
"""Characters of a type, queue or error type in an attempt's line."""
MESSAGE_LIMIT = 2000
"""Characters of an error's message in an attempt's line, before escaping."""

UNSAFE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What JSON leaves as it is and yet breaks lines or steers terminals: C1 controls, separators, bidi marks."""
BARE = re.compile(r"[!#-<>-\[\]-~]+")
"""A text value that needs no quotes: visible ASCII without quote, backslash and equals sign."""
SECRET_IN_URL = re.compile(r"(://[^\s/:@]*):\S*@")
SECRET_IN_QUERY = re.compile(r"(?i)([?&](?:(?:sentinel_)?password|token|secret)=)[^&\s]*")


class Events:
    """Emits events as lines to a sink.

    `process` are the fields that end each line and say who wrote it: `worker=3 gen=2 pid=4711`.
    Lines below `level` are not made. A field whose value is None is left out.
    """

    def __init__(self, sink: Sink, *, format: Format, level: Level, process: Mapping[str, object]) -> None:
        self.sink = sink
        self.format: Format = format
        self.level: Level = level
        self.process = dict(process)
        self._rank = RANK[level]
        self._is_json = format == "json"
        self._value = _json if self._is_json else _bare
        self._known_dropped = sink.dropped
        self._second: tuple[int, str] = (-1, "")
        self._names: dict[str, str] = {}
        self._suffix = self._render(self.process)
        self._lead = {
            outcome: f'Z","level":"{level}","event":"finished","id":"'
            if self._is_json
            else f"Z {level:<7} finished id="
            for outcome, level in OUTCOME_LEVEL.items()
        }
        self._tail = f"{self._suffix}}}\n" if self._is_json else f"{self._suffix}\n"

    def with_process(self, **fields: object) -> Events:
        """Return events to the same sink whose lines also carry `fields`."""
        return Events(self.sink, format=self.format, level=self.level, process={**self.process, **fields})

    def set_level(self, level: Level) -> None:
        """Make lines of this level and above from now on."""
        self.level = level
        self._rank = RANK[level]

    def is_on(self, level: Level) -> bool:
        """Whether events of `level` make a line."""
        return RANK[level] >= self._rank

    def emit(self, event: str, /, *, level: Level = "info", **fields: object) -> None:
        """Write one line. Never raises for what a field holds, nor for a sink that fails."""
        if RANK[level] >= self._rank:
            self._write([self._line(event, level, fields)])

    def lines(self, lines: Sequence[bytes]) -> None:
        """Write lines made by `attempt_line` and `attempt_lines`; empty ones are left out."""
        written = [line for line in lines if line]
        if written:
            self._write(written)

    def attempt_line(
        self,
        id: str,
        type: str,
        queue: str,
        attempt: int,
        outcome: Outcome,
        duration: float,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> bytes:
        """Return the line of a finished attempt, at most 4096 bytes; empty if its level is off.

        `duration` is in seconds. The line has the event `finished`.
        """
        if not self._is_told(outcome):
            return b""
        error = "" if error_type is None else self._error(error_type, error_message)
        text = self._attempt(id, type, queue, attempt, outcome, f"{duration * 1000:.3f}", error)
        line = text.encode()
        if len(line) > ATTEMPT_LINE_LIMIT and error_message:
            kept = len(error_message) // 2 if len(error_message) <= MESSAGE_LIMIT else MESSAGE_LIMIT // 2
            return self.attempt_line(
                id, type, queue, attempt, outcome, duration, error_type, _shortened(error_message, kept)
            )
        return line

    def attempt_lines(
        self, type: str, queue: str, attempt: int, outcome: Outcome, ended: Sequence[tuple[bytes, float]]
    ) -> list[bytes]:
        """Return the lines of attempts that ended alike and without an error, all with one time.

        `ended` has an id and a duration in seconds for each. The lines are those of `attempt_line`.
        """
        if not self._is_told(outcome):
            return []
        # What is rendered holds no control characters.
        text = self._attempt("\0", type, queue, attempt, outcome, "\1", "").replace("%", "%%")
        line = text.encode().replace(b"\0", b"%b").replace(b"\1", b"%.3f")
        return [line % (id, duration * 1000) for id, duration in ended]

    def _is_told(self, outcome: Outcome) -> bool:
        return RANK[OUTCOME_LEVEL[outcome]] >= self._rank

    def _attempt(
        self, id: str, type: str, queue: str, attempt: int, outcome: Outcome, duration_ms: str, error: str
    ) -> str:
        names = self._names
        type = names.get(type) or self._name(type)
        queue = names.get(queue) or self._name(queue)
        if self._is_json:
            return (
                f'{{"ts":"{self._now()}{self._lead[outcome]}{id}","type":{type},"queue":{queue},"attempt":{attempt}'
                f',"outcome":"{outcome}","duration_ms":{duration_ms}{error}{self._tail}'
            )
        return (
            f"{self._now()}{self._lead[outcome]}{id} type={type} queue={queue} attempt={attempt}"
            f" outcome={outcome} duration_ms={duration_ms}{error}{self._tail}"
        )

    def _write(self, lines: list[bytes]) -> None:
        sink = self.sink
        sink.write(lines)
        if sink.dropped == self._known_dropped:
            return
        # Said once the sink takes lines again; until then this line is dropped too, and counted.
        dropped = sink.dropped - self._known_dropped
        before = sink.dropped
        sink.write([self._line("lines_dropped", "warning", {"lines": dropped})])
        if sink.dropped == before:
            self._known_dropped = before
        else:
            sink.dropped = before

    def _line(self, event: str, level: str, fields: Mapping[str, object]) -> bytes:
        limit = self.sink.line_limit
        line = self._whole_line(event, level, fields)
        allowance = limit
        while len(line) > limit and allowance > 16:
            allowance //= 2
            fields = {name: _bounded(value, allowance) for name, value in fields.items()}
            line = self._whole_line(event, level, fields)
        return line

    def _whole_line(self, event: str, level: str, fields: Mapping[str, object]) -> bytes:
        body = self._render(fields)
        if self._is_json:
            text = f'{{"ts":"{self._now()}Z","level":"{level}","event":{_json(event)}{body}{self._suffix}}}\n'
        else:
            text = f"{self._now()}Z {level:<7} {_bare(event)}{body}{self._suffix}\n"
        return text.encode()

    def _render(self, fields: Mapping[str, object]) -> str:
        given = [(name, value) for name, value in fields.items() if value is not None]
        if self._is_json:
            return "".join(f",{_json(name)}:{_json(value)}" for name, value in given)
        return "".join(f" {name}={_bare(value)}" for name, value in given)

    def _error(self, error_type: str, message: str | None) -> str:
        kind = self._names.get(error_type) or self._name(error_type)
        told = ""
        if message is not None:
            # Masked before it is cut: a cut might take the @ by which a password is known.
            text = message if len(message) <= MESSAGE_LIMIT else mask_url(message[: 4 * MESSAGE_LIMIT])
            told = self._value(_shortened(text, MESSAGE_LIMIT))
        if self._is_json:
            return f',"error_type":{kind},"error_message":{told}' if told else f',"error_type":{kind}'
        return f" error_type={kind} error_message={told}" if told else f" error_type={kind}"

    def _name(self, name: str) -> str:
        if len(self._names) > 1000:
            self._names.clear()
        short = name[:NAME_LIMIT]
        rendered = self._value(short)
        self._names[name] = rendered
        return rendered

    def _now(self) -> str:
        now = time.time()
        second = int(now)
        known, text = self._second
        if known != second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            # One store of a pair, so that two threads never mix a second with another's text.
            self._second = (second, text)
        return f"{text}.{int((now - second) * 1000):03d}"


def as_text(value: object) -> str:
    """Return a field's value as text that can be encoded; passwords are masked."""
    text = value if isinstance(value, str) else _json(value)
    return mask_url(text).encode("utf-8", "backslashreplace").decode()


def mask_url(text: str) -> str:
    """Return `text` with the passwords of the URLs in it replaced by ***."""
    if "://" not in text:
        return text
    return SECRET_IN_QUERY.sub(r"\1***", SECRET_IN_URL.sub(r"\1:***@", text))


def _json(value: object) -> str:
    if isinstance(value, str):
        value = mask_url(value)
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        # Lone surrogates, integers over 64 bits, objects nested too deep.
        text = orjson.dumps(_text(value).encode("utf-8", "backslashreplace").decode()).decode()
    return text if text.isascii() and "\x7f" not in text else UNSAFE.sub(_escaped, text)


def _bare(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if BARE.fullmatch(text) and "://" not in text else _json(text)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        # A field's own __str__ is foreign code; its failure is what can be told of it.
        return f"<{type(value).__name__}: {type(error).__name__} in __str__>"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _bounded(value: object, limit: int) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else _json(value)
    return value if len(text) <= limit else _shortened(text, limit)


def _shortened(text: str, limit: int) -> str:
    """Return `text` without its middle: what failed stands at its begin, why at its end."""
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]} ... {text[len(text) - (limit - head) :]}"
