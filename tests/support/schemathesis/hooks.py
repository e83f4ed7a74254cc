"""What schemathesis cannot know of the API from its description. Named by SCHEMATHESIS_HOOKS.

- A wait is short: nobody works on the tasks.
- A time is within a year, which a schema cannot say.
- Whole numbers are written without a fraction: for JSON Schema 7.0 is one, here it is not.
- An idempotency key is used for one request, and the header's agrees with the body's.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import schemathesis
from hypothesis import strategies as st

NUMBERS = itertools.count()
NOW = datetime.now(UTC).replace(tzinfo=None)

schemathesis.openapi.format(
    "date-time",
    st.datetimes(NOW - timedelta(days=10_000), NOW + timedelta(days=300)).map(
        lambda at: f"{at.isoformat()}Z"
    ),
)
schemathesis.openapi.format("cursor", st.just("WyJkZWFkIiwiIiwiIiwiIl0"))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    query = case.query
    if query and isinstance(query.get("wait"), (int, float)):
        query["wait"] = min(query["wait"], 0.01)
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(case.body, dict):
        return
    case.body = whole(case.body)
    has_own = "idempotency_key" in case.body
    if has_own and case.headers:
        case.headers.pop("Idempotency-Key", None)
    elif case.headers and "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = f"header-{next(NUMBERS)}"
    for task in [case.body, *case.body.get("tasks", [])]:
        if "idempotency_key" in task:
            task["idempotency_key"] = f"body-{next(NUMBERS)}"


def whole(value: Any) -> Any:
    """Return a value with 7 in place of 7.0, wherever it stands."""
    if isinstance(value, dict):
        return {name: whole(member) for name, member in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
