"""What systemd says of a unit: its name, its time spans, and whether it would end a drain too soon."""

from __future__ import annotations

import math

import pytest

from prefork_q.cli.manager import Unit, own_unit, parse_span, stop_troubles


@pytest.mark.parametrize(
    ("cgroups", "unit"),
    [
        ("0::/system.slice/prefork-q.service\n", Unit("prefork-q.service")),
        ("0::/system.slice/system-q.slice/prefork-q@mail.service\n", Unit("prefork-q@mail.service")),
        ("4:memory:/x\n1:name=systemd:/docker/4f/system.slice/a.service\n0::/\n", Unit("a.service")),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.service\n",
            Unit("run-r1.service", is_users=True),
        ),
        ("0::/user.slice/user-0.slice/session-2.scope\n", None),
        ("", None),
    ],
)
def test_a_process_knows_its_unit(cgroups: str, unit: Unit | None) -> None:
    assert own_unit(cgroups) == unit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("35s", 35), ("1min 30s", 90), ("infinity", math.inf), ("500ms", 0.5), ("2h 5min 3.5s", 7503.5),
        ("0", 0), ("1d", 86_400), ("1w 2d", 777_600), ("250us", 0.00025),
    ],
)  # fmt: skip
def test_a_time_span_is_read(text: str, seconds: float) -> None:
    assert parse_span(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "3 parsecs", "-1s"])
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no time span"):
        parse_span(text)


def test_a_stop_limit_shorter_than_the_drain_is_told() -> None:
    (trouble,) = stop_troubles({"TimeoutStopUSec": "10s", "KillMode": "mixed"}, 30.0)

    assert "TimeoutStopSec=35" in trouble
    assert stop_troubles({"TimeoutStopUSec": "35s", "KillMode": "mixed"}, 30.0) == []
    assert stop_troubles({"TimeoutStopUSec": "infinity", "KillMode": "mixed"}, 30.0) == []


def test_a_kill_mode_that_ends_what_handlers_started_is_told() -> None:
    (trouble,) = stop_troubles({"TimeoutStopUSec": "35s", "KillMode": "control-group"}, 30.0)

    assert "KillMode=mixed" in trouble


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert stop_troubles({}, 30.0) == []
