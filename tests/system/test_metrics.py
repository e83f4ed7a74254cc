"""What Prometheus is told: the documented names, numbers that never fall and add up, and no more series."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from prefork_q.client import Client
from prefork_q.keys import Keys
from prefork_q.submission import NewTask
from tests.support.node import Node
from tests.support.server import Server
from tests.support.state import State
from tests.support.until import until

pytestmark = pytest.mark.either_server

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

NAMES: dict[str, tuple[str, set[str]]] = {
    "prefork_q_tasks": ("gauge", {"state", "queue"}),
    "prefork_q_tasks_submitted": ("counter", set()),
    "prefork_q_tasks_completed": ("counter", {"type"}),
    "prefork_q_tasks_failed": ("counter", {"type"}),
    "prefork_q_tasks_retried": ("counter", {"type"}),
    "prefork_q_tasks_dead": ("counter", {"type"}),
    "prefork_q_task_duration_seconds": ("histogram", {"type"}),
    "prefork_q_task_wait_seconds": ("histogram", {"queue"}),
    "prefork_q_oldest_pending_age_seconds": ("gauge", {"queue"}),
    "prefork_q_workers": ("gauge", {"state"}),
    "prefork_q_worker_restarts": ("counter", {"cause"}),
    "prefork_q_worker_memory_bytes": ("gauge", {"kind", "slot"}),
    "prefork_q_leases_expired": ("counter", set()),
    "prefork_q_stale_commits": ("counter", set()),
    "prefork_q_redis_errors": ("counter", {"kind"}),
    "prefork_q_build": ("info", {"version"}),
}
"""Families with their types and labels. A counter's samples end in _total, an info's in _info."""
SUFFIXES = {
    "gauge": ("",), "counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_count", "_sum"),
}  # fmt: skip
SAMPLES = {name + suffix for name, (kind, _) in NAMES.items() for suffix in SUFFIXES[kind]}
SERIES_PER_NODE = 2_500
"""At most, with 64 types: 16 buckets and 4 counters each, and as many for queues."""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def families(node: Node) -> list[Any]:
    text = node.http("GET", "/metrics").body.decode()
    return list(text_string_to_metric_families(text))


def series(node: Node) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families(node)
        for sample in family.samples
    }


def total(found: Series, name: str) -> float:
    return sum(value for (sample, _), value in found.items() if sample == name)


def test_the_names_types_and_labels_are_the_documented_ones(node: Node) -> None:
    node.ended(node.submit("raise", max_attempts=1))
    node.ended(node.submit("plain"))
    node.kill("worker:0")
    until(lambda: total(series(node), "prefork_q_worker_restarts_total") >= 1, 10)
    until(lambda: total(series(node), "prefork_q_worker_memory_bytes"), 15, "a sample of the memory")

    # A text for people about each, which the two formats read differently for an info.
    told = {family.name: family for family in openmetrics(node)}
    assert set(told) == set(NAMES)
    for name, (kind, labels) in NAMES.items():
        family = told[name]
        assert (family.type, bool(family.documentation)) == (kind, True), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample
            assert sample.name in SAMPLES
            assert sample.value >= 0
    assert {sample.name for family in families(node) for sample in family.samples} == SAMPLES
    for sample in told["prefork_q_worker_memory_bytes"].samples:
        assert sample.labels["kind"] in ("rss", "pss")
        assert sample.labels["slot"].isdigit()


def test_a_death_by_lost_leases_counts_for_its_type(node: Node, server: Server, keys: Keys) -> None:
    state = State(server.client(), keys)
    id = state.seed("processing", token=7, type="plain", losses=10, is_started=True)
    # A new node's keeper gives the holders of leases that are older than itself time to come back.
    state.keepers_are_heard_of()

    state.age(id)

    assert node.ended(id)["error"]["type"] == "LeaseLost"
    died = ("prefork_q_tasks_dead_total", (("type", "plain"),))
    until(lambda: series(node).get(died) == 1, 10, "the death to be counted for its type")


def openmetrics(node: Node) -> list[Any]:
    reply = node.http("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    return list(openmetrics_families(reply.body.decode()))


def test_buckets_grow_and_end_with_the_count(node: Node) -> None:
    for value in range(5):
        node.submit("return", {"value": value})
    node.ended(node.submit("sleep", {"seconds": 0.1}))
    until(lambda: total(series(node), "prefork_q_task_duration_seconds_count") >= 6, 10)

    for family in families(node):
        if family.type != "histogram":
            continue
        by_labels: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if sample.name.endswith(("_bucket", "_count")):
                by_labels.setdefault(labels, []).append(sample.value)
        for values in by_labels.values():
            assert values == sorted(values)
            assert values[-1] == values[-2]


def test_counters_never_fall_over_kills_and_their_sums_are_the_ledgers(
    start_node: Callable[..., Node],
) -> None:
    node = start_node(workers=3, max_crashes=1000)
    ids = node.submit_many("sleep", [{"seconds": 0.03}] * 150)
    ids += node.submit_many("flaky", [{"failures": 1}] * 50)
    before: Series = {}
    kills = 0

    def look() -> Series:
        nonlocal before
        found = series(node)
        counters = {key: value for key, value in found.items() if not key[0].endswith(("_bucket", "_sum"))}
        for key, value in before.items():
            if key[0].endswith(("_total", "_count")):
                assert counters.get(key, -1) >= value, key
        before = counters
        return found

    for _ in range(20):
        look()
        pids = node.pids()["worker"]
        if pids:
            pid = random.choice(pids)
            node.kill(f"worker:{node_slot(node, pid)}")
            kills += 1
        time.sleep(0.1)
    until(lambda: node.metrics()["completed_total"] == len(ids), 60, "an end of all tasks")
    found = look()
    numbers = node.metrics()

    assert kills >= 15
    runs = node.ledger.runs()
    assert numbers["submitted_total"] == len(ids) == total(found, "prefork_q_tasks_submitted_total")
    assert {run.id for run in runs if run.outcome == "returned"} == set(ids)
    raised = sum(run.outcome == "RuntimeError" for run in runs)
    assert numbers["failed_total"] <= raised
    assert numbers["failed_total"] == numbers["retried_total"] >= 50
    # What a worker had done but not yet noted when it was killed is missing in the node's numbers only.
    completed = total(found, "prefork_q_tasks_completed_total")
    assert numbers["completed_total"] - kills <= completed <= numbers["completed_total"]
    restarts = {dict(labels)["cause"]: n for (name, labels), n in found.items() if "restarts_total" in name}
    assert sum(restarts.values()) >= kills


def node_slot(node: Node, pid: int) -> int:
    return next((worker["slot"] for worker in node.status()["workers"] if worker["pid"] == pid), 0)


def test_ten_thousand_types_and_queues_make_no_more_series(node: Node) -> None:
    node.ended(node.submit("plain"))
    before = len(series(node))
    with Client(node.url, node.namespace) as client:
        for first in range(0, 10_000, 1_000):
            client.submit_many([client_task(n) for n in range(first, first + 1_000)])
    until(lambda: node.metrics()["released_total"] > 500, 30, "a look at the unknown tasks")

    found = series(node)
    assert len(found) <= before + 4 * 101 + 40
    assert len(found) <= SERIES_PER_NODE
    assert total(found, "prefork_q_tasks_submitted_total") == 10_001


def client_task(n: int) -> Any:
    return NewTask(f"unknown-{n}", queue="default" if n % 5 else f"queue-{n}")


def used_names(text: str) -> set[str]:
    return set(re.findall(r"\bprefork_q_[a-z_]+", text))


def test_the_dashboard_uses_names_that_exist() -> None:
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]

    assert len(expressions) >= 12
    assert used_names(" ".join(expressions)) == SAMPLES
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_alert_rules_use_names_that_exist() -> None:
    groups = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    assert len(rules) >= 8
    for rule in rules:
        assert rule["alert"]
        assert used_names(rule["expr"])
        assert used_names(rule["expr"]) <= SAMPLES, rule
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
