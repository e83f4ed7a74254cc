"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from prefork_q.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("30", 30),
        ("30s", 30),
        ("0", 0),
        ("1.5h", 5400),
        ("5m", 300),
        ("24h", 86_400),
        ("180d", 15_552_000),
        ("2w", 1_209_600),
        (" 5 M ", 300),
        (2, 2),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    ["", "s", "-1", "1e3", "inf", "nan", "5 min", "1h30m", "٣", True, None, -1, float("nan"), float("inf")],
)
def test_what_is_no_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("65536", 65_536),
        ("10b", 10),
        ("512k", 524_288),
        ("256KiB", 262_144),
        ("1MiB", 1_048_576),
        ("1.5 MiB", 1_572_864),
        ("1MB", 1_000_000),
        ("2GiB", 2_147_483_648),
        (7, 7),
    ],
)
def test_a_size_is_read_as_bytes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "k", "-1", "1kk", "1TiB", True, None, -1, 1.5])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(written)


@pytest.mark.parametrize("seconds", [0, 0.5, 0.001, 1, 30, 90, 300, 86_400, 15_552_000])
def test_a_duration_written_out_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


def test_durations_and_sizes_are_written_in_the_unit_that_is_shortest() -> None:
    assert [format_duration(s) for s in (30, 86_400, 15_552_000, 0.5)] == ["30s", "24h", "180d", "500ms"]
    assert [format_size(n) for n in (262_144, 1_048_576, 100, 0)] == ["256 KiB", "1 MiB", "100 B", "0 B"]
