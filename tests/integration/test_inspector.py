"""The inspector against a real server: sums, rates, single tasks, pages while tasks move."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.errors import Invalid
from prefork_q.ids import new_id
from prefork_q.inspector import Counts, Cursor, Inspector, Page
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Limits
from prefork_q.states import Status
from prefork_q.task import Submission

LEASE_MS = 30_000


@pytest.fixture
def broker(redis_client: redis.Redis, keys: Keys) -> Broker:
    return Broker(redis_client, keys, Limits())


@pytest.fixture
def inspector(redis_client: redis.Redis, keys: Keys) -> Inspector:
    return Inspector(redis_client, keys)


@pytest.fixture
def submit(broker: Broker) -> Callable[..., list[str]]:
    def submit(n: int = 1, **options: Any) -> list[str]:
        members = {"type": "t", "body": b'{"n":1}'} | options
        submissions = [Submission(new_id(), **members) for _ in range(n)]
        for at in range(0, n, 500):
            broker.submit(submissions[at : at + 500])
        return [one.id for one in submissions]

    return submit


@pytest.fixture
def claim(broker: Broker) -> Callable[..., list[Any]]:
    seq = iter(range(1, 10_000))

    def claim(n: int = 1, *queues: str) -> list[Any]:
        request = ClaimRequest("w", next(seq), LEASE_MS, n, n, 0, queues or ("default",))
        return broker.claim(request).leases

    return claim


def sums(counts: Counts) -> int:
    total = counts.totals.get
    return (
        counts.pending + counts.processing + counts.delayed + counts.dead
        + total("completed", 0) + total("cancelled", 0) + total("removed", 0)
    )  # fmt: skip


def page_of(inspector: Inspector, status: Status, cursor: Cursor | None) -> Page:
    return inspector.page(status, limit=2, cursor=cursor)


def all_pages(page: Callable[[Cursor | None], Page]) -> list[str]:
    ids, cursor = [], None
    for _ in range(10_000):
        answer = page(cursor)
        ids += [task.id for task in answer.tasks]
        cursor = answer.next
        if cursor is None:
            return ids
    raise AssertionError("the pages have no end")


def test_an_empty_namespace_counts_nothing(inspector: Inspector) -> None:
    counts = inspector.counts()

    assert (counts.pending, counts.processing, counts.delayed, counts.dead) == (0, 0, 0, 0)
    assert (counts.completed_per_minute, counts.failed_per_minute) == (0, 0)
    assert counts.queues == ()
    assert counts.oldest_pending_age is None
    assert abs(counts.at - time.time()) < 5


def test_an_empty_name_is_refused_and_not_any_name(inspector: Inspector) -> None:
    for look in (
        partial(inspector.page, type=""),
        partial(inspector.page, queue=""),
        partial(inspector.dead_ids, type=""),
    ):
        with pytest.raises(Invalid, match="a name has"):
            look()


def test_every_task_is_counted_once_whatever_its_state(
    inspector: Inspector, broker: Broker, submit: Any, claim: Any
) -> None:
    submit(5)
    submit(2, queue="low")
    submit(3, delay=60)
    for lease in claim(2):
        broker.complete(lease.id, lease.token, b"1")
    (dying,) = claim(1)
    broker.fail(dying.id, dying.token, b'{"type":"E","message":"m"}', delay=None)
    (retried,) = claim(1)
    broker.fail(retried.id, retried.token, b'{"type":"E","message":"m"}', delay=30)
    claim(1)
    broker.cancel(submit(1)[0])

    counts = inspector.counts()

    assert {queue.name: queue.pending for queue in counts.queues} == {"default": 0, "low": 2}
    assert (counts.processing, counts.delayed, counts.dead) == (1, 4, 1)
    assert counts.totals["completed"] == 2
    assert counts.totals["failed"] == 2
    assert counts.totals["cancelled"] == 1
    assert (counts.completed_per_minute, counts.failed_per_minute) == (2, 2)
    assert counts.totals["submitted"] == sums(counts) == 11


def test_a_cancelled_task_that_is_still_listed_is_not_pending(
    inspector: Inspector, broker: Broker, submit: Any
) -> None:
    ids = submit(3)
    broker.cancel(ids[0])

    (queue,) = inspector.counts().queues

    assert queue.pending == 2
    assert [task.id for task in inspector.page(Status.PENDING).tasks] == [ids[2], ids[1]]


def test_the_oldest_pending_task_is_found_behind_ghosts_and_what_was_put_back(
    inspector: Inspector, broker: Broker, redis_client: redis.Redis, keys: Keys, submit: Any, claim: Any
) -> None:
    ids = submit(20)
    (lease,) = claim(1)
    broker.release(lease.id, lease.token)
    for id in ids[1:15]:
        broker.cancel(id)
    hour_ago = int((time.time() - 3600) * 1000)
    redis_client.hset(keys.task(ids[15]), "created_at", hour_ago)

    counts = inspector.counts()

    assert counts.queues[0].oldest_pending_age == pytest.approx(3600, abs=5)
    assert counts.oldest_pending_age == counts.queues[0].oldest_pending_age


def test_a_pause_is_seen(inspector: Inspector, broker: Broker, submit: Any) -> None:
    submit(1)
    broker.pause("default")
    assert [queue.is_paused for queue in inspector.counts().queues] == [True]
    broker.resume("default")
    assert [queue.is_paused for queue in inspector.counts().queues] == [False]


def test_rates_cover_sixty_seconds_of_the_servers_clock(
    inspector: Inspector, redis_client: redis.Redis, keys: Keys
) -> None:
    # Right after a second began, so that it does not end while the buckets are written and read.
    micros = redis_client.time()[1]
    time.sleep((1_000_000 - micros) / 1e6)
    now = redis_client.time()[0]
    for age in (0, 1, 59, 60, 61, 3600):
        redis_client.hset(keys(f"rate:{now - age}"), mapping={"completed": 10, "failed": 1})

    counts = inspector.counts()

    assert counts.at < now + 1
    assert (counts.completed_per_minute, counts.failed_per_minute) == (30, 3)


def test_a_task_shows_all_that_is_known(
    inspector: Inspector, broker: Broker, submit: Any, claim: Any
) -> None:
    body = b'{"big":9223372036854775807,"list":[],"object":{},"text":"\\u0000\xc3\xa9"}'
    (id,) = submit(1, type="shown", body=body, max_attempts=7, timeout=2.5, queue="q")

    fresh = inspector.get(id)
    assert fresh is not None
    assert (fresh.type, fresh.queue, fresh.status) == ("shown", "q", Status.PENDING)
    assert fresh.payload == {"big": 2**63 - 1, "list": [], "object": {}, "text": "\0é"}
    assert (fresh.attempts, fresh.crashes, fresh.losses, fresh.max_attempts) == (0, 0, 0, 7)
    assert fresh.timeout == 2.5
    assert abs(fresh.created_at - time.time()) < 5
    assert (fresh.started_at, fresh.finished_at, fresh.error, fresh.progress) == (None, None, None, None)

    (lease,) = claim(1, "q")
    broker.progress([(lease.id, lease.token, b'{"fraction":0.5,"note":"half"}')])
    broker.cancel(id)
    running = inspector.get(id)
    assert running is not None
    assert (running.status, running.attempts) == (Status.PROCESSING, 1)
    assert running.progress == {"fraction": 0.5, "note": "half"}
    assert running.is_cancel_requested
    assert running.started_at is not None

    broker.complete(lease.id, lease.token, b'[null,{"a":1.5}]')
    done = inspector.get(id)
    assert done is not None
    assert (done.status, done.result) == (Status.SUCCEEDED, [None, {"a": 1.5}])
    assert done.finished_at is not None


def test_an_unknown_task_is_none(inspector: Inspector) -> None:
    assert inspector.get(new_id()) is None


@pytest.mark.parametrize("spoil", ["another type of key", "no status", "no number", "no payload text"])
def test_a_spoilt_record_breaks_neither_a_page_nor_the_sums(
    inspector: Inspector, redis_client: redis.Redis, keys: Keys, submit: Any, spoil: str
) -> None:
    ids = submit(3)
    if spoil == "another type of key":
        redis_client.delete(keys.task(ids[1]))
        redis_client.set(keys.task(ids[1]), "x")
    elif spoil == "no status":
        redis_client.hdel(keys.task(ids[1]), "type")
    elif spoil == "no number":
        redis_client.hset(keys.task(ids[1]), "created_at", "soon")
    else:
        redis_client.hset(keys.task(ids[1]), "body", b"\xff{")

    assert [task.id for task in inspector.page(Status.PENDING).tasks] == [ids[2], ids[0]]
    assert inspector.get(ids[1]) is None
    assert inspector.counts().pending == 3


def test_pages_of_every_status_hold_its_tasks_and_no_other(
    inspector: Inspector, broker: Broker, submit: Any, claim: Any
) -> None:
    expected: dict[Status, set[str]] = {status: set() for status in Status}
    expected[Status.DELAYED] = set(submit(7, delay=100))
    for id in submit(6):
        (lease,) = claim(1)
        broker.complete(lease.id, lease.token, b"null")
        expected[Status.SUCCEEDED].add(id)
    for id in submit(5):
        (lease,) = claim(1)
        broker.fail(lease.id, lease.token, b"{}", delay=None)
        expected[Status.DEAD].add(id)
    expected[Status.PROCESSING] = set(submit(4))
    claim(4)
    for id in submit(3, queue="a"):
        broker.cancel(id)
        expected[Status.CANCELLED].add(id)
    expected[Status.PENDING] = set(submit(9, queue="a") + submit(9, queue="b") + submit(9))

    for status in Status:
        listed = all_pages(partial(page_of, inspector, status))
        assert len(listed) == len(set(listed)), status
        assert set(listed) == expected[status], status
    everything = all_pages(lambda cursor: inspector.page(limit=5, cursor=cursor))
    assert sorted(everything) == sorted(id for ids in expected.values() for id in ids)


def test_pages_can_be_narrowed_to_a_type_and_a_queue(inspector: Inspector, submit: Any) -> None:
    wanted = submit(3, type="rare", queue="b")
    submit(40, type="common", queue="b")
    submit(3, type="rare", queue="a")

    assert set(all_pages(lambda c: inspector.page(type="rare", queue="b", limit=2, cursor=c))) == set(wanted)
    assert len(all_pages(lambda c: inspector.page(Status.PENDING, type="rare", cursor=c))) == 6
    assert all_pages(lambda c: inspector.page(Status.PENDING, queue="none", cursor=c)) == []


def test_the_dead_come_newest_first(
    inspector: Inspector, redis_client: redis.Redis, keys: Keys, submit: Any
) -> None:
    ids = submit(10)
    for n, id in enumerate(ids):
        redis_client.hset(keys.task(id), "status", "dead")
        redis_client.zadd(keys("dead"), {id: n})

    assert all_pages(lambda c: inspector.page(Status.DEAD, limit=3, cursor=c)) == ids[::-1]


@pytest.mark.parametrize("status", [Status.DEAD, Status.DELAYED])
def test_pages_go_on_where_they_ended_among_equal_scores_whose_entries_vanish(
    inspector: Inspector, redis_client: redis.Redis, keys: Keys, submit: Any, status: Status
) -> None:
    ids = submit(400)
    for id in ids:
        redis_client.hset(keys.task(id), "status", status)
    redis_client.zadd(keys(status), dict.fromkeys(ids, 1_796_000_000_000))
    listed: list[str] = []
    cursor = None
    while True:
        page = inspector.page(status, limit=7, cursor=cursor)
        listed += [task.id for task in page.tasks]
        # Those that were shown go: also the one that the cursor names.
        redis_client.zrem(keys(status), *listed[-7:])
        cursor = page.next
        if cursor is None:
            break

    assert listed == sorted(ids, reverse=status is Status.DEAD)


def test_what_stays_pending_is_seen_while_others_come_and_go(
    inspector: Inspector, submit: Any, claim: Any
) -> None:
    ids = submit(300)
    staying = set(ids[100:])
    seen: list[str] = []
    cursor: Cursor | None = None
    while True:
        page = inspector.page(Status.PENDING, limit=20, cursor=cursor)
        seen += [task.id for task in page.tasks]
        cursor = page.next
        if cursor is None:
            break
        submit(10)
        claim(5)

    assert staying <= set(seen)
    assert len(seen) == len(set(seen))


def test_a_long_list_is_read_in_windows(inspector: Inspector, redis_client: redis.Redis, submit: Any) -> None:
    submit(5_000, type="common")
    redis_client.config_resetstat()

    page = inspector.page(Status.PENDING, type="absent", limit=100)

    stats = redis_client.info("commandstats")
    assert page.tasks == []
    assert page.next is not None or stats["cmdstat_hmget"]["calls"] <= 5_000
    assert not {"cmdstat_keys", "cmdstat_scan", "cmdstat_smembers"} & set(stats)
    assert len(all_pages(lambda c: inspector.page(Status.PENDING, limit=100, cursor=c))) == 5_000


def test_what_stays_pending_is_seen_though_newer_ones_are_purged(
    inspector: Inspector, broker: Broker, submit: Any
) -> None:
    ids = submit(60)
    first = inspector.page(Status.PENDING, limit=10)

    broker.purge("default", limit=25)

    rest = all_pages(lambda cursor: inspector.page(Status.PENDING, limit=10, cursor=cursor or first.next))
    assert rest == ids[34::-1]


def test_a_page_of_large_tasks_is_short(inspector: Inspector, submit: Any) -> None:
    submit(20, body=b'{"x":"' + b"x" * 200_000 + b'"}')

    page = inspector.page(Status.PENDING, limit=100)

    assert 1 <= len(page.tasks) < 10
    assert page.next is not None
    assert len(all_pages(lambda c: inspector.page(Status.PENDING, cursor=c))) == 20


def test_looking_changes_nothing(
    inspector: Inspector, redis_client: redis.Redis, submit: Any, claim: Any
) -> None:
    submit(5)
    claim(2)
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}

    inspector.counts()
    all_pages(lambda c: inspector.page(limit=2, cursor=c))
    inspector.get(submit(0) or new_id())

    assert {key: redis_client.dump(key) for key in redis_client.scan_iter()} == before
