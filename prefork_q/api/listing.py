"""Pages of tasks: their parameters, and how they are answered."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping

from prefork_q.api.answers import Answer, json_answer
from prefork_q.api.problems import Problem
from prefork_q.api.reading import whole_number
from prefork_q.errors import Invalid
from prefork_q.inspector import INDEXES, PAGE_LIMIT, Cursor, Inspector
from prefork_q.keys import NAME, NAME_RULE
from prefork_q.presentation import as_json
from prefork_q.states import Status
from prefork_q.strict_json import decode

DEFAULT_LIMIT = 50


def answer_page(inspector: Inspector, status: Status | None, query: Mapping[str, str]) -> Answer:
    """Return the page that the query asks for.

    Raises:
        Problem: a parameter is wrong.
    """
    type, queue = name(query, "type"), name(query, "queue")

    def is_meant(cursor: Cursor) -> bool:
        if cursor.index not in INDEXES[status]:
            return False
        if cursor.index != "pending":
            return cursor.queue == ""
        is_place = cursor.at == "" or cursor.at.isdigit()
        return is_place and NAME.fullmatch(cursor.queue) is not None and queue in (None, cursor.queue)

    page = inspector.page(
        status,
        type=type,
        queue=queue,
        limit=whole_number(query, "limit", DEFAULT_LIMIT, 1, PAGE_LIMIT),
        cursor=read_cursor(query.get("cursor"), is_meant),
    )
    return json_answer({"tasks": [as_json(task) for task in page.tasks], "next": write_cursor(page.next)})


def name(query: Mapping[str, str], parameter: str) -> str | None:
    """Return a parameter that is the name of a type or a queue.

    Raises:
        Problem: it is no name.
    """
    text = query.get(parameter)
    if text is not None and not NAME.fullmatch(text):
        raise Problem(422, f"the parameter {parameter} is no name: {NAME_RULE}")
    return text


def write_cursor(cursor: Cursor | None) -> str | None:
    """Return a cursor as text that goes into a URL as it is."""
    if cursor is None:
        return None
    text = json.dumps([cursor.index, cursor.queue, cursor.at, cursor.after], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str | None, is_meant: Callable[[Cursor], bool]) -> Cursor | None:
    """Return the cursor that `write_cursor` made for the same listing.

    Raises:
        Problem: it is something else.
    """
    if text is None:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        fields = decode(raw, max_depth=1)
    except (binascii.Error, ValueError, Invalid):
        raise wrong_cursor() from None
    if not isinstance(fields, list) or len(fields) != 4 or not all(isinstance(one, str) for one in fields):
        raise wrong_cursor()
    cursor = Cursor(*fields)
    is_begun = cursor.at != "" or cursor.after != ""
    if (is_begun and not re.fullmatch(r"-?\d{1,18}(\.\d{1,9})?", cursor.at, re.ASCII)) or not is_meant(
        cursor
    ):
        raise wrong_cursor()
    return cursor


def wrong_cursor() -> Problem:
    return Problem(422, "the parameter cursor is not one of this listing: take it from `next` of a page")
