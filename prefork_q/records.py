"""Tasks as Redis holds them: from the fields of a hash to a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from prefork_q.states import Status
from prefork_q.task import TaskRecord


def read_record(entry: list[Any]) -> TaskRecord | None:
    """Return the task of an answer of `show` or `page`; None for one that cannot be read."""
    id, body, flat = entry
    fields = dict(pairs(flat))
    try:
        return TaskRecord(
            id=id.decode(),
            type=fields[b"type"].decode(),
            queue=fields[b"queue"].decode(),
            status=Status(fields[b"status"].decode()),
            payload=_json(body) if body else None,
            attempts=int(fields.get(b"attempts", 0)),
            crashes=int(fields.get(b"crashes", 0)),
            losses=int(fields.get(b"losses", 0)),
            max_attempts=int(fields[b"max_attempts"]),
            created_at=int(fields[b"created_at"]) / 1000,
            started_at=_seconds(fields, b"started_at"),
            finished_at=_seconds(fields, b"finished_at"),
            run_at=_seconds(fields, b"run_at"),
            timeout=_seconds(fields, b"timeout_ms"),
            result=_json(fields[b"result"]) if b"result" in fields else None,
            error=_object(fields.get(b"error")),
            progress=_object(fields.get(b"progress")),
            is_cancel_requested=b"cancel" in fields,
        )
    except (KeyError, ValueError):
        # A record that somebody else has spoilt: claim sets such a task aside as corrupt.
        return None


def pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _seconds(fields: Mapping[bytes, bytes], name: bytes) -> float | None:
    return int(fields[name]) / 1000 if name in fields else None


def _json(text: bytes) -> Any:
    return orjson.loads(text)


def _object(text: bytes | None) -> dict[str, Any] | None:
    if text is None:
        return None
    value = _json(text)
    return value if isinstance(value, dict) else {"message": str(value)}
