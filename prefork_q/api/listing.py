"""Pages of tasks: their parameters, and how they are answered."""

from __future__ import annotations

from collections.abc import Mapping

from prefork_q.api.answers import Answer, json_answer
from prefork_q.api.problems import Problem
from prefork_q.api.reading import read_cursor, whole_number, write_cursor
from prefork_q.inspector import INDEXES, PAGE_LIMIT, Cursor, Inspector
from prefork_q.keys import NAME, NAME_RULE
from prefork_q.presentation import as_json
from prefork_q.states import Status

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
