"""What a submission may say: options, times, payloads and their limits."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest

from prefork_q.errors import Invalid, TooLarge
from prefork_q.ids import is_id
from prefork_q.retry import MAX_DELAY
from prefork_q.submission import NewTask, prepare, prepare_all
from prefork_q.task import Submission

LIMIT = 1000


def prepared(**options: Any) -> Submission:
    return prepare(NewTask(**{"type": "work", **options}), payload_limit=LIMIT)


def refusal(**options: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        prepared(**options)
    return caught.value


def test_without_options_the_defaults_hold() -> None:
    submission = prepared()

    assert is_id(submission.id)
    assert (submission.type, submission.queue, submission.max_attempts) == ("work", "default", 3)
    assert submission.body == b"{}"
    assert submission.delay is submission.run_at is submission.timeout is None
    assert submission.fingerprint is None


def test_each_submission_has_an_id_of_its_own() -> None:
    assert prepared().id < prepared().id


def test_times_can_be_numbers_or_pythons_own() -> None:
    noon = datetime(2026, 11, 29, 12, tzinfo=timezone(timedelta(hours=1)))

    submission = prepared(run_at=noon, timeout=timedelta(minutes=1))

    assert submission.run_at == noon.timestamp()
    assert submission.timeout == 60
    assert prepared(delay=timedelta(milliseconds=1500)).delay == 1.5
    assert prepared(delay=0).delay == 0
    assert prepared(run_at=0).run_at == 0


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"type": ""}, "/type"),
        ({"type": "a b"}, "/type"),
        ({"type": "a\n"}, "/type"),
        ({"type": "x" * 101}, "/type"),
        ({"type": 7}, "/type"),
        ({"type": ["work"]}, "/type"),
        ({"queue": "a,b"}, "/queue"),
        ({"queue": None}, "/queue"),
        ({"queue": {}}, "/queue"),
        ({"max_attempts": [3]}, "/max_attempts"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"max_attempts": 1001}, "/max_attempts"),
        ({"max_attempts": True}, "/max_attempts"),
        ({"max_attempts": 1.0}, "/max_attempts"),
        ({"delay": -1}, "/delay_s"),
        ({"delay": MAX_DELAY + 1}, "/delay_s"),
        ({"delay": float("nan")}, "/delay_s"),
        ({"delay": float("inf")}, "/delay_s"),
        ({"delay": True}, "/delay_s"),
        ({"delay": "5"}, "/delay_s"),
        ({"delay": timedelta(days=-1)}, "/delay_s"),
        ({"run_at": -1}, "/run_at"),
        ({"run_at": time.time() + MAX_DELAY + 3600}, "/run_at"),
        ({"run_at": datetime(2026, 11, 29)}, "/run_at"),
        ({"run_at": "2026-11-29T00:00:00Z"}, "/run_at"),
        ({"run_at": 1.0, "delay": 1.0}, "/run_at"),
        ({"timeout": 0}, "/timeout_s"),
        ({"timeout": 0.0001}, "/timeout_s"),
        ({"timeout": -1}, "/timeout_s"),
        ({"timeout": float("inf")}, "/timeout_s"),
        ({"idempotency_key": ""}, "/idempotency_key"),
        ({"idempotency_key": "x" * 256}, "/idempotency_key"),
        ({"idempotency_key": "a b"}, "/idempotency_key"),
        ({"idempotency_key": "é"}, "/idempotency_key"),
        ({"idempotency_key": "a\n"}, "/idempotency_key"),
        ({"idempotency_key": 7}, "/idempotency_key"),
        ({"payload": [1]}, "/payload"),
        ({"payload": None}, "/payload"),
        ({"payload": "{}"}, "/payload"),
        ({"payload": {"a": [float("nan")]}}, "/payload/a/0"),
        ({"payload": {"a": {"b": 2**64}}}, "/payload/a/b"),
        ({"payload": {"a": "\ud800"}}, "/payload/a"),
        ({"payload": {1: 2}}, "/payload"),
        ({"payload": {"a": object()}}, "/payload"),
    ],
)
def test_a_wrong_option_is_named_as_the_api_names_it(options: dict[str, Any], pointer: str) -> None:
    assert refusal(**options).pointer == pointer


def test_keys_of_up_to_255_visible_characters_are_accepted() -> None:
    for key in ("!", "x" * 255, 'a"b\\c~'):
        assert prepared(idempotency_key=key).idempotency_key == key


def test_the_payload_limit_counts_the_bytes_of_its_json() -> None:
    fits = {"a": "é" * ((LIMIT - 8) // 2)}

    assert len(prepared(payload=fits).body) == LIMIT
    with pytest.raises(TooLarge, match=r"1,001 bytes of JSON, 1,000 are allowed"):
        prepared(payload={"a": fits["a"] + "x"})


def test_richer_values_are_written_in_their_json_form() -> None:
    body = prepared(payload={"path": Path("/a"), "at": datetime(2026, 1, 1, tzinfo=UTC)}).body

    assert orjson.loads(body) == {"path": "/a", "at": "2026-01-01T00:00:00+00:00"}


def test_the_fingerprint_tells_requests_apart_by_what_they_ask_for() -> None:
    base: dict[str, Any] = {"idempotency_key": "k", "payload": {"a": 1, "b": [1, {"x": 1, "y": 2}]}}
    first = prepared(**base).fingerprint

    assert first
    assert prepared(**base).fingerprint == first
    assert prepared(**base | {"payload": {"b": [1, {"y": 2, "x": 1}], "a": 1}}).fingerprint == first
    for other in (
        {"payload": {"a": 2, "b": []}},
        {"payload": {"a": 1.0, "b": [1, {"x": 1, "y": 2}]}},
        {"type": "other"},
        {"queue": "low"},
        {"delay": 1.0},
        {"run_at": 1.0},
        {"max_attempts": 4},
        {"timeout": 1.0},
    ):
        assert prepared(**base | other).fingerprint != first
    for same in ({"queue": "default"}, {"max_attempts": 3}, {"delay": 0}, {"delay": timedelta()}):
        assert prepared(**base | same).fingerprint == first
        # The API knows what was asked for, and the client what it is given.
        assert prepared(**base | same, filled_in=("timeout",)).fingerprint == first
    assert prepared(**base, delay=5).fingerprint == prepared(**base, delay=5.0).fingerprint


def test_what_a_handler_says_is_no_part_of_what_was_asked_for() -> None:
    base: dict[str, Any] = {"idempotency_key": "k", "payload": {"a": 1}}
    first = prepared(**base).fingerprint

    for policy in ({"queue": "low"}, {"max_attempts": 7}, {"timeout": 2.0}):
        assert prepared(**base, **policy, filled_in=("queue", "max_attempts", "timeout")).fingerprint == first
        assert prepared(**base, **policy).fingerprint != first


def test_a_dict_among_many_is_refused_with_what_is_wanted() -> None:
    with pytest.raises(Invalid, match=r"each task is a NewTask\(type, payload, \.\.\.\), not a dict"):
        prepare_all([NewTask("work"), {"type": "work"}], payload_limit=LIMIT)  # type: ignore[list-item]
