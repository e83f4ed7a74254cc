"""Ids: UUIDs of version 7 that sort by the time at which they were made, and never meet."""

from __future__ import annotations

import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefork_q.ids import IdFactory, is_id, new_id


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_it() -> None:
    before = time.time_ns() // 1_000_000
    id = new_id()
    after = time.time_ns() // 1_000_000

    parsed = uuid.UUID(id)
    assert str(parsed) == id
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert before <= parsed.int >> 80 <= after + 1
    assert is_id(id)


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    ids = [new_id() for _ in range(20_000)]

    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_more_ids_than_a_millisecond_counts_borrow_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    make = IdFactory()

    ids = [make() for _ in range(10_000)]
    ids += [*make.many(10_000), make(), *make.many(1), *make.many(0), make()]

    assert ids == sorted(set(ids))
    assert len(ids) == 20_003


@pytest.mark.parametrize("n", [0, 1, 2, 4_095, 4_096, 4_097, 20_000])
def test_many_ids_at_once_are_as_good_as_single_ones(n: int) -> None:
    make = IdFactory()

    ids = [make(), *make.many(n), make()]

    assert ids == sorted(set(ids))
    assert len(ids) == n + 2
    assert all(is_id(id) for id in ids)
    assert all(uuid.UUID(id).variant == uuid.RFC_4122 for id in ids[:100])


def test_a_clock_that_was_set_back_does_not_set_ids_back(monkeypatch: pytest.MonkeyPatch) -> None:
    make = IdFactory()
    first = make()

    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000_000_000)

    assert make() > first


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [*(new_id() for _ in range(1_000)), *new_id.many(1_000)], range(8)))

    assert len({id for ids in made for id in ids}) == 16_000


def test_a_lock_that_was_held_at_a_fork_is_forgotten() -> None:
    make = IdFactory()
    make._lock.acquire()

    make.after_fork()

    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(make()), daemon=True)
    thread.start()
    thread.join(5)
    assert made


def test_forked_processes_never_get_the_same_id() -> None:
    new_id()  # so that there are random digits that the child could take too
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, "\n".join(new_id() for _ in range(100)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as stream:
        theirs = stream.read().split()

    assert len({id[-15:] for id in (*theirs, *(new_id() for _ in range(100)))}) == 200


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "0197f3a0-0000-4000-8000-000000000000", "0197f3a0-0000-7000-c000-000000000000",
        "0197F3A0-0000-7000-8000-000000000000", "0197f3a0-0000-7000-8000-000000000000\n",
        "0197f3a000007000800000000000000000", "0197f3a0-0000-7000-8000-00000000000g",
    ],
)  # fmt: skip
def test_what_is_no_id_is_told_apart(text: str) -> None:
    assert not is_id(text)
