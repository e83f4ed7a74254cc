"""The numbers: the namespace's as JSON, and with the node's as Prometheus text.

What counts the whole namespace comes from Redis and is the same from every node; what is counted by
type, queue or process comes from the node's master, and a sum over the nodes is the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from prefork_q.api.answers import Answer, Route, json_answer
from prefork_q.api.breaker import Breaker, insist
from prefork_q.api.node import Node
from prefork_q.api.reading import Environ
from prefork_q.errors import Unavailable
from prefork_q.inspector import Counts, Inspector, QueueCounts

QUEUES_SHOWN = 100
"""Queues with series of their own; the rest is one, named OTHER as with types."""
OTHER = "other"

PER_TYPE = (
    ("completed", "Attempts that succeeded, on this node."),
    ("failed", "Attempts that failed, on this node."),
    ("retried", "Failures that were followed by another attempt, on this node."),
    ("dead", "Tasks whose last attempt failed, on this node."),
)


class Metrics:
    """`GET /metrics`."""

    def __init__(self, inspector: Inspector, node: Node, breaker: Breaker) -> None:
        self._inspector = inspector
        self._node = node
        self._breaker = breaker

    def routes(self) -> list[Route]:
        return [Route("GET", "/metrics", self.show, "read", needs_redis=False)]

    def show(self, environ: Environ) -> Answer:
        accepted = environ.get("HTTP_ACCEPT", "")
        if prefers_json(accepted):
            return json_answer(totals(self._breaker.run(self._counts)))
        node = self._node.metrics()
        try:
            counts = self._breaker.run(self._counts)
        except Unavailable:
            # What the node can tell without Redis matters most just then.
            if node is None:
                raise
            counts = None
        try:
            encode, content_type = choose_encoder(accepted)
        except (TypeError, ValueError):
            # What was asked for as a version is none; the library compares it with numbers.
            encode, content_type = choose_encoder("")
        return Answer(200, encode(Families(node, counts)), content_type)

    def _counts(self) -> Counts:
        return insist(self._inspector.counts)


def prefers_json(accepted: str) -> bool:
    """Tell whether an Accept header asks for JSON rather than for a text format.

    Whoever names JSON can read it, so it wins over a text that is as welcome (`application/json, text/plain,
    */*` is what axios sends); `*/*` alone asks for nothing.
    """
    wanted: dict[str, float] = {}
    for entry in accepted.split(","):
        name, _, parameters = entry.partition(";")
        quality = 1.0
        for parameter in parameters.split(";"):
            key, _, value = parameter.strip().partition("=")
            if key.lower() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        wanted[name.strip().lower()] = quality
    text = max(wanted.get("text/plain", 0.0), wanted.get("application/openmetrics-text", 0.0))
    json = wanted.get("application/json", 0.0)
    return json > 0 and json >= text


def totals(counts: Counts) -> dict[str, Any]:
    """Return the numbers of the whole namespace."""
    total = counts.totals
    return {
        "pending": counts.pending,
        "processing": counts.processing,
        "delayed": counts.delayed,
        "dead": counts.dead,
        **{
            f"{name}_total": total.get(name, 0)
            for name in (
                "submitted", "completed", "failed", "retried", "dead", "cancelled", "crashes", "released",
                "removed",
            )
        },
        "completed_per_minute": counts.completed_per_minute,
        "failed_per_minute": counts.failed_per_minute,
        "oldest_pending_age_s": counts.oldest_pending_age or 0.0,
    }  # fmt: skip


class Families(Collector):
    """The metric families of one moment. Without `node` or `counts`, what comes from there is left out."""

    def __init__(self, node: Mapping[str, Any] | None, counts: Counts | None) -> None:
        self._node = node
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "prefork_q_build", "The version that answers.", value={"version": version("prefork-q")}
        )
        if self._counts is not None:
            yield from of_namespace(self._counts)
        if self._node is not None:
            yield from of_node(self._node)


def of_namespace(counts: Counts) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(
        "prefork_q_tasks",
        "Tasks in the namespace now; by queue as far as they wait in one, else with an empty queue.",
        labels=["state", "queue"],
    )
    ages = GaugeMetricFamily(
        "prefork_q_oldest_pending_age_seconds",
        "How long the task that waits longest has been pending; 0 if none is.",
        labels=["queue"],
    )
    for name, queues in grouped(counts.queues):
        tasks.add_metric(["pending", name], sum(queue.pending for queue in queues))
        ages.add_metric([name], max(queue.oldest_pending_age or 0.0 for queue in queues))
    for state, number in (
        ("processing", counts.processing),
        ("delayed", counts.delayed),
        ("dead", counts.dead),
    ):
        tasks.add_metric([state, ""], number)
    yield tasks
    yield ages
    yield CounterMetricFamily(
        "prefork_q_tasks_submitted",
        "Tasks submitted to the namespace.",
        value=counts.totals.get("submitted", 0),
    )


def grouped(queues: Sequence[QueueCounts]) -> list[tuple[str, list[QueueCounts]]]:
    """Return the queues that get series of their own, each alone, and all others together.

    Clients name queues. Those with the most submissions keep their place, whatever else is made.
    """
    ranked = sorted(queues, key=lambda queue: (-queue.submitted, queue.name))
    shown = sorted(ranked[:QUEUES_SHOWN], key=lambda queue: queue.name)
    groups = {queue.name: [queue] for queue in shown}
    if others := ranked[QUEUES_SHOWN:]:
        groups.setdefault(OTHER, []).extend(others)
    return list(groups.items())


def of_node(node: Mapping[str, Any]) -> Iterator[Metric]:
    bounds = [*map(floatToGoString, node["bounds"]), "+Inf"]
    for name, text in PER_TYPE:
        counter = CounterMetricFamily(f"prefork_q_tasks_{name}", text, labels=["type"])
        for type, numbers in node["types"].items():
            counter.add_metric([type], numbers[name])
        yield counter

    durations = HistogramMetricFamily(
        "prefork_q_task_duration_seconds", "How long attempts took, on this node.", labels=["type"]
    )
    for type, numbers in node["types"].items():
        durations.add_metric([type], buckets(bounds, numbers["durations"]), numbers["durations"]["sum"])
    yield durations
    waits = HistogramMetricFamily(
        "prefork_q_task_wait_seconds",
        "How long tasks were pending before they were claimed, on this node.",
        labels=["queue"],
    )
    for queue, wait in node["waits"].items():
        waits.add_metric([queue], buckets(bounds, wait), wait["sum"])
    yield waits

    workers = GaugeMetricFamily("prefork_q_workers", "Workers of this node.", labels=["state"])
    for state, number in node["workers"].items():
        workers.add_metric([state], number)
    yield workers
    restarts = CounterMetricFamily(
        "prefork_q_worker_restarts", "Workers of this node that were replaced.", labels=["cause"]
    )
    for cause, number in node["restarts"].items():
        restarts.add_metric([cause], number)
    yield restarts
    memory = GaugeMetricFamily(
        "prefork_q_worker_memory_bytes", "Memory of this node's workers.", labels=["kind", "slot"]
    )
    for worker in node["memory"]:
        for kind in ("rss", "pss"):
            memory.add_metric([kind, str(worker["slot"])], worker[f"{kind}_bytes"])
    yield memory

    yield CounterMetricFamily(
        "prefork_q_leases_expired",
        "Leases that this node's keeper found expired.",
        value=node["leases_expired"],
    )
    yield CounterMetricFamily(
        "prefork_q_stale_commits",
        "Outcomes of this node's workers that were refused: the lease was another's.",
        value=node["stale_commits"],
    )
    errors = CounterMetricFamily(
        "prefork_q_redis_errors", "Commands of this node that Redis did not carry out.", labels=["kind"]
    )
    for kind, number in node["redis_errors"].items():
        errors.add_metric([kind], number)
    yield errors


def buckets(bounds: list[str], histogram: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the cumulative buckets that Prometheus wants."""
    return list(zip(bounds, map(float, accumulate(histogram["buckets"])), strict=True))
