"""Requests for tasks: from JSON to submissions, or to all that is to be mended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from prefork_q.api.problems import FLAWS_SHOWN, Flaw, Problem
from prefork_q.api.reading import instant, pointer
from prefork_q.errors import Invalid, InvalidPayload, TooLarge
from prefork_q.handler import Handler
from prefork_q.submission import NewTask, prepare
from prefork_q.task import Submission

Handlers = Mapping[str, Handler[..., Any]]
BATCH_LIMIT: Final = 1_000
NAMES_SHOWN: Final = 20


def _not_null(value: object) -> object:
    if value is None:
        raise ValueError("null is no value: leave the member out")
    return value


def _instant(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("write date, time and zone as a string: 2026-11-29T15:00:00Z")
    return instant(value)


NotNull = BeforeValidator(_not_null)


class TaskRequest(BaseModel):
    """The body of `POST /tasks`, and an entry of a batch: its members and their types. Times in seconds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    type: str
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: Annotated[str | None, NotNull] = None
    delay_s: Annotated[float | None, NotNull] = None
    run_at: Annotated[float | None, BeforeValidator(_instant), NotNull] = None
    max_attempts: Annotated[int | None, NotNull] = None
    timeout_s: Annotated[float | None, NotNull] = None
    idempotency_key: Annotated[str | None, NotNull] = None


MEMBERS: Final = TaskRequest.model_fields.keys()
UNKNOWN: Final = f"unknown member; known: {', '.join(MEMBERS)}"


class Reader:
    """Turns requests into submissions for the handlers that are known. `payload_limit` in bytes of JSON."""

    def __init__(self, handlers: Handlers, payload_limit: int) -> None:
        self._handlers = handlers
        self._payload_limit = payload_limit

    def single(self, document: object, key: str | None) -> Submission:
        """Return the submission that `document` asks for; `key` is that of the request's header.

        Raises:
            Problem: something is to be mended.
            TooLarge: the payload is.
        """
        flaws: list[Flaw] = []
        submission = self._read(document, key, flaws)
        if submission is None:
            raise Problem(422, summary(flaws), flaws, kind=kind_of(flaws[0]))
        return submission

    def batch(self, document: object) -> list[Submission]:
        """Return the submissions that `{tasks: [...]}` asks for.

        Raises:
            Problem: something is to be mended in at least one; the pointers begin with its index.
            TooLarge: a payload is.
        """
        if not isinstance(document, dict) or set(document) != {"tasks"}:
            detail = "a batch is an object with the one member tasks"
            raise Problem(422, detail, [Flaw("", detail)])
        entries = document["tasks"]
        if not isinstance(entries, list) or not 1 <= len(entries) <= BATCH_LIMIT:
            detail = f"tasks is an array of 1 to {BATCH_LIMIT:,} entries"
            raise Problem(422, detail, [Flaw("/tasks", detail)])
        flaws: list[Flaw] = []
        submissions = []
        for index, entry in enumerate(entries):
            found: list[Flaw] = []
            try:
                submission = self._read(entry, None, found)
            except TooLarge as error:
                raise TooLarge(f"nothing was submitted: {pointer('tasks', index)}: {error}") from None
            if submission is not None:
                submissions.append(submission)
            flaws += [Flaw(pointer("tasks", index) + flaw.pointer, flaw.detail) for flaw in found]
            if len(flaws) >= FLAWS_SHOWN:
                break
        if flaws:
            raise Problem(422, f"nothing was submitted: {summary(flaws)}", flaws)
        return submissions

    def _read(self, document: object, key: str | None, flaws: list[Flaw]) -> Submission | None:
        """Return a submission; None if there was something to add to `flaws`."""
        if not isinstance(document, dict):
            flaws.append(Flaw("", "a task is asked for with a JSON object"))
            return None
        # Not left to pydantic, which keeps more than a kilobyte for each.
        unknown = islice((name for name in document if name not in MEMBERS), FLAWS_SHOWN)
        if found := [Flaw(pointer(name), UNKNOWN) for name in unknown]:
            flaws += found
            return None
        try:
            request = TaskRequest.model_validate(document)
        except ValidationError as error:
            flaws += [_flaw(problem) for problem in error.errors(include_url=False, include_input=False)]
            return None
        handler = self._handlers.get(request.type)
        if handler is None:
            flaws.append(Flaw("/type", self._unknown(request.type), "unknown-type"))
            return None
        if key is not None and request.idempotency_key not in (None, key):
            flaws.append(Flaw("/idempotency_key", "the header Idempotency-Key says another key: give one"))
            return None
        try:
            submission = prepare(_with_policy(request, handler, key), payload_limit=self._payload_limit)
            handler.validate(submission.body)
        except InvalidPayload as error:
            flaws += [Flaw(*flaw) for flaw in error.errors] or [Flaw(error.pointer, error.detail)]
            return None
        except Invalid as error:
            flaws.append(Flaw(error.pointer, error.detail))
            return None
        return submission

    def _unknown(self, type: str) -> str:
        known = ", ".join(sorted(self._handlers)[:NAMES_SHOWN])
        more = ", ..." if len(self._handlers) > NAMES_SHOWN else ""
        return f"no handler is registered for the type {type[:100]!r}; known: {known or 'none'}{more}"


def _with_policy(request: TaskRequest, handler: Handler[..., Any], key: str | None) -> NewTask:
    """Return the task that is asked for; what the request leaves out is as its handler says."""
    asked = {"queue": request.queue, "max_attempts": request.max_attempts, "timeout": request.timeout_s}
    return NewTask(
        request.type,
        request.payload,
        queue=handler.queue if request.queue is None else request.queue,
        delay=request.delay_s,
        run_at=request.run_at,
        max_attempts=handler.max_attempts if request.max_attempts is None else request.max_attempts,
        timeout=handler.timeout if request.timeout_s is None else request.timeout_s,
        idempotency_key=key if request.idempotency_key is None else request.idempotency_key,
        filled_in=[name for name, value in asked.items() if value is None],
    )


def kind_of(flaw: Flaw) -> str:
    """Return the kind of problem that this flaw makes of a request for one task."""
    if flaw.kind:
        return flaw.kind
    return "invalid-payload" if flaw.pointer.partition("/payload")[:2] == ("", "/payload") else "invalid"


def summary(flaws: Sequence[Flaw]) -> str:
    """Return what to mend in one sentence."""
    first = flaws[0]
    least = "at least " if len(flaws) >= FLAWS_SHOWN else ""
    others = f" (and {least}{len(flaws) - 1} more)" if len(flaws) > 1 else ""
    return f"{first.pointer or 'the body'}: {first.detail}{others}"


def _flaw(problem: Any) -> Flaw:
    return Flaw(pointer(*problem["loc"]), problem["msg"].removeprefix("Value error, "))
