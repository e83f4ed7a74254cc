"""Submissions share calls, and each thread gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefork_q.api.gathering import MOST, MOST_BYTES, Gathering
from prefork_q.errors import Unavailable
from prefork_q.states import Status
from prefork_q.task import Submission, Submitted
from tests.support.until import until


class Store:
    """Takes submissions; the first call lasts until it `may_go`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may_go = threading.Event()
        self.is_broken = False

    def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        self.calls.append([one.id for one in submissions])
        if len(self.calls) == 1:
            assert self.may_go.wait(10)
        if self.is_broken:
            raise Unavailable("gone", kind="timeout", retry_after=7)
        return [Submitted(one.id, Status.PENDING) for one in submissions]


def task(n: int, size: int = 2) -> Submission:
    return Submission(str(n), "plain", b"x" * size)


def submit_while_held(store: Store, gathering: Gathering, tasks: list[Submission]) -> list[object]:
    """Submit all while the call of the first is under way; return answers and errors."""

    def one(submission: Submission) -> object:
        try:
            return gathering.submit(submission)
        except Unavailable as error:
            return error

    with ThreadPoolExecutor(len(tasks)) as pool:
        first = pool.submit(one, tasks[0])
        until(lambda: store.calls, 5)
        others = [pool.submit(one, submission) for submission in tasks[1:]]
        until(lambda: len(gathering._waiting) == len(tasks) - 1, 5)
        store.may_go.set()
        return [future.result(10) for future in (first, *others)]


def test_what_comes_during_a_call_goes_with_the_next(store: Store, gathering: Gathering) -> None:
    answers = submit_while_held(store, gathering, [task(n) for n in range(20)])

    assert answers == [Submitted(str(n), Status.PENDING) for n in range(20)]
    assert store.calls[0] == ["0"]
    assert [len(call) for call in store.calls] == [1, 19]
    assert sorted(store.calls[1], key=int) == [str(n) for n in range(1, 20)]
    assert gathering.submit(task(99)).id == "99"


def test_a_call_is_bounded_in_number_and_bytes(store: Store, gathering: Gathering) -> None:
    submit_while_held(store, gathering, [task(n) for n in range(2 * MOST + 2)])
    assert [len(call) for call in store.calls] == [1, MOST, MOST, 1]

    store = Store()
    gathering = Gathering(store.submit)
    submit_while_held(store, gathering, [task(n, MOST_BYTES // 2) for n in range(6)])
    assert [len(call) for call in store.calls] == [1, 2, 2, 1]


def test_a_failure_is_told_to_all_of_its_call_and_to_no_other(store: Store, gathering: Gathering) -> None:
    store.is_broken = True
    errors = submit_while_held(store, gathering, [task(n) for n in range(5)])

    assert all(isinstance(error, Unavailable) for error in errors)
    assert {(getattr(error, "kind", ""), str(error)) for error in errors} == {("timeout", "gone")}
    assert len({id(error) for error in errors}) == 5
    store.is_broken = False
    assert gathering.submit(task(9)).id == "9"


def test_many_threads_at_once_all_get_their_own(gathering: Gathering, store: Store) -> None:
    store.may_go.set()
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda n: gathering.submit(task(n)).id, range(3_000)))

    assert answers == [str(n) for n in range(3_000)]
    assert sorted(int(id) for call in store.calls for id in call) == list(range(3_000))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def gathering(store: Store) -> Gathering:
    return Gathering(store.submit)
