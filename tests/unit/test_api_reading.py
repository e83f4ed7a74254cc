"""Times, keys, cursors and numbers as clients write them."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefork_q.api.access import refuse_other_names, refuse_other_origins
from prefork_q.api.listing import read_cursor, write_cursor
from prefork_q.api.problems import Problem
from prefork_q.api.reading import instant, pointer, read_key
from prefork_q.inspector import Cursor
from prefork_q.units import timestamp


@given(
    moment=st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),
    offset=st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_an_instant_is_read_as_the_standard_library_reads_it(moment: datetime, offset: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    assert instant(aware.isoformat()) == pytest.approx(aware.timestamp(), abs=1e-5)


def test_a_leap_second_is_the_first_of_the_next_minute() -> None:
    assert instant("2016-12-31T23:59:60Z") == datetime(2017, 1, 1, tzinfo=UTC).timestamp()
    assert instant("2017-01-01T00:59:60+01:00") == datetime(2017, 1, 1, tzinfo=UTC).timestamp()


def test_more_digits_than_a_nanosecond_has_are_cut() -> None:
    assert instant("1970-01-01T00:00:01.1234567891234Z") == pytest.approx(1.123456789)


@given(st.integers(0, 250_000_000_000_000))
def test_a_timestamp_says_its_millisecond(milliseconds: int) -> None:
    text = timestamp(milliseconds / 1000)
    assert round(instant(text) * 1000) == milliseconds
    assert text == text.upper()
    assert len(text) == len("2026-11-29T15:00:00.123Z")


@given(st.text('!~az09"\\;,=', min_size=1, max_size=20))
def test_a_key_is_the_same_quoted(key: str) -> None:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert read_key({"HTTP_IDEMPOTENCY_KEY": f'"{escaped}"'}) == key


@given(
    index=st.sampled_from(["delayed", "dead", "recent", "processing"]),
    at=st.integers(0, 2**53),
    after=st.text(min_size=1, max_size=40),
)
def test_a_cursor_comes_back_as_it_went(index: str, at: int, after: str) -> None:
    cursor = Cursor(index, at=str(at), after=after)
    text = write_cursor(cursor)
    assert text is not None
    assert text.replace("-", "").replace("_", "").isalnum()
    assert read_cursor(text, lambda cursor: True) == cursor


@given(st.text(max_size=60))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with suppress(Problem):
        cursor = read_cursor(text, lambda cursor: True)
        assert read_cursor(write_cursor(cursor), lambda cursor: True) == cursor


def test_pointers_are_escaped() -> None:
    assert pointer("tasks", 3, "a/b~c") == "/tasks/3/a~1b~0c"


@pytest.mark.parametrize(
    ("method", "headers", "is_refused"),
    [
        ("POST", {}, False),
        ("POST", {"HTTP_SEC_FETCH_SITE": "none"}, False),
        ("POST", {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "http://proxy.example"}, False),
        ("POST", {"HTTP_SEC_FETCH_SITE": "cross-site"}, True),
        ("DELETE", {"HTTP_SEC_FETCH_SITE": "same-site"}, True),
        ("POST", {"HTTP_ORIGIN": "http://127.0.0.1:8420", "HTTP_HOST": "127.0.0.1:8420"}, False),
        ("POST", {"HTTP_ORIGIN": "http://127.0.0.1:9999", "HTTP_HOST": "127.0.0.1:8420"}, True),
        ("POST", {"HTTP_ORIGIN": "http://[::1", "HTTP_HOST": "x"}, True),
        ("POST", {"HTTP_ORIGIN": "null", "HTTP_HOST": ""}, True),
        ("GET", {"HTTP_SEC_FETCH_SITE": "cross-site"}, False),
    ],
)
def test_other_sites_may_look_and_not_touch(method: str, headers: dict[str, str], is_refused: bool) -> None:
    expected = pytest.raises(Problem, match="other sites") if is_refused else nullcontext()
    with expected:
        refuse_other_origins({"REQUEST_METHOD": method} | headers)


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        ("evil.example", True), ("evil.example:8420", True), ("evil.example.", True),
        ("127.0.0.1.evil.example", True), ("1.2.3.4.5", True), ("localhost.evil.example", True),
        ("", False), ("x", False), ("localhost", False),
        ("localhost:8420", False), ("LOCALHOST", False), ("a.localhost:1", False), ("127.0.0.1", False),
        ("127.0.0.1:8420", False), ("[::1]", False), ("[::1]:8420", False), ("192.0.2.1:80", False),
    ],
)  # fmt: skip
def test_a_name_of_the_dns_does_not_reach_a_loopback_address(host: str, is_refused: bool) -> None:
    environ = {"REQUEST_METHOD": "GET", "HTTP_HOST": host, "REMOTE_ADDR": "127.0.0.1"}

    if is_refused:
        with pytest.raises(Problem) as refusal:
            refuse_other_names(environ)
        assert refusal.value.status == 421
    else:
        refuse_other_names(environ)
    # A proxy before a Unix socket passes on the name that it was called by.
    refuse_other_names(environ | {"REMOTE_ADDR": "localhost"})
