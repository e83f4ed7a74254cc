"""What tests of the API check of every answer."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api
from tests.support.node import Reply


def problem(reply: Reply) -> dict[str, Any]:
    """Check that an answer is a problem as RFC 9457 has it, and return it."""
    assert reply.headers["content-type"] == "application/problem+json", reply
    document: dict[str, Any] = reply.json
    assert {"type", "title", "status", "detail"} <= set(document)
    assert document["status"] == reply.status
    assert document["detail"]
    for flaw in document.get("errors", []):
        assert set(flaw) == {"pointer", "detail"}
    return document


def pages(api: Api, path: str) -> list[dict[str, Any]]:
    """Return the tasks of all pages from `path` on."""
    tasks, cursor = [], ""
    for _ in range(1_000):
        separator = "&" if "?" in path else "?"
        reply = api.http("GET", f"{path}{separator}cursor={cursor}" if cursor else path)
        assert reply.status == 200, reply
        tasks += reply.json["tasks"]
        cursor = reply.json["next"]
        if cursor is None:
            return tasks
    raise AssertionError("the pages have no end")
