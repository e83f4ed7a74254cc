"""How `ctl` shows what the master answers, for people."""

from __future__ import annotations

from typing import Any

import click

from prefork_q.cli.output import elapsed, mebibytes, print_pairs, print_table


def show_status(status: dict[str, Any]) -> None:
    """Print the state of the node for people."""
    redis = status["redis"]
    print_pairs(
        (
            ("prefork-q", status["version"]),
            ("node", status["node"]),
            ("state", status["state"]),
            ("pid", status["pid"]),
            ("up", elapsed(status["uptime_s"])),
            ("lease", elapsed(status["lease_s"])),
            ("redis", redis["version"] if redis["reachable"] else "unreachable"),
            *((("", f"WARNING: {redis['warning']}"),) if redis["warning"] else ()),
            ("health", "degraded" if status["degraded"] else "good"),
            *(("", reason) for reason in status["degraded"]),
        )
    )
    click.echo()
    show_workers([*status["workers"], *status["leaving"]])
    click.echo()
    roles = [
        (name if len(members) == 1 else f"{name} {n}", member)
        for name, role in status["roles"].items()
        for members in [role if isinstance(role, list) else [role]]
        for n, member in enumerate(members)
    ]
    print_table(
        ("role", "pid", "state", "restarts"),
        ((name, role["pid"], role["state"], role["restarts"]) for name, role in roles),
        numbers=("pid", "restarts"),
    )
    click.echo()
    show_numbers(status["totals"])


def show_workers(workers: list[dict[str, Any]]) -> None:
    """Print the workers and what each runs."""
    print_table(
        ("worker", "pid", "state", "running", "held", "completed", "failed", "rss", "restarts", "runs"),
        map(_worker, workers),
        numbers=("worker", "pid", "running", "held", "completed", "failed", "rss", "restarts"),
    )


def show_numbers(numbers: dict[str, Any]) -> None:
    """Print what is a number by its name; the rest is for programs (`--json`)."""
    print_pairs((name.replace("_", " "), value) for name, value in numbers.items() if isinstance(value, int))


def show_metrics(metrics: dict[str, Any]) -> None:
    """Print the numbers of this node, and those of each type of task."""
    show_numbers(metrics["totals"] | metrics["counters"])
    click.echo()
    print_table(
        ("type", "completed", "failed", "retried", "dead", "mean"),
        (
            (name, n["completed"], n["failed"], n["retried"], n["dead"], _mean(n["durations"]))
            for name, n in metrics["types"].items()
        ),
        numbers=("completed", "failed", "retried", "dead", "mean"),
    )


def show_pairs(answer: dict[str, Any]) -> None:
    """Print an answer of few members."""
    print_pairs(answer.items())


def _worker(worker: dict[str, Any]) -> tuple[object, ...]:
    running = worker["running"]
    return (
        worker["slot"],
        worker["pid"],
        worker["state"],
        f"{len(running)}/{worker['threads']}",
        worker["held"],
        worker["completed"],
        worker["failed"],
        mebibytes(worker["rss_bytes"]),
        worker["restarts"],
        ", ".join(map(_run, running)) or None,
    )


def _run(running: dict[str, Any]) -> str:
    return f"{running['type']} {running['id']} for {running['runtime_s']:.1f} s"


def _mean(durations: dict[str, Any]) -> str | None:
    return f"{durations['sum'] / durations['count']:.3f} s" if durations["count"] else None
