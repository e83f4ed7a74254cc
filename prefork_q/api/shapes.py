"""The JSON that the API takes and gives, as JSON Schema: what does not depend on the handlers."""

from __future__ import annotations

from typing import Any, Final

from prefork_q.api.problems import KINDS, PREFIX
from prefork_q.keys import NAME
from prefork_q.retry import MAX_DELAY
from prefork_q.states import Status
from prefork_q.strict_json import INT_MAX, INT_MIN
from prefork_q.submission import IDEMPOTENCY_KEY, MIN_TIMEOUT
from prefork_q.task import MAX_ATTEMPTS_LIMIT

Schema = dict[str, Any]

NAME_PATTERN: Final = f"^{NAME.pattern}$"
KEY_PATTERN: Final = f"^{IDEMPOTENCY_KEY.pattern}$"
INTEGER: Final[Schema] = {"type": "integer", "minimum": INT_MIN, "maximum": INT_MAX}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
ID: Final[Schema] = {"type": "string", "format": "uuid"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
NAMED: Final[Schema] = {"type": "string", "pattern": NAME_PATTERN}
STATUS: Final[Schema] = {"type": "string", "enum": [status.value for status in Status]}

TOTALS: Final = (
    "submitted", "completed", "failed", "retried", "dead", "cancelled", "crashes", "released", "removed",
)  # fmt: skip


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def an_object(properties: Schema, optional: Schema | None = None, **more: Any) -> Schema:
    """Return the schema of an object; `properties` are always there, `optional` ones may be."""
    schema: Schema = {"type": "object", "properties": {**properties, **(optional or {})}}
    return schema | ({"required": list(properties)} if properties else {}) | more


def options(queue: str, max_attempts: int, timeout: float | None) -> Schema:
    """Return the members of a request for a task beside type and payload; the defaults are a handler's."""
    limits: Schema = {"type": "number", "minimum": MIN_TIMEOUT, "maximum": MAX_DELAY}
    return {
        "queue": NAMED | {"default": queue},
        "delay_s": {
            "type": "number",
            "minimum": 0,
            "maximum": MAX_DELAY,
            "description": "Seconds after which it may run.",
        },
        "run_at": TIME | {"description": "When it may run, in place of delay_s; within a year."},
        "max_attempts": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_ATTEMPTS_LIMIT,
            "default": max_attempts,
        },
        "timeout_s": limits if timeout is None else limits | {"default": timeout},
        "idempotency_key": {
            "type": "string",
            "pattern": KEY_PATTERN,
            "description": "The same key with the same request again gives the same task. It is kept as long "
            "as the task: until the retention (24 hours unless configured) after its end.",
        },
    }


COMPONENTS: Final[dict[str, Schema]] = {
    "Json": {
        "description": "Any JSON of up to 64 levels; integers have 64 bits.",
        "anyOf": [
            {"type": "null"},
            {"type": "boolean"},
            INTEGER,
            {"type": "number"},
            {"type": "string"},
            {"type": "array", "items": ref("Json")},
            {"type": "object", "additionalProperties": ref("Json")},
        ],
    },
    "Accepted": an_object({"id": ID, "status": STATUS}),
    "AcceptedBatch": an_object(
        {
            "tasks": {
                "type": "array",
                "items": an_object({"id": ID, "status": STATUS}, {"replayed": {"const": True}}),
            }
        }
    ),
    "Error": an_object(
        {"type": {"type": "string"}, "message": {"type": "string"}},
        {
            "traceback": {"type": "string"},
            "cause": an_object(
                {},
                {
                    "signal": {"type": ["string", "integer", "null"]},
                    "exit_code": {"type": ["integer", "null"]},
                    "timed_out": {"type": "boolean"},
                    "peak_rss_bytes": {"type": ["integer", "null"]},
                    "stack": {"type": ["string", "null"]},
                    "oom_killed": {"const": True},
                },
                description="How the process died that ran it.",
            ),
        },
        description="Of the last attempt that failed.",
    ),
    "Task": an_object(
        {
            "id": ID,
            "type": {"type": "string"},
            "queue": {"type": "string"},
            "status": STATUS,
            "payload": {"description": "As it was submitted."},
            "attempts": COUNT | {"description": "Runs that count, the present one included."},
            "crashes": COUNT | {"description": "Deaths of a worker while it ran this task."},
            "losses": COUNT | {"description": "Leases of this task that ran out although it had started."},
            "max_attempts": COUNT,
            "created_at": TIME,
        },
        {
            "started_at": TIME,
            "finished_at": TIME,
            "run_at": TIME,
            "timeout_s": {"type": "number"},
            "result": {"description": "What the handler returned; there once it succeeded, null too."},
            "error": ref("Error"),
            "progress": an_object({}, {"fraction": {"type": "number"}, "note": {"type": "string"}}),
            "cancel_requested": {"const": True},
        },
    ),
    "Page": an_object(
        {
            "tasks": {"type": "array", "maxItems": 100, "items": ref("Task")},
            "next": {
                "type": ["string", "null"],
                "description": "The parameter cursor for the next page; null: this was the last. A page may "
                "be short before that.",
            },
        }
    ),
    "Cancelled": an_object({"id": ID, "status": STATUS}, {"cancel_requested": {"const": True}}),
    "Choice": an_object(
        {},
        {
            "type": NAMED | {"description": "Only tasks of this type."},
            "before": TIME | {"description": "Only tasks that died before."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": INT_MAX,
                "default": 1000,
                "description": "How many at most; more than 10,000 counts as 10,000.",
            },
        },
        additionalProperties=False,
    ),
    "Retried": an_object({"retried": COUNT, "more": {"type": "boolean"}}),
    "Queues": an_object(
        {
            "queues": {
                "type": "array",
                "items": an_object(
                    {
                        "name": {"type": "string"},
                        "pending": COUNT,
                        "paused": {"type": "boolean"},
                        "submitted_total": COUNT,
                        "oldest_pending_age_s": {"type": "number", "minimum": 0},
                    }
                ),
            }
        }
    ),
    "Paused": an_object({"name": {"type": "string"}, "paused": {"type": "boolean"}}),
    "Numbers": an_object(
        {
            **dict.fromkeys(("pending", "processing", "delayed", "dead"), COUNT),
            **{f"{name}_total": COUNT for name in TOTALS},
            "completed_per_minute": COUNT,
            "failed_per_minute": COUNT,
            "oldest_pending_age_s": {"type": "number", "minimum": 0},
        },
        description="Of the whole namespace, over all nodes.",
    ),
    "Worker": an_object(
        {
            "slot": COUNT,
            "pid": {"type": ["integer", "null"], "description": "null while it is down."},
            "generation": COUNT,
            "state": {"enum": ["starting", "ready", "draining", "backoff"]},
            "threads": COUNT,
            "running": {
                "type": "array",
                "items": an_object(
                    {
                        "id": ID,
                        "type": {"type": "string"},
                        "attempt": COUNT,
                        "started_at": TIME,
                        "runtime_s": {"type": "number", "minimum": 0},
                    }
                ),
            },
            **dict.fromkeys(("held", "completed", "failed", "rss_bytes", "pss_bytes", "restarts"), COUNT),
            "condition": {"enum": ["well", "busy", "deaf", "stopped", "unserved"]},
        }
    ),
    "Node": an_object(
        {
            "version": {"type": "string"},
            "node": {"type": "string"},
            "pid": COUNT,
            "state": {"enum": ["starting", "running", "quiet", "reloading", "draining"]},
            "uptime_s": {"type": "number", "minimum": 0},
            "generation": COUNT,
            "lease_s": {"type": "number"},
            "degraded": {"type": "array", "items": {"type": "string"}, "description": "What is wrong."},
            "workers": {"type": "array", "items": ref("Worker")},
            "leaving": {
                "type": "array",
                "items": ref("Worker"),
                "description": "Those that were replaced, or that there are too many of, and still drain.",
            },
            "roles": {"type": "object", "description": "template, keeper, store and api."},
            "reload": {"type": ["object", "null"], "description": "The last one, if there was one."},
            "redis": an_object(
                {
                    "reachable": {"type": "boolean"},
                    "version": {"type": ["string", "null"]},
                    "warning": {"type": ["string", "null"]},
                }
            ),
            "totals": {
                "type": "object",
                "additionalProperties": COUNT,
                "description": "Since the node's master began.",
            },
        },
        description="A node, as `prefork-q ctl status --json` shows it.",
    ),
    "Nothing": {"type": "object", "additionalProperties": False, "description": "Nothing needs to be sent."},
    "Problem": an_object(
        {
            "type": {"type": "string", "format": "uri", "enum": [PREFIX + word for word in KINDS]},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string", "description": "What to mend."},
        },
        {
            "errors": {
                "type": "array",
                "items": an_object(
                    {
                        "pointer": {"type": "string", "description": "A JSON pointer into the body."},
                        "detail": {"type": "string"},
                    }
                ),
            }
        },
        description="Problem details, RFC 9457.",
    ),
}
