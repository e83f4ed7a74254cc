"""The scripts against a model of the life cycle: many workers, stale tokens, repeats, crashes, in any order.

The model knows each task's status and counters and takes every step by a row of `states.TRANSITIONS`;
after each step Redis must agree with it, and the sums must add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from prefork_q.broker import Broker, HandBack, Renewal
from prefork_q.errors import IdempotencyConflict
from prefork_q.keys import Keys
from prefork_q.leases import Claimed, ClaimRequest, Limits, Settlement
from prefork_q.states import TRANSITIONS, Status
from prefork_q.task import Submission, Submitted
from tests.support.server import Server
from tests.support.state import LEASE, State, request

LIMITS = Limits(max_crashes=1, max_losses=1, unknown_limit=60.0)
QUEUES = ("high", "low")
ROWS = {(row.verb, row.before, row.after) for row in TRANSITIONS}

# What a rule needs it picks by number: what there is to pick from depends on clocks, numbers do not.
number = st.integers(0, 1_000)
outcome = st.tuples(
    st.sampled_from(["complete", "fail", "fail", "release"]), number, st.sampled_from([None, 0, 60])
)
outcomes = st.lists(outcome, min_size=1, max_size=4)


def left_by(verb: str) -> set[Status]:
    """The statuses in which the same call again is answered ok."""
    after = {row.after for row in TRANSITIONS if row.verb == verb and row.before is Status.PROCESSING}
    # What this verb has delayed may be due by now; its token is still the same.
    return after | {row.after for row in TRANSITIONS if row.verb == "promote" and row.before in after}


@dataclass
class Task:
    """What the model knows of a task."""

    queue: str
    status: Status
    token: int = 0
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    started: int = 0
    is_cancel_requested: bool = False
    is_expired: bool = False
    is_long_unknown: bool = False
    nonce: str = ""


@dataclass
class Worker:
    """One incarnation, and what it believes to hold."""

    name: str
    held: dict[str, int] = field(default_factory=dict)
    calls: list[ClaimRequest] = field(default_factory=list)
    recorded: tuple[int, dict[str, int]] = (0, {})
    is_gone: bool = False


def word_for(verb: str, status: Status) -> str:
    """What a worker is answered that said `verb` of a task that has this status now."""
    if status is Status.CANCELLED or (verb == "release" and status is Status.DEAD):
        return status.value
    return "ok"


class LifeCycle(RuleBasedStateMachine):
    """The real scripts, and the model beside them."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.client = client
        self.client.flushdb()
        keys = Keys("model")
        self.broker = Broker(client, keys, LIMITS)
        self.state = State(client, keys)
        self.tasks: dict[str, Task] = {}
        self.requests: list[list[Submission]] = []
        self.idempotent: dict[str, tuple[str, str]] = {}
        self.settlements: list[Settlement] = []
        self.paused: set[str] = set()
        self.last_token = 0
        self.births = 0
        self.workers: list[Worker] = []
        self.seen: set[tuple[str, Status | None, Status]] = set()

    @initialize()
    def begin(self) -> None:
        self.state.keepers_are_heard_of()
        for _ in range(2):
            self.bear()
        for queue in QUEUES:
            self.submit(6, queue, None, None, "")

    def bear(self) -> Worker:
        self.births += 1
        worker = Worker(f"node.{self.births % 3}.{self.births}")
        self.workers.append(worker)
        return worker

    # -- picking

    def living(self, n: int) -> Worker:
        alive = [worker for worker in self.workers if not worker.is_gone]
        return alive[n % len(alive)]

    def holder(self, n: int) -> Worker:
        """One who believes to hold something, dead or alive, if there is one."""
        holders = [worker for worker in self.workers if worker.held] or self.workers
        return holders[n % len(holders)]

    def any_id(self, n: int) -> str | None:
        ids = sorted(self.tasks)
        return ids[n % len(ids)] if ids else None

    def of_status(self, status: Status, n: int) -> str | None:
        ids = sorted(id for id, task in self.tasks.items() if task.status is status)
        return ids[n % len(ids)] if ids else None

    # -- the model's side of a step

    def move(self, id: str, verb: str, after: Status) -> None:
        before = self.tasks[id].status
        assert (verb, before, after) in ROWS, f"{verb} takes a task from {before} to {after}: no row says so"
        self.seen.add((verb, before, after))
        self.tasks[id].status = after

    def expect_submitted(self, submissions: Sequence[Submission]) -> list[Submitted]:
        answers = []
        for one in submissions:
            known = one.id if one.id in self.tasks else None
            if known is None and one.idempotency_key:
                first, _ = self.idempotent.get(one.idempotency_key, ("", ""))
                known = first if first in self.tasks else None
            if known is None:
                after = Status.DELAYED if one.delay else Status.PENDING
                assert ("submit", None, after) in ROWS
                self.seen.add(("submit", None, after))
                self.tasks[one.id] = Task(one.queue, after)
                if one.idempotency_key:
                    self.idempotent[one.idempotency_key] = (one.id, one.fingerprint or "")
            id = known or one.id
            answers.append(Submitted(id, self.tasks[id].status, is_replayed=id != one.id))
        return answers

    def expect_settled(self, one: Settlement) -> str:
        id = one.id.decode()
        task = self.tasks.get(id)
        if task is None or task.token != one.token:
            return "stale"
        if task.status is not Status.PROCESSING:
            return word_for(one.verb, task.status) if task.status in left_by(one.verb) else "stale"
        match one.verb:
            case "complete":
                self.move(id, "complete", Status.SUCCEEDED)
            case "fail":
                task.is_long_unknown = False
                after = Status.DEAD if one.delay_ms == "" else Status.DELAYED
                self.move(id, "fail", Status.CANCELLED if task.is_cancel_requested else after)
            case _:
                task.attempts -= 1
                if task.is_cancel_requested:
                    after = Status.CANCELLED
                elif one.delay_ms == "":
                    after = Status.PENDING
                else:
                    after = Status.DEAD if task.is_long_unknown else Status.DELAYED
                self.move(id, "release", after)
        return word_for(one.verb, task.status)

    def expect_claimed(self, worker: Worker, call: ClaimRequest, claimed: Claimed) -> None:
        assert claimed.dropped == ()
        assert claimed.is_gone is worker.is_gone
        ids = [lease.id.decode() for lease in claimed.leases]
        seq, recorded = worker.recorded
        if worker.is_gone or call.seq < seq:
            assert not ids
        elif seq == call.seq:
            assert {lease.id.decode(): lease.token for lease in claimed.leases} == {
                id: token
                for id, token in recorded.items()
                if id in self.tasks
                and self.tasks[id].token == token
                and self.tasks[id].status is Status.PROCESSING
            }
        else:
            self.expect_new_leases(worker, call, claimed)
        if call not in worker.calls:
            worker.calls.append(call)
        worker.held |= {lease.id.decode(): lease.token for lease in claimed.leases}

    def expect_new_leases(self, worker: Worker, call: ClaimRequest, claimed: Claimed) -> None:
        waiting = [
            id
            for id, task in self.tasks.items()
            if task.status is Status.PENDING and task.queue in call.queues and task.queue not in self.paused
        ]
        leases = claimed.leases
        assert len(leases) <= call.room
        assert bool(leases) is bool(waiting and call.room), "a claim with room leaves waiting tasks alone"
        if any(lease.crashes for lease in leases):
            assert len(leases) == 1, "a suspect has company"
        worker.recorded = (call.seq, {})
        if not leases:
            return
        (token,) = {lease.token for lease in leases}
        assert token > self.last_token
        self.last_token = token
        for lease in leases:
            id = lease.id.decode()
            assert id in waiting
            task = self.tasks[id]
            self.move(id, "claim", Status.PROCESSING)
            task.attempts += 1
            task.token, task.is_expired = token, False
            assert (lease.attempt, lease.crashes) == (task.attempts, task.crashes)
        worker.recorded = (call.seq, {lease.id.decode(): token for lease in leases})

    # -- clients

    @rule(
        n=st.integers(1, 6), queue=st.sampled_from(QUEUES), delay=st.sampled_from([None, 60.0]),
        key=st.sampled_from([None, None, "a", "b"]), fingerprint=st.sampled_from(["x", "x", "y"]),
    )
    def submit(self, n: int, queue: str, delay: float | None, key: str | None, fingerprint: str) -> None:
        ids = [f"{len(self.requests):08x}-{at:04x}-7000-8000-000000000000" for at in range(n)]
        submissions = [
            Submission(
                id, "t", b"{}", queue, delay=delay, idempotency_key=key, fingerprint=key and fingerprint
            )
            for id in ids
        ]
        self.requests.append(submissions)
        self.send(submissions)

    @rule(n=number)
    def submit_again(self, n: int) -> None:
        if self.requests:
            self.send(self.requests[n % len(self.requests)])

    def send(self, submissions: list[Submission]) -> None:
        for one in submissions:
            first, fingerprint = self.idempotent.get(one.idempotency_key or "", ("", ""))
            if first in self.tasks and fingerprint != one.fingerprint:
                with pytest.raises(IdempotencyConflict):
                    self.broker.submit(submissions)
                return
        answer = self.broker.submit(submissions)
        assert answer == self.expect_submitted(submissions)

    @rule(n=number, status=st.sampled_from([*Status, Status.PROCESSING, Status.PROCESSING]))
    def cancel(self, n: int, status: Status) -> None:
        id = self.of_status(status, n) or self.any_id(n)
        if id is None:
            return
        task = self.tasks[id]
        word = self.broker.cancel(id)
        match task.status:
            case Status.PENDING | Status.DELAYED:
                self.move(id, "cancel", Status.CANCELLED)
                assert word == "cancelled"
            case Status.PROCESSING:
                task.is_cancel_requested = True
                assert word == "requested"
            case Status.CANCELLED:
                assert word == "cancelled"
            case _:
                assert word == "ended"

    # -- workers

    @rule(n=number, room=st.integers(0, 5), queues=st.sampled_from([QUEUES, QUEUES, QUEUES[1:]]))
    def claim(self, n: int, room: int, queues: tuple[str, ...]) -> None:
        worker = self.living(n)
        call = request(worker.name, room=room, queues=queues)
        self.expect_claimed(worker, call, self.broker.claim(call))

    @rule(n=number)
    def claim_again(self, n: int) -> None:
        worker = self.workers[n % len(self.workers)]
        if worker.calls:
            self.expect_claimed(worker, worker.calls[-1], self.broker.claim(worker.calls[-1]))

    @rule(n=number)
    def an_old_claim_arrives_late(self, n: int) -> None:
        worker = self.workers[n % len(self.workers)]
        if worker.calls:
            call = worker.calls[n % len(worker.calls)]
            self.expect_claimed(worker, call, self.broker.claim(call))

    @rule(n=number, outcomes=outcomes)
    def settle(self, n: int, outcomes: list[tuple[str, int, int | None]]) -> None:
        # One of a task: each verb is a call of its own here, so two would have no order.
        settlements = list({one.id: one for one in self.settlements_of(self.holder(n), outcomes)}.values())
        assert self.broker.settle(settlements) == [self.expect_settled(one) for one in settlements]

    @rule(n=number, outcomes=outcomes, room=st.integers(0, 5))
    def commit(self, n: int, outcomes: list[tuple[str, int, int | None]], room: int) -> None:
        worker = self.living(n)
        settlements = self.settlements_of(worker, outcomes)
        call = request(worker.name, room=room, queues=QUEUES)
        words, claimed = self.broker.commit(settlements, call)
        assert words == [self.expect_settled(one) for one in settlements]
        self.expect_claimed(worker, call, claimed)

    @rule(n=number)
    def settle_again(self, n: int) -> None:
        if self.settlements:
            one = self.settlements[n % len(self.settlements)]
            assert self.broker.settle([one]) == [self.expect_settled(one)]

    def settlements_of(
        self, worker: Worker, outcomes: list[tuple[str, int, int | None]]
    ) -> list[Settlement]:
        settlements = []
        for verb, n, delay in outcomes:
            held = sorted(worker.held.items())
            if held:
                id, token = held[n % len(held)]
                delay_ms = "" if delay is None else delay * 1000
                settlements.append(Settlement(verb, id.encode(), token, n, b"{}", delay_ms))
        self.settlements += settlements
        return settlements

    # -- keepers

    @rule(n=number, is_started=st.booleans())
    def renew(self, n: int, is_started: bool) -> None:
        worker = self.holder(n)
        renewals = [Renewal(id, token, is_started) for id, token in worker.held.items()]
        words = self.broker.renew(renewals, lease=LEASE)
        for renewal, word in zip(renewals, words, strict=True):
            task = self.tasks.get(renewal.id)
            if task is None or task.token != renewal.token or task.status is not Status.PROCESSING:
                assert word == "stale"
                continue
            assert word == ("cancel" if task.is_cancel_requested else "ok")
            task.is_expired = False
            if is_started and task.started != renewal.token:
                task.started = renewal.token
                task.is_long_unknown = False

    @rule(n=number, is_started=st.booleans())
    def let_leases_expire(self, n: int, is_started: bool) -> None:
        self.renew(n, is_started)
        for id, token in self.holder(n).held.items():
            task = self.tasks.get(id)
            if task and task.status is Status.PROCESSING and task.token == token:
                self.state.age(id)
                task.is_expired = True

    @rule()
    def reap(self) -> None:
        self.state.keepers_are_heard_of()
        reaped = self.broker.reap(lease=LEASE)
        assert not reaped.is_holding
        answers = {one.id: one for one in reaped.expired}
        due = [id for id, task in self.tasks.items() if task.status is Status.PROCESSING and task.is_expired]
        assert sorted(answers) == sorted(due)
        for id in due:
            task = self.tasks[id]
            task.attempts -= 1
            task.losses += task.started == task.token
            task.is_long_unknown &= task.started != task.token
            task.token = 0
            if task.is_cancel_requested:
                after = Status.CANCELLED
            else:
                after = Status.DEAD if task.losses > LIMITS.max_losses else Status.PENDING
            self.move(id, "reap", after)
            assert (answers[id].status, answers[id].losses) == (after, task.losses)

    @rule(
        n=number, verdict=st.sampled_from(["held", "crashed", "crashed", "timed_out"]),
        delay=st.sampled_from([None, 60]),
    )
    def kill(self, n: int, verdict: str, delay: float | None) -> None:
        worker = self.living(n)
        entries = {id: HandBack(id, token) for id, token in worker.held.items()}
        if entries:
            guilty = sorted(entries)[n % len(entries)]
            entries[guilty] = entries[guilty]._replace(verdict=verdict, error=b"{}", delay=delay)
        returned = self.broker.hand_back(worker.name, list(entries.values()), lease=LEASE)
        for id, token in worker.recorded[1].items():
            entries.setdefault(id, HandBack(id, token))
        expected = {}
        for id, entry in entries.items():
            task = self.tasks.get(id)
            if task and task.status is Status.PROCESSING and task.token == entry.token:
                expected[id] = self.expect_handed_back(id, task, entry)
        assert {one.id: one.status for one in returned} == expected
        worker.is_gone = True
        self.bear()

    def expect_handed_back(self, id: str, task: Task, entry: HandBack) -> Status:
        task.token = 0
        if entry.verdict == "timed_out":
            task.is_long_unknown = False
            after = Status.DEAD if entry.delay is None else Status.DELAYED
            after = Status.CANCELLED if task.is_cancel_requested else after
        else:
            task.attempts -= 1
            task.crashes += entry.verdict == "crashed"
            task.is_long_unknown &= entry.verdict != "crashed"
            is_over = entry.verdict == "crashed" and task.crashes > LIMITS.max_crashes
            after = Status.DEAD if is_over else Status.PENDING
            after = Status.CANCELLED if task.is_cancel_requested else after
        self.move(id, "hand_back", after)
        return after

    @rule(n=number)
    def hand_back_again(self, n: int) -> None:
        gone = [worker for worker in self.workers if worker.is_gone]
        if gone:
            worker = gone[n % len(gone)]
            entries = [HandBack(id, token, "crashed", b"{}") for id, token in worker.held.items()]
            assert self.broker.hand_back(worker.name, entries, lease=LEASE) == []

    @rule(limit=st.integers(1, 8))
    def promote(self, limit: int) -> None:
        for id, task in self.tasks.items():
            if task.status is Status.DELAYED:
                self.state.age(id)
        promoted = self.broker.promote(limit)
        delayed = {id for id, task in self.tasks.items() if task.status is Status.DELAYED}
        moved = {id for id in delayed if self.state.status(id) is Status.PENDING}
        assert promoted.moved == len(moved) == min(limit, len(delayed))
        for id in moved:
            self.move(id, "promote", Status.PENDING)

    @rule(n=number)
    def let_a_type_be_unknown_for_long(self, n: int) -> None:
        id = self.of_status(Status.PROCESSING, n)
        if id:
            self.state.unknown_for(id, 3_600)
            self.tasks[id].is_long_unknown = True

    @rule(limit=st.integers(1, 3))
    def trim(self, limit: int) -> None:
        dead = [id for id, task in self.tasks.items() if task.status is Status.DEAD]
        trimmed = self.broker.trim(dead_limit=limit, dead_retention=86_400)
        assert trimmed == max(0, len(dead) - limit)
        self.forget(id for id in dead if self.state.status(id) is None)

    # -- operators

    @rule(n=number, nonce=st.sampled_from("pq"))
    def retry(self, n: int, nonce: str) -> None:
        id = self.of_status(Status.DEAD, n) or self.any_id(n)
        if id is None:
            return
        task = self.tasks[id]
        words = self.broker.retry([id], nonce=nonce)
        if task.nonce == nonce:
            # The same request again, whatever has become of the task since.
            assert words == ["ok"]
        elif task.status is Status.DEAD:
            assert words == ["ok"]
            self.move(id, "retry", Status.PENDING)
            self.tasks[id] = Task(task.queue, Status.PENDING, nonce=nonce)
        else:
            assert words == ["not_dead"]

    @rule(n=number)
    def delete(self, n: int) -> None:
        id = self.of_status(Status.DEAD, n) or self.any_id(n)
        if id is not None:
            is_dead = self.tasks[id].status is Status.DEAD
            assert self.broker.delete([id]) == ["ok" if is_dead else "not_dead"]
            self.forget([id] if is_dead else [])

    @rule()
    def purge(self) -> None:
        waiting = {
            id for id, task in self.tasks.items() if task.status is Status.PENDING and task.queue == "low"
        }
        left, deleted = self.broker.purge("low", limit=1)
        gone = [id for id in waiting if self.state.status(id) is None]
        assert deleted == len(gone) <= left <= 1
        self.forget(gone)

    @rule()
    def pause_or_resume(self) -> None:
        if "low" in self.paused:
            assert self.broker.resume("low") == "ok"
        else:
            assert self.broker.pause("low") == "ok"
        self.paused ^= {"low"}

    def forget(self, ids: object) -> None:
        for id in list(ids):  # type: ignore[call-overload]
            del self.tasks[id]

    # -- what must hold after each step

    @invariant()
    def redis_agrees_with_the_model(self) -> None:
        snapshot = self.state.snapshot()
        stored = {
            name.removeprefix("task:"): task
            for name, (task, _) in snapshot.items()
            if name.startswith("task:")
        }
        assert {id: task["status"] for id, task in stored.items()} == {
            id: task.status.value for id, task in self.tasks.items()
        }
        for id, task in self.tasks.items():
            counters = [int(stored[id].get(name, 0)) for name in ("attempts", "crashes", "losses", "token")]
            assert counters == [task.attempts, task.crashes, task.losses, task.token], id
        self.state.assert_sums(snapshot)


def test_the_scripts_do_what_the_table_of_transitions_says(server: Server) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: LifeCycle(server.client()),
        settings=settings(
            max_examples=40, stateful_step_count=50, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def test_every_row_of_the_table_is_taken(server: Server) -> None:
    """A walk by hand: what chance takes rarely, and any row that is new, is taken here."""
    model = LifeCycle(server.client())
    model.begin()

    def hold(n: int) -> None:
        """Have the next living worker hold so many tasks, and no other believe that it holds any."""
        for worker in model.workers:
            worker.held.clear()
        model.claim(0, n, QUEUES)
        assert len(model.living(0).held) == n

    def ask_to_cancel(place: int) -> None:
        model.cancel(place, Status.PROCESSING)

    model.submit(2, "high", 60.0, None, "")
    model.submit(5, "high", None, None, "")
    hold(5)
    ask_to_cancel(3)
    model.settle(
        0, [("complete", 0, None), ("fail", 1, 60), ("fail", 2, None), ("fail", 3, 60), ("release", 4, None)]
    )
    hold(4)
    ask_to_cancel(1)
    model.let_a_type_be_unknown_for_long(2)
    model.settle(0, [("release", 0, 60), ("release", 1, None), ("release", 2, 60), ("release", 3, None)])

    hold(2)
    ask_to_cancel(1)
    model.let_leases_expire(0, True)
    model.reap()
    hold(1)
    model.let_leases_expire(0, True)
    model.reap()

    hold(2)
    ask_to_cancel(1)
    model.kill(0, "timed_out", 60)
    hold(1)
    model.kill(0, "timed_out", None)
    hold(1)
    ask_to_cancel(0)
    model.kill(0, "held", None)
    hold(1)
    model.kill(0, "crashed", None)

    model.cancel(0, Status.PENDING)
    model.cancel(0, Status.DELAYED)
    model.promote(8)
    model.retry(0, "p")
    model.redis_agrees_with_the_model()

    # That a payload is gone cannot come about here: test_claim has it.
    assert ROWS - model.seen == {("claim", Status.PENDING, Status.DEAD)}
