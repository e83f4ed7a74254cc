"""Writes docs/benchmarks.md and its pictures from the figures of a run.

What stands in docs/benchmarks.md below the line `<!-- by hand -->` is kept: what the figures mean, and where
a task's microseconds go, which is found with profilers and not by this program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.contenders import CONTENDERS, PROJECT
from tests.bench.svg import Bar, bars

BY_HAND = "<!-- by hand -->"
Found = Mapping[str, Mapping[str, Mapping[str, Any]]]


def write(run: Mapping[str, Any], folder: Path) -> None:
    """Write the report of a run to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "benchmarks.md"
    kept = path.read_text().partition(BY_HAND)[2] if path.exists() else "\n"
    pictures = draw(run["found"])
    for name, picture in pictures.items():
        (folder / name).write_text(picture)
    path.write_text("\n".join([*text(run, set(pictures)), BY_HAND]) + kept)


def text(run: Mapping[str, Any], pictures: set[str]) -> list[str]:
    found: Found = run["found"]
    parts = [*head(run), *verdicts(found)]
    for title, name, picture, note, section in SECTIONS:
        if found.get(name):
            parts += ["", f"## {title}", "", note, ""]
            if picture in pictures:
                parts += [f"![{title}]({picture})", ""]
            parts += section(found[name])
    if run["failed"] or run["late"]:
        parts += ["", "## Not measured", "", *(f"- {line}" for line in run["failed"])]
        parts += [f"- {what}: the time of the run was over before all rounds" for what in run["late"]]
    parts += ["", "## The settings", "", "| contender | setting | of a task |", "| --- | --- | --- |"]
    parts += [f"| {name} | {setting} | {does} |" for name, (setting, does) in run["settings"].items()]
    return [*parts, ""]


def head(run: Mapping[str, Any]) -> list[str]:
    machine = run["machine"]
    names = "; ".join(run["versions"].values())
    return [
        "# Benchmarks",
        "",
        "Written by `bin/bench --report docs`; `tests/bench` says how each figure is taken. Medians of "
        f"{run['rounds']} rounds, the lowest and highest in parentheses; the rounds of all contenders are "
        "interleaved. Everything runs on one machine: the server, the workers and who submits share its "
        "cores, over loopback TCP, without persistence. Two worker processes each.",
        "",
        f"{run['date']}, {run['minutes']:.0f} minutes. {machine['processor']}; {machine['memory_gib']} GiB; "
        f"{machine['system']}; {machine['python']}; {run['server']}. "
        f"Load average before {run['load']['before']:.1f}, after {run['load']['after']:.1f}.",
        "",
        f"Versions: {names}.",
    ]


# -- figures


def shown(figure: Mapping[str, float] | None, digits: int = 0) -> str:
    """Write a figure with its span."""
    if figure is None:
        return "–"
    median = f"{figure['median']:,.{digits}f}"
    if figure["rounds"] == 1:
        return median
    return f"{median} ({figure['low']:,.{digits}f}–{figure['high']:,.{digits}f})"


def median(found: Found, what: str, name: str, number: str) -> float | None:
    figure = found.get(what, {}).get(name, {}).get(number)
    return None if figure is None else float(figure["median"])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        f"| {' | '.join('---' for _ in heads)} |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


Columns = Sequence[tuple[str, str, int]]


def plain(
    columns: Columns, *, by: str | None = None, is_less_better: bool = False
) -> Callable[[Any], list[str]]:
    """Return a section that is a table of these numbers: heading, number, digits."""

    def section(numbers: Mapping[str, Mapping[str, Any]]) -> list[str]:
        names = list(numbers)
        if by is not None:
            names.sort(key=lambda name: numbers[name][by]["median"], reverse=not is_less_better)
        own = numbers.get(PROJECT, {}).get(by or "", None)
        heads = ["", *(heading for heading, _, _ in columns)]
        if own is not None:
            heads.append("prefork-q against it")
        rows = []
        for name in names:
            row = [f"**{name}**" if name == PROJECT else name]
            row += [shown(numbers[name].get(number), digits) for _, number, digits in columns]
            if own is not None and by is not None:
                other = numbers[name][by]["median"]
                ratio = other / own["median"] if is_less_better else own["median"] / other
                row.append(f"× {ratio:,.2f}" if other and own["median"] else "–")
            rows.append(row)
        return table(heads, rows)

    return section


SECTIONS: Sequence[tuple[str, str, str, str, Callable[[Any], list[str]]]] = (
    (
        "Drain",
        "drain",
        "drain.svg",
        "No-op tasks with a payload of 100 bytes, all queued before two worker processes start; tasks a "
        "second from the first that ends to the last, and between 10 % and 90 % (steady). The project's "
        "count when their results are stored, others' when their handlers return. Microseconds are processor "
        "time of all the contender's processes, and of the server's main thread; `of two whole cores` is the "
        "rate that this time allows on two cores if nothing else runs and nobody waits.",
        plain(
            (
                ("tasks/s", "rate", 0),
                ("steady", "steady", 0),
                ("of two whole cores", "of_two_cores", 0),
                ("workers, µs a task", "worker_us", 1),
                ("Redis, µs a task", "redis_us", 1),
                ("Redis commands a task", "redis_calls", 1),
            ),
            by="rate",
        ),
    ),
    (
        "The limit",
        "limit",
        "limit.svg",
        "A bare loop in Python (redis-py, hiredis, orjson) with the shortest scripts that claim with a "
        "status and a lease and complete with a result; our own scripts driven by a bare client; and what a "
        "round trip costs.",
        plain(
            (
                ("a second", "rate", 0),
                ("of two whole cores", "of_two_cores", 0),
                ("client, µs a task", "worker_us", 1),
                ("Redis, µs a task", "redis_us", 1),
            )
        ),
    ),
    (
        "Submission",
        "submission",
        "submission.svg",
        "From one process. In bulk: the contender's own way to submit many if it has one, else many at once, "
        "else one by one. Bytes are what the server's memory grew by, a queued task.",
        plain(
            (
                ("one by one, tasks/s", "one_by_one", 0),
                ("in bulk, tasks/s", "bulk", 0),
                ("client, µs a task", "client_us", 0),
                ("Redis in bulk, µs a task", "redis_us", 1),
                ("bytes a queued task", "bytes", 0),
            ),
            by="one_by_one",
        ),
    ),
    (
        "Pickup on an idle system",
        "pickup",
        "pickup.svg",
        "Milliseconds from before the submission to the first line of the handler.",
        plain((("p50", "p50", 2), ("p99", "p99", 2), ("worst", "max", 2)), by="p50", is_less_better=True),
    ),
    (
        "CPU-bound handlers",
        "cpu",
        "cpu.svg",
        "Handlers that use 20 ms of processor time each: the share of two cores that they get, the server "
        "included in what they do not get.",
        plain((("of the ideal", "efficiency", 3),), by="efficiency"),
    ),
    (
        "Memory",
        "memory",
        "",
        "Eight workers over an object graph of 200 MiB that the handlers import; PSS of "
        "all processes in MiB, when idle and after tasks (1,000 a worker for the project, 100 for others).",
        plain(
            (("idle", "idle", 0), ("after tasks", "after", 0), ("processes", "processes", 0)),
            by="idle",
            is_less_better=True,
        ),
    ),
    (
        "Idle",
        "idle",
        "",
        "Two workers that have nothing to do, with all that runs beside them. Calls are what clients send; "
        "commands are what the server carries out, those inside of scripts too.",
        plain(
            (
                ("calls a second", "trips", 1),
                ("of them a worker", "a_worker", 2),
                ("commands a second", "commands", 1),
                ("all its processes, s of CPU a s", "worker_cpu", 4),
                ("Redis, s of CPU a s", "redis_cpu", 4),
            )
        ),
    ),
    (
        "Against the backlog",
        "backlog",
        "",
        "The drain of the project with so many tasks pending, looked at for three seconds at most.",
        plain((("tasks/s", "rate", 0), ("steady", "steady", 0), ("Redis, µs a task", "redis_us", 1))),
    ),
    (
        "Recovery",
        "recovery",
        "",
        "Milliseconds from the SIGKILL of a worker until the task that it ran has begun again in another.",
        plain((("median", "p50", 0), ("best", "low", 0), ("worst", "high", 0), ("kills", "n", 0))),
    ),
    (
        "Start",
        "start",
        "",
        "`prefork-q run` with its embedded server until every process is ready, in "
        "seconds; the whole of `prefork-q ctl status`, and of a Python that does nothing, in milliseconds.",
        plain((("ready, s", "ready", 2), ("ctl status, ms", "status", 0), ("python, ms", "python", 0))),
    ),
)


# -- against the targets


def verdicts(found: Found) -> list[str]:
    """Return the table of what was aimed at."""
    rows = [row for make in TARGETS if (row := make(found)) is not None]
    if not rows:
        return []
    return ["", "## What was aimed at", "", *table(("", "aim", "measured", ""), rows)]


def best(found: Found, what: str, number: str, wanted: Callable[[Any], bool], *, least: bool = False) -> Any:
    """Return (median, name) of the best peer that is wanted."""
    values = [
        (value, one.name)
        for one in CONTENDERS
        if not one.is_project and wanted(one) and (value := median(found, what, one.name, number)) is not None
    ]
    if not values:
        return None
    return min(values) if least else max(values)


def is_python(one: Any) -> bool:
    return not one.is_node


def times(title: str, aim: float, own: float | None, other: Any) -> list[str] | None:
    if own is None or other is None:
        return None
    ratio = own / other[0]
    return [
        title,
        f"≥ {aim:g} ×",
        f"{ratio:.2f} × ({own:,.0f} to {other[0]:,.0f}, {other[1]})",
        word(ratio >= aim),
    ]


def word(is_met: bool) -> str:
    return "met" if is_met else "**short**"


def at_most(title: str, aim: float, own: float | None, digits: int = 0, unit: str = "") -> list[str] | None:
    if own is None:
        return None
    return [title, f"≤ {aim:g}{unit}", f"{own:,.{digits}f}{unit}", word(own <= aim)]


def at_least(title: str, aim: float, own: float | None, digits: int = 2) -> list[str] | None:
    if own is None:
        return None
    return [title, f"≥ {aim:g}", f"{own:,.{digits}f}", word(own >= aim)]


def no_worse(title: str, own: float | None, other: Any, digits: int = 2) -> list[str] | None:
    if own is None or other is None:
        return None
    return [title, f"≤ {other[0]:,.{digits}f} ({other[1]})", f"{own:,.{digits}f}", word(own <= other[0])]


def bare(found: Found, number: str = "rate") -> tuple[float, str] | None:
    values = [
        (figures[number]["median"], name)
        for name, figures in found.get("limit", {}).items()
        if name[:4] == "bare" and number in figures
    ]
    return max(values, default=None)


def redis_a_task(found: Found) -> float | None:
    parts = [median(found, what, PROJECT, "redis_us") for what in ("submission", "drain")]
    return None if None in parts else sum(part for part in parts if part is not None)


def evalsha(found: Found) -> tuple[float, str] | None:
    value = median(found, "submission", "bare EVALSHA", "one_by_one")
    return None if value is None else (value, "a bare EVALSHA of the same script")


def slope(found: Found) -> list[str] | None:
    sizes = {int(name): figures["rate"]["median"] for name, figures in found.get("backlog", {}).items()}
    if len(sizes) < 2 or 10_000 not in sizes:
        return None
    most = max(sizes)
    ratio = sizes[most] / sizes[10_000]
    return [f"drain at {most:,} pending, to that at 10,000", "≥ 0.85", f"{ratio:.2f}", word(ratio >= 0.85)]


def own(found: Found, what: str, number: str, name: str = PROJECT) -> float | None:
    return median(found, what, name, number)


TARGETS: Sequence[Callable[[Found], list[str] | None]] = (
    lambda f: times(
        "drain, to the fastest Python peer", 10, own(f, "drain", "rate"), best(f, "drain", "rate", is_python)
    ),
    lambda f: times(
        "drain, to the fastest that acknowledges and stores results",
        10,
        own(f, "drain", "rate"),
        best(f, "drain", "rate", lambda one: is_python(one) and one.stores_results and one.acknowledges),
    ),
    lambda f: times(
        "drain, to BullMQ on Node",
        4,
        own(f, "drain", "rate"),
        best(f, "drain", "rate", lambda one: one.is_node),
    ),
    lambda f: times("drain, to the bare loop", 0.4, own(f, "drain", "rate"), bare(f)),
    lambda f: times(
        "the same by processor time, of two whole cores",
        0.4,
        own(f, "drain", "of_two_cores"),
        bare(f, "of_two_cores"),
    ),
    lambda f: times(
        "submission one by one, to a bare EVALSHA", 0.9, own(f, "submission", "one_by_one"), evalsha(f)
    ),
    lambda f: times(
        "submission one by one, to the fastest peer",
        1,
        own(f, "submission", "one_by_one"),
        best(f, "submission", "one_by_one", lambda one: True),
    ),
    lambda f: times(
        "submission in bulk, to the fastest Python peer",
        5,
        own(f, "submission", "bulk"),
        best(f, "submission", "bulk", is_python),
    ),
    lambda f: times(
        "submission in bulk, to BullMQ on Node",
        3,
        own(f, "submission", "bulk"),
        best(f, "submission", "bulk", lambda one: one.is_node),
    ),
    lambda f: no_worse(
        "pickup p50, ms, to the best peer",
        own(f, "pickup", "p50"),
        best(f, "pickup", "p50", lambda one: True, least=True),
    ),
    lambda f: no_worse(
        "pickup p99, ms, to the best peer",
        own(f, "pickup", "p99"),
        best(f, "pickup", "p99", lambda one: True, least=True),
    ),
    lambda f: at_least("CPU-bound, of the ideal", 0.97, own(f, "cpu", "efficiency"), 3),
    lambda f: at_least(
        "CPU-bound with 4 threads a worker", 0.95, own(f, "cpu", "efficiency", "prefork-q, 4 threads"), 3
    ),
    lambda f: at_most("Redis, from the submission in bulk to the result, µs a task", 15, redis_a_task(f), 1),
    lambda f: at_most("bytes a queued task", 480, own(f, "submission", "bytes")),
    lambda f: no_worse(
        "memory of 8 workers over 200 MiB, MiB, to the best peer",
        own(f, "memory", "idle"),
        best(f, "memory", "idle", lambda one: True, least=True),
        0,
    ),
    lambda f: at_most(
        "idle, calls to Redis a second and worker",
        1,
        own(f, "idle", "a_worker"),
        2,
    ),
    lambda f: at_most("recovery after SIGKILL", 200, own(f, "recovery", "p50"), 0, " ms"),
    slope,
    lambda f: at_most("start, embedded", 1.5, own(f, "start", "ready"), 2, " s"),
    lambda f: at_most("`ctl status`", 150, own(f, "start", "status"), 0, " ms"),
)


# -- pictures


def draw(found: Found) -> dict[str, str]:
    """Return the pictures by their file names."""
    pictures: dict[str, str] = {}

    def picture(
        name: str,
        title: str,
        subtitle: str,
        what: str,
        number: str,
        digits: int,
        *,
        log: bool,
        least: bool = False,
    ) -> None:
        rows = []
        for one, figures in found.get(what, {}).items():
            if number not in figures:
                continue
            figure = figures[number]
            kind = (
                "own"
                if one.startswith(PROJECT)
                else "limit"
                if what == "limit" or "EVALSHA" in one
                else "peer"
            )
            rows.append(
                Bar(one, figure["median"], figure["low"], figure["high"], kind, shown(figure, digits))
            )
        if what == "drain":
            rows += [
                Bar(
                    one,
                    figures["rate"]["median"],
                    figures["rate"]["low"],
                    figures["rate"]["high"],
                    "limit",
                    shown(figures["rate"]),
                )
                for one, figures in found.get("limit", {}).items()
                if one != "PING" and one.startswith("bare")
            ]
        if len(rows) > 1 and all(row.value > 0 for row in rows):
            rows.sort(key=lambda row: row.value, reverse=not least)
            pictures[name] = bars(title, subtitle, rows, is_logarithmic=log)

    picture(
        "drain.svg",
        "Drain of no-op tasks, two worker processes",
        "tasks a second, logarithmic; orange: the bare claim-and-complete loop",
        "drain",
        "rate",
        0,
        log=True,
    )
    picture("limit.svg", "The limit", "a second, logarithmic", "limit", "rate", 0, log=True)
    picture(
        "submission.svg",
        "Submission in bulk, one process",
        "tasks a second, logarithmic",
        "submission",
        "bulk",
        0,
        log=True,
    )
    picture(
        "pickup.svg",
        "Pickup on an idle system",
        "median, milliseconds, logarithmic: shorter is better",
        "pickup",
        "p50",
        2,
        log=True,
        least=True,
    )
    picture(
        "cpu.svg",
        "CPU-bound handlers of 20 ms, two workers",
        "share of the ideal",
        "cpu",
        "efficiency",
        3,
        log=False,
    )
    return pictures
