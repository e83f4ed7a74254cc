"""Tasks: submit, show, wait, list, cancel."""

from __future__ import annotations

from collections.abc import Sequence

from prefork_q.api.answers import Answer, Route, json_answer
from prefork_q.api.breaker import insist
from prefork_q.api.endings import Endings
from prefork_q.api.gathering import Gathering
from prefork_q.api.listing import answer_page
from prefork_q.api.problems import Flaw, Problem
from prefork_q.api.queues import NO_BODY
from prefork_q.api.reading import Environ, pointer, read_json, read_key, read_options, read_query, seconds
from prefork_q.api.submissions import Reader
from prefork_q.broker import Broker
from prefork_q.errors import IdempotencyConflict
from prefork_q.ids import is_id
from prefork_q.inspector import Inspector
from prefork_q.presentation import as_json
from prefork_q.states import Status
from prefork_q.task import Submission, Submitted, TaskRecord

MAX_WAIT = 60.0
"""Seconds that an answer is held, at most."""


class Tasks:
    """`/tasks`. Bodies of up to `single_limit` bytes are read for one task, `batch_limit` for a batch."""

    def __init__(
        self,
        broker: Broker,
        inspector: Inspector,
        endings: Endings,
        reader: Reader,
        *,
        single_limit: int,
        batch_limit: int,
    ) -> None:
        self._broker = broker
        self._inspector = inspector
        self._endings = endings
        self._reader = reader
        self._gathering = Gathering(self._submit)
        self._single_limit = single_limit
        self._batch_limit = batch_limit

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/tasks", self.submit, "submit"),
            Route("POST", "/tasks/batch", self.submit_batch, "submit"),
            Route("GET", "/tasks", self.page, "read"),
            Route("GET", "/tasks/<id:re:(?!batch$)[^/]+>", self.show, "read"),
            Route("POST", "/tasks/<id>/cancel", self.cancel, "admin"),
        ]

    def submit(self, environ: Environ) -> Answer:
        key = read_key(environ)
        document = read_json(environ, self._single_limit)
        submission = self._reader.single(document, key)
        if submission.idempotency_key is None:
            submitted = self._gathering.submit(submission)
        else:
            (submitted,) = self._submit([submission])
        headers = [("Location", f"/tasks/{submitted.id}")]
        if submitted.is_replayed:
            headers.append(("Idempotency-Replayed", "true"))
        told = {"id": submitted.id, "status": submitted.status}
        return json_answer(told, 200 if submitted.is_replayed else 202, headers, id=submitted.id)

    def submit_batch(self, environ: Environ) -> Answer:
        """All of them or none."""
        if environ.get("HTTP_IDEMPOTENCY_KEY") is not None:
            detail = "a batch has no key of its own: give its entries the member idempotency_key"
            raise Problem(422, detail, [Flaw("", detail)])
        submissions = self._reader.batch(read_json(environ, self._batch_limit))
        try:
            answers = self._submit(submissions)
        except IdempotencyConflict as error:
            place = pointer("tasks", error.index, "idempotency_key")
            raise Problem(
                422,
                f"nothing was submitted: {place}: {error.detail}",
                [Flaw(place, error.detail)],
                kind="idempotency-conflict",
            ) from None
        told = [entry(submitted) for submitted in answers]
        return json_answer({"tasks": told}, 202, tasks=len(told), first=told[0]["id"], last=told[-1]["id"])

    def show(self, environ: Environ, id: str) -> Answer:
        """The task now, or when it has ended if the client wants to wait."""
        patience = seconds(read_query(environ, ("wait",)), "wait", MAX_WAIT)
        task = self._task(id)
        if patience > 0 and not task.status.has_ended:
            is_gone = environ.get("waitress.client_disconnected", lambda: False)
            self._endings.wait(id, patience, is_gone)
            task = self._task(id)
        return json_answer(as_json(task))

    def page(self, environ: Environ) -> Answer:
        query = read_query(environ, ("status", "type", "queue", "limit", "cursor"))
        status = query.get("status")
        if status is not None and status not in Status.__members__.values():
            raise Problem(422, f"the parameter status is one of {', '.join(Status)}")
        return answer_page(self._inspector, Status(status) if status else None, query)

    def cancel(self, environ: Environ, id: str) -> Answer:
        """At once if it does not run; else it is asked to stop, and is cancelled unless it succeeds first."""
        read_options(environ, NO_BODY, ())
        task = self._task(id)
        word = "ended" if task.status.has_ended else insist(lambda: self._broker.cancel(id))
        if word == "missing":
            raise no_task(id)
        if word == "ended":
            raise Problem(409, f"the task has ended: it is {self._task(id).status}")
        if word == "requested":
            return json_answer({"id": id, "status": Status.PROCESSING, "cancel_requested": True}, 202)
        return json_answer({"id": id, "status": Status.CANCELLED})

    def _task(self, id: str) -> TaskRecord:
        task = insist(lambda: self._inspector.get(id)) if is_id(id) else None
        if task is None:
            raise no_task(id)
        return task

    def _submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        # The same ids: if the first call did arrive, a second finds its tasks and stores nothing.
        return insist(lambda: self._broker.submit(submissions))


def entry(submitted: Submitted) -> dict[str, object]:
    """Return what a batch's answer says of one task."""
    told: dict[str, object] = {"id": submitted.id, "status": submitted.status}
    if submitted.is_replayed:
        told["replayed"] = True
    return told


def no_task(id: str) -> Problem:
    return Problem(404, f"there is no task {id[:100]!r}; ended ones are kept for the retention only")
