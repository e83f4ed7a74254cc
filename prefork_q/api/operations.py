"""What each endpoint takes and answers, as OpenAPI says it: one entry an endpoint.

Answers that any endpoint may give (`EVERYWHERE`) are not repeated in the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from prefork_q.api.shapes import COUNT, ID, NAMED, STATUS, Schema, an_object, ref

EXAMPLE_ID: Final = "01a227de-f58a-705f-8f6c-184f97b612fe"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint. `problems` are statuses of refusals beside those of `EVERYWHERE`."""

    id: str
    summary: str
    answers: dict[int, dict[str, Any]]
    problems: tuple[int, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    body: dict[str, Any] | None = None
    tag: str = "tasks"
    description: str = ""


def answer(
    description: str,
    schema: Schema | None = None,
    *,
    headers: Schema | None = None,
    links: Schema | None = None,
) -> dict[str, Any]:
    told: dict[str, Any] = {"description": description}
    if headers:
        told["headers"] = headers
    if schema is not None:
        told["content"] = {JSON: {"schema": schema}}
    if links:
        told["links"] = links
    return told


def path_id(what: str) -> dict[str, Any]:
    return {"name": "id", "in": "path", "required": True, "schema": ID, "description": f"Of the {what}."}


def query(name: str, schema: Schema, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def links(*operations: str, of: str = "/id") -> Schema:
    """Return links to what can be done with the task whose id stands at `of` in an answer."""
    return {
        operation: {"operationId": operation, "parameters": {"id": f"$response.body#{of}"}}
        for operation in operations
    }


QUEUE_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": NAMED}
LIMIT: Final = query(
    "limit",
    {"type": "integer", "minimum": 1, "default": 50},
    "How many tasks a page has, at most; more than 100 counts as 100.",
)
CURSOR: Final = query("cursor", {"type": "string", "format": "cursor"}, "`next` of the page before.")
TYPE: Final = query("type", NAMED, "Only tasks of this type.")
QUEUE: Final = query("queue", NAMED, "Only of this queue.")
KEY_HEADER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {
        "type": "string",
        "pattern": r'^([!#-~][!-~]{0,254}|"([!#-\[\]-~]|\\["\\]){1,255}")$',
    },
    "description": "As the member idempotency_key, bare or as a quoted string.",
}
LOCATION: Final = {
    "Location": {"required": True, "schema": {"type": "string", "pattern": "^/tasks/[0-9a-f-]{36}$"}}
}
REPLAYED: Final = {
    "Idempotency-Replayed": {"required": True, "schema": {"type": "string", "enum": ["true"]}}
}
NO_BODY: Final = {"content": {JSON: {"schema": ref("Nothing")}}}
TASK_LINKS: Final = links("getTask", "cancelTask")
DEAD_LINKS: Final = links("getDeadTask", "retryDeadTask", "deleteDeadTask", of="/tasks/0/id")

EVERYWHERE: Final = (400, 414, 421, 422, 431, 500, 503)
"""Statuses of refusals that any request may meet."""
NEEDING_TOKENS: Final = (401, 403)

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/tasks"): Operation(
        "submitTask",
        "Submit a task.",
        {
            202: answer("It is stored.", ref("Accepted"), headers=LOCATION, links=TASK_LINKS),
            200: answer(
                "The same request came before with this idempotency key; this is its task.",
                ref("Accepted"),
                headers=LOCATION | REPLAYED,
            ),
        },
        problems=(403, 413, 415),
        parameters=(KEY_HEADER,),
        body={"required": True, "content": {JSON: {"schema": ref("NewTask")}}},
    ),
    ("POST", "/tasks/batch"): Operation(
        "submitTasks",
        "Submit up to 1,000 tasks, all of them or none.",
        {202: answer("All are stored; in the order of the request.", ref("AcceptedBatch"))},
        problems=(403, 413, 415),
        body={
            "required": True,
            "content": {
                JSON: {
                    "schema": an_object(
                        {
                            "tasks": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 1000,
                                "items": ref("NewTask"),
                            }
                        },
                        additionalProperties=False,
                    )
                }
            },
        },
    ),
    ("GET", "/tasks"): Operation(
        "listTasks",
        "List tasks, the newest first.",
        {200: answer("A page.", ref("Page"))},
        parameters=(query("status", STATUS, "Only of this status."), TYPE, QUEUE, LIMIT, CURSOR),
        description="Delayed tasks come with the next due first, processing ones with the lease that ends "
        "first. Of those that succeeded or were cancelled the last 10,000 are listed.",
    ),
    ("GET", "/tasks/{id}"): Operation(
        "getTask",
        "Show a task, or wait for its end.",
        {200: answer("The task now.", ref("Task"))},
        problems=(404,),
        parameters=(
            path_id("task"),
            query(
                "wait",
                {"type": "number", "minimum": 0, "default": 0},
                "Seconds to hold the answer until the task ends; more than 60 counts as 60.",
            ),
        ),
    ),
    ("POST", "/tasks/{id}/cancel"): Operation(
        "cancelTask",
        "Cancel a task.",
        {
            200: answer("It is cancelled.", ref("Cancelled")),
            202: answer("It runs and was asked to stop; cancelled unless it succeeds.", ref("Cancelled")),
        },
        problems=(403, 404, 409, 413, 415),
        parameters=(path_id("task"),),
        body=NO_BODY,
    ),
    ("GET", "/dead"): Operation(
        "listDeadTasks",
        "List dead tasks, the newest first.",
        {200: answer("A page.", ref("Page"), links=DEAD_LINKS)},
        parameters=(TYPE, QUEUE, LIMIT, CURSOR),
        tag="dead",
    ),
    ("GET", "/dead/{id}"): Operation(
        "getDeadTask",
        "Show a dead task.",
        {200: answer("The task.", ref("Task"))},
        problems=(404,),
        parameters=(path_id("dead task"),),
        tag="dead",
    ),
    ("POST", "/dead/{id}/retry"): Operation(
        "retryDeadTask",
        "Give a dead task a new life; attempts and crashes start anew.",
        {202: answer("It is pending.", ref("Accepted"), headers=LOCATION)},
        problems=(403, 404, 413, 415),
        parameters=(path_id("dead task"),),
        body=NO_BODY,
        tag="dead",
    ),
    ("POST", "/dead/retry"): Operation(
        "retryDeadTasks",
        "Give many dead tasks a new life, the newest first.",
        {202: answer("How many are pending again, and whether there are more.", ref("Retried"))},
        problems=(403, 413, 415),
        body={"content": {JSON: {"schema": ref("Choice")}}},
        tag="dead",
    ),
    ("DELETE", "/dead/{id}"): Operation(
        "deleteDeadTask",
        "Delete a dead task.",
        {204: answer("It is gone.")},
        problems=(403, 404),
        parameters=(path_id("dead task"),),
        tag="dead",
    ),
    ("GET", "/queues"): Operation(
        "listQueues",
        "Show all queues that somebody works on, or that a task was ever submitted to.",
        {200: answer("The queues.", ref("Queues"))},
        tag="queues",
    ),
    ("POST", "/queues/{name}/pause"): Operation(
        "pauseQueue",
        "Claim nothing more from a queue; what runs goes on.",
        {200: answer("It is paused.", ref("Paused"))},
        problems=(403, 404, 413, 415),
        parameters=(QUEUE_NAME,),
        body=NO_BODY,
        tag="queues",
    ),
    ("POST", "/queues/{name}/resume"): Operation(
        "resumeQueue",
        "Claim from a paused queue again.",
        {200: answer("It is not paused.", ref("Paused"))},
        problems=(403, 404, 413, 415),
        parameters=(QUEUE_NAME,),
        body=NO_BODY,
        tag="queues",
    ),
    ("GET", "/metrics"): Operation(
        "getMetrics",
        "The numbers: as Prometheus text, or of the whole namespace as JSON if Accept asks for it.",
        {
            200: {
                "description": "The numbers now.",
                "content": {
                    "text/plain": {"schema": {"type": "string"}},
                    "application/openmetrics-text": {"schema": {"type": "string"}},
                    JSON: {"schema": ref("Numbers")},
                },
            }
        },
        tag="service",
    ),
    ("GET", "/node"): Operation(
        "getNode",
        "Show the node that this API belongs to: its workers, and what each runs.",
        {200: answer("As `prefork-q ctl status --json` shows it.", ref("Node"))},
        problems=(404,),
        tag="service",
        description="404 if this API runs without a node; 503 if the node's master does not answer.",
    ),
    ("GET", "/"): Operation(
        "getDashboard",
        "The dashboard: a page for a browser, without any data in it.",
        {200: {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}}},
        tag="service",
    ),
    ("GET", "/healthz"): Operation(
        "getHealth",
        "Does the process answer?",
        {200: answer("It does.", an_object({"status": {"const": "ok"}}))},
        tag="service",
    ),
    ("GET", "/readyz"): Operation(
        "getReadiness",
        "Is Redis reached and a worker ready?",
        {200: answer("Yes.", an_object({"status": {"const": "ready"}, "workers": COUNT}))},
        tag="service",
        description="503 if not.",
    ),
    ("GET", "/openapi.json"): Operation(
        "getOpenApi",
        "This document.",
        {200: answer("An OpenAPI document, version 3.1.", an_object({"openapi": {"const": "3.1.0"}}))},
        tag="service",
    ),
}

SAMPLES: Final[dict[str, Any]] = {
    "Accepted": {"id": EXAMPLE_ID, "status": "pending"},
    "Cancelled": {"id": EXAMPLE_ID, "status": "cancelled"},
    "Retried": {"retried": 3, "more": False},
    "Choice": {"before": "2026-11-29T15:00:00Z", "limit": 100},
    "Paused": {"name": "default", "paused": True},
    "Problem": {
        "type": "urn:prefork-q:problem:invalid",
        "title": "A value is wrong",
        "status": 422,
        "detail": "/max_attempts: a whole number from 1 to 1,000",
        "errors": [{"pointer": "/max_attempts", "detail": "a whole number from 1 to 1,000"}],
    },
}
"""Examples of components that do not depend on the handlers."""
