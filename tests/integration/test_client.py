"""The client against a real server: submitting, following, waiting, and what a lost answer costs."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
import redis

from prefork_q import (
    App,
    Client,
    Conflict,
    IdempotencyConflict,
    Invalid,
    NewTask,
    NotFound,
    TaskFailed,
    TooLarge,
    Unavailable,
)
from prefork_q.broker import Broker, HandBack
from prefork_q.connection import connect
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Lease
from prefork_q.states import Status
from prefork_q.task import Submission
from prefork_q.waiting import LOOK_AGAIN
from tests.support.server import Server, free_port
from tests.support.until import until


class Hand:
    """A worker by hand: claims tasks and says how they end."""

    def __init__(self, url: str, keys: Keys) -> None:
        self.redis = connect(url)
        self.broker = Broker(self.redis, keys)
        self.inspector = Inspector(self.redis, keys)
        self._calls = 0

    def claim(self, *queues: str) -> Lease:
        self._calls += 1
        request = ClaimRequest(f"hand.{self._calls}", 1, 30_000, 1, 1, 0, queues or ("default",))
        return self.broker.claim(request).leases[0]

    def complete(self, result: object) -> None:
        lease = self.claim()
        self.broker.complete(lease.id, lease.token, orjson.dumps(result))

    def bury(self, message: str) -> None:
        lease = self.claim()
        error = orjson.dumps({"type": "ValueError", "message": message, "traceback": ""})
        self.broker.fail(lease.id, lease.token, error, delay=None)


@pytest.fixture
def client(server: Server, keys: Keys) -> Iterator[Client]:
    with Client(server.url, keys.namespace) as client:
        yield client


@pytest.fixture
def hand(server: Server, keys: Keys) -> Iterator[Hand]:
    hand = Hand(server.url, keys)
    yield hand
    hand.redis.close()


@pytest.fixture
def in_background() -> Iterator[Callable[..., Any]]:
    """Return a function that calls another one in a thread."""
    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


class TestSubmit:
    def test_a_task_is_stored_as_it_was_asked_for(self, client: Client) -> None:
        task = client.submit(
            "thumbnail", {"path": "a"}, queue="low", max_attempts=5, timeout=1.5, idempotency_key="k"
        )
        record = client.get(task.id)

        assert task.status is Status.PENDING
        assert not task.is_replayed
        assert (record.type, record.queue, record.status, record.payload) == (
            "thumbnail", "low", Status.PENDING, {"path": "a"},
        )  # fmt: skip
        assert (record.max_attempts, record.timeout, record.attempts) == (5, 1.5, 0)
        assert abs(record.created_at - time.time()) < 60

    def test_without_options_it_waits_in_the_default_queue_for_three_attempts(self, client: Client) -> None:
        record = client.submit("work").refresh()

        assert (record.queue, record.max_attempts, record.timeout, record.payload) == ("default", 3, None, {})

    @pytest.mark.parametrize(
        "value",
        [
            2**53 + 1,
            2**63 - 1,
            -(2**63),
            2**64 - 1,
            0.1,
            1e-7,
            [],
            {},
            [[]],
            {"a": []},
            None,
            "",
            "é😀\0\u202e",
        ],
    )
    def test_a_payload_comes_back_exactly(self, client: Client, hand: Hand, value: Any) -> None:
        task = client.submit("work", {"value": value})

        assert client.get(task.id).payload == {"value": value}
        assert orjson.loads(hand.claim().body) == {"value": value}

    def test_a_task_for_later_is_delayed(self, client: Client) -> None:
        due = time.time() + 3600

        by_delay, by_time, now, past = (
            client.submit("work", delay=3600),
            client.submit("work", run_at=due),
            client.submit("work", delay=0),
            client.submit("work", run_at=time.time() - 3600),
        )

        assert (by_delay.status, by_time.status) == (Status.DELAYED, Status.DELAYED)
        assert (now.status, past.status) == (Status.PENDING, Status.PENDING)
        assert by_time.refresh().run_at == pytest.approx(due, abs=0.001)
        assert by_delay.refresh().run_at == pytest.approx(due, abs=60)

    def test_what_is_wrong_is_refused_and_nothing_is_stored(self, client: Client, hand: Hand) -> None:
        for options in (
            {"payload": {"a": float("nan")}},
            {"max_attempts": 0},
            {"queue": "a b"},
            {"delay": -1},
        ):
            with pytest.raises(Invalid):
                client.submit("work", **options)
        with pytest.raises(TooLarge):
            client.submit("work", {"a": "x" * 300_000})
        with pytest.raises(Invalid):
            client.submit_many([NewTask("work"), NewTask("w o r k")])

        assert hand.inspector.counts().totals.get("submitted", 0) == 0

    def test_the_limit_of_payloads_is_the_configured_one(
        self, server: Server, keys: Keys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PREFORK_Q_PAYLOAD_LIMIT", "100")

        with Client(server.url, keys.namespace) as client, pytest.raises(TooLarge, match="100 are allowed"):
            client.submit("work", {"a": "x" * 100})

    def test_a_handler_submits_with_its_own_policy(self, server: Server, keys: Keys) -> None:
        app = App(server.url, keys.namespace)

        @app.task("thumbnail", queue="low", max_attempts=7, timeout=9)
        def thumbnail(path: str, width: int = 128) -> None: ...

        task = thumbnail.submit(path="a")
        other = thumbnail.options(delay=5, queue="high", max_attempts=1).submit("b", width=3)

        record, delayed = task.refresh(), other.refresh()
        assert (record.queue, record.max_attempts, record.timeout, record.payload) == (
            "low", 7, 9, {"path": "a"},
        )  # fmt: skip
        assert (delayed.queue, delayed.status, delayed.max_attempts) == ("high", Status.DELAYED, 1)
        assert delayed.payload == {"path": "b", "width": 3}
        app.client.close()


class TestIdempotency:
    def test_the_same_request_again_is_the_first_ones_task(
        self, client: Client, server: Server, keys: Keys
    ) -> None:
        first = client.submit("work", {"a": 1, "b": 2}, idempotency_key="k")
        with Client(server.url, keys.namespace) as other:
            again = other.submit("work", {"b": 2, "a": 1}, idempotency_key="k")

        assert again.id == first.id
        assert (first.is_replayed, again.is_replayed) == (False, True)

    def test_another_request_under_the_key_is_a_conflict(self, client: Client) -> None:
        client.submit("work", {"a": 1}, idempotency_key="k")

        with pytest.raises(IdempotencyConflict, match="'k' was used for another request") as caught:
            client.submit("work", {"a": 2}, idempotency_key="k")
        assert caught.value.pointer == "/idempotency_key"

    def test_of_many_at_once_one_is_stored(self, client: Client, in_background: Callable[..., Any]) -> None:
        futures = [in_background(client.submit, "work", {"a": 1}, idempotency_key="k") for _ in range(50)]
        tasks = [future.result(30) for future in futures]

        assert len({task.id for task in tasks}) == 1
        assert [task.is_replayed for task in tasks].count(False) == 1


class TestSubmitMany:
    def test_tasks_are_stored_in_order_in_bounded_calls(self, client: Client, hand: Hand) -> None:
        client.submit("warm", queue="x")
        hand.redis.config_resetstat()
        tasks = client.submit_many(NewTask("work", {"n": n}) for n in range(1234))
        assert calls(hand, "evalsha") == 3

        assert [task.refresh().payload["n"] for task in (tasks[0], tasks[500], tasks[-1])] == [0, 500, 1233]
        assert len({task.id for task in tasks}) == len(tasks) == 1234
        assert [orjson.loads(hand.claim().body)["n"] for _ in range(3)] == [0, 1, 2]

    def test_large_payloads_are_spread_over_calls(self, client: Client, hand: Hand) -> None:
        tasks = client.submit_many(NewTask("work", {"a": "x" * 200_000}) for _ in range(20))

        assert hand.inspector.counts().pending == len(tasks) == 20

    def test_none_is_no_call(self, client: Client, hand: Hand) -> None:
        assert client.submit_many([]) == []

    def test_many_are_stored_once_and_in_order_though_the_connection_is_lost_between_them(
        self, client: Client, hand: Hand
    ) -> None:
        broker = client._here().broker
        in_turn = broker.submit_in_turn

        def cut(batches: Iterable[Sequence[Submission]]) -> Iterator[Sequence[Submission]]:
            for number, batch in enumerate(batches):
                yield batch
                if number == 1:
                    hand.redis.client_kill_filter(_type="normal", skipme=True)

        broker.submit_in_turn = lambda batches: in_turn(cut(batches))  # type: ignore[method-assign]
        tasks = client.submit_many(NewTask("work", {"n": n}) for n in range(3_000))

        assert [client.get(tasks[n].id).payload["n"] for n in (0, 999, 2_999)] == [0, 999, 2_999]
        assert hand.inspector.counts().pending == len({task.id for task in tasks}) == 3_000

    def test_many_are_stored_though_the_server_forgets_the_script_between_them(
        self, client: Client, hand: Hand
    ) -> None:
        broker = client._here().broker
        in_turn = broker.submit_in_turn

        def forgetting(batches: Iterable[Sequence[Submission]]) -> Iterator[Sequence[Submission]]:
            for batch in batches:
                hand.redis.script_flush()
                yield batch

        broker.submit_in_turn = lambda batches: in_turn(forgetting(batches))  # type: ignore[method-assign]
        tasks = client.submit_many(NewTask("work", {"n": n}) for n in range(2_000))

        assert hand.inspector.counts().pending == len({task.id for task in tasks}) == 2_000

    def test_a_conflict_names_its_place(self, client: Client) -> None:
        client.submit("work", {"a": 1}, idempotency_key="k")
        tasks = [NewTask("work") for _ in range(600)]
        tasks[550] = NewTask("work", {"a": 2}, idempotency_key="k")

        with pytest.raises(IdempotencyConflict) as caught:
            client.submit_many(tasks)
        assert caught.value.index == 550

    def test_handlers_make_tasks_for_it(self, server: Server, keys: Keys) -> None:
        app = App(server.url, keys.namespace)

        @app.task("double", queue="low")
        def double(n: int) -> int:
            return 2 * n

        tasks = app.client.submit_many([double.new(n=1), double.options(queue="high").new(2)])

        assert [task.refresh().queue for task in tasks] == ["low", "high"]
        app.client.close()


class TestWait:
    @pytest.mark.parametrize("result", [{"a": [1]}, None, 0, "", False, [2**64 - 1]])
    def test_the_result_comes_as_soon_as_there_is_one(
        self, client: Client, hand: Hand, in_background: Callable[..., Any], result: Any
    ) -> None:
        task = client.submit("work")
        future = in_background(task.wait, 30)
        until(lambda: is_waited_for(hand, client, task.id))

        started = time.monotonic()
        hand.complete(result)

        assert future.result(10) == result
        # Far less than the time after which it would look again by itself.
        assert time.monotonic() - started < LOOK_AGAIN / 3

    def test_a_task_that_has_ended_is_not_waited_for(self, client: Client, hand: Hand) -> None:
        task = client.submit("work")
        hand.complete(7)

        assert client.wait(task.id, 0) == 7
        assert client.wait(task.id) == 7

    def test_a_dead_one_tells_why(
        self, client: Client, hand: Hand, in_background: Callable[..., Any]
    ) -> None:
        task = client.submit("work", max_attempts=1)
        future = in_background(task.wait, 30)
        until(lambda: is_waited_for(hand, client, task.id))

        hand.bury("no such file")

        with pytest.raises(TaskFailed, match=rf"task {task.id} is dead: ValueError: no such file") as caught:
            future.result(10)
        assert caught.value.status == "dead"
        assert caught.value.error is not None
        assert caught.value.error["message"] == "no such file"

    def test_a_cancelled_one_tells_so(
        self, client: Client, hand: Hand, in_background: Callable[..., Any]
    ) -> None:
        task = client.submit("work")
        future = in_background(task.wait, 30)
        until(lambda: is_waited_for(hand, client, task.id))

        task.cancel()

        with pytest.raises(TaskFailed, match="is cancelled"):
            future.result(10)

    def test_a_worker_that_died_ends_the_wait_too(
        self, client: Client, hand: Hand, in_background: Callable[..., Any]
    ) -> None:
        task = client.submit("work")
        lease = hand.claim()
        future = in_background(task.wait, 30)
        until(lambda: is_waited_for(hand, client, task.id))

        limited = Broker(hand.redis, client._keys)
        error = orjson.dumps({"type": "TaskTimeout", "message": "killed", "traceback": ""})
        limited.hand_back("hand.1", [HandBack(task.id, lease.token, "timed_out", error)], lease=30)

        with pytest.raises(TaskFailed):
            future.result(10)

    def test_the_time_is_kept(self, client: Client) -> None:
        task = client.submit("work")

        for timeout in (0, 0.3):
            started = time.monotonic()
            with pytest.raises(TimeoutError, match=rf"has not ended within {timeout} s"):
                task.wait(timeout)
            assert timeout <= time.monotonic() - started < timeout + 3

    def test_what_does_not_exist_is_not_waited_for(self, client: Client) -> None:
        for id in (new_id(), "nonsense", ""):
            with pytest.raises(NotFound):
                client.wait(id, 30)

    def test_waiting_does_not_ask_again_and_again(
        self, client: Client, hand: Hand, in_background: Callable[..., Any]
    ) -> None:
        task = client.submit("work")
        future = in_background(task.wait, 1.5)
        until(lambda: is_waited_for(hand, client, task.id))
        hand.redis.config_resetstat()

        with pytest.raises(TimeoutError):
            future.result(10)

        # One last look, when the time is over.
        assert calls(hand, "evalsha") <= 1
        assert calls(hand, "subscribe") == 0

    def test_many_wait_at_once_and_none_is_forgotten(
        self, client: Client, hand: Hand, in_background: Callable[..., Any]
    ) -> None:
        tasks = client.submit_many(NewTask("work", {"n": n}) for n in range(32))
        futures = [in_background(task.wait, 60) for task in tasks]

        # Some are waited for by now, some will be, some have ended before.
        for n in range(32):
            hand.complete(n)

        assert [future.result(30) for future in futures] == list(range(32))
        until(lambda: not hand.redis.client_list(_type="pubsub"), what="the listeners being closed")


class TestCancelAndRetry:
    def test_words_and_errors_of_cancel(self, client: Client, hand: Hand) -> None:
        running, waiting, ended = (
            client.submit("work"),
            client.submit("work"),
            client.submit("work", queue="x"),
        )
        hand.claim()
        lease = hand.claim("x")
        hand.broker.complete(lease.id, lease.token, b"1")

        assert running.cancel() == "requested"
        assert waiting.cancel() == "cancelled"
        with pytest.raises(Conflict, match="has ended"):
            ended.cancel()
        for id in (new_id(), "nonsense"):
            with pytest.raises(NotFound):
                client.cancel(id)
        assert waiting.refresh().status is waiting.status is Status.CANCELLED

    def test_a_dead_one_gets_a_new_life(self, client: Client, hand: Hand) -> None:
        task = client.submit("work", max_attempts=1)
        with pytest.raises(Conflict, match="is not dead"):
            client.retry(task.id)
        hand.bury("no")

        client.retry(task.id)

        assert task.refresh().status is Status.PENDING
        for id in (new_id(), "nonsense"):
            with pytest.raises(NotFound):
                client.retry(id)

    def test_get_finds_or_says_so(self, client: Client) -> None:
        for id in (new_id(), "nonsense", "", "a" * 1000):
            with pytest.raises(NotFound):
                client.get(id)


class TestTrouble:
    def test_an_answer_that_is_lost_costs_no_second_task(
        self, server: Server, keys: Keys, hand: Hand
    ) -> None:
        with Cutter(server) as cutter, Client(cutter.url, keys.namespace) as client:
            client.submit("work")
            cutter.cut_next_answer()

            task = client.submit("work", {"n": 1})
            more = client.submit_many([NewTask("work", {"n": 2}), NewTask("work", {"n": 3})])

            assert cutter.has_cut
            assert not task.is_replayed
            assert client.get(task.id).payload == {"n": 1}
            assert len(more) == 2
        assert hand.inspector.counts().totals["submitted"] == hand.inspector.counts().pending == 4

    def test_a_retry_whose_answer_is_lost_is_no_conflict(
        self, server: Server, keys: Keys, hand: Hand
    ) -> None:
        with Cutter(server) as cutter, Client(cutter.url, keys.namespace) as client:
            task = client.submit("work", max_attempts=1)
            hand.bury("no")
            cutter.cut_next_answer()

            client.retry(task.id)

            assert cutter.has_cut
            assert task.refresh().status is Status.PENDING

    def test_scripts_that_the_server_forgot_are_sent_again(self, client: Client, hand: Hand) -> None:
        client.submit("work")
        hand.redis.script_flush()

        assert client.submit("work").refresh().status is Status.PENDING

    def test_no_server_is_told_within_the_time_for_repeating(self) -> None:
        client = Client(f"redis://:s3cret@127.0.0.1:{free_port()}")

        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            client.submit("work")
        assert time.monotonic() - started < 10
        assert caught.value.kind == "connection"
        assert "s3cret" not in str(caught.value)

        started = time.monotonic()
        with pytest.raises(Unavailable):
            client.wait(new_id(), 0.5)
        assert 0.4 < time.monotonic() - started < 5

    def test_a_denial_is_told(self, new_server: Callable[..., Server]) -> None:
        server = new_server(arguments=["--requirepass", "s3cret"])
        client = Client(server.url.replace("redis://", "redis://:wrong@"))

        with pytest.raises(Unavailable) as caught:
            client.submit("work")
        assert caught.value.kind == "denied"
        assert "s3cret" not in str(caught.value)

    def test_a_wait_outlasts_a_restart_of_the_server(
        self, own_server: Server, keys: Keys, in_background: Callable[..., Any]
    ) -> None:
        hand = Hand(own_server.url, keys)
        with Client(own_server.url, keys.namespace) as client:
            task = client.submit("work")
            future = in_background(task.wait, 60)
            until(lambda: is_waited_for(hand, client, task.id))

            own_server.kill()
            own_server.start()
            until(lambda: completed(hand, "done"), timeout=20)

            assert future.result(30) == "done"
        hand.redis.close()

    def test_a_server_that_is_full_says_so_and_stores_nothing(
        self, new_server: Callable[..., Server]
    ) -> None:
        server = new_server(is_persistent=False)
        with Client(server.url) as client:
            client.submit("work")
            raw = server.client()
            raw.config_set("maxmemory", "1")

            with pytest.raises(Unavailable, match="full") as caught:
                client.submit("work")
            assert caught.value.kind == "full"

            raw.config_set("maxmemory", "0")
            assert client.submit("work").status is Status.PENDING


class TestSharing:
    def test_threads_share_a_client(self, client: Client, in_background: Callable[..., Any]) -> None:
        futures = [in_background(client.submit, "work", {"n": n}) for n in range(200)]

        assert [future.result(30).refresh().payload["n"] for future in futures] == list(range(200))

    @pytest.mark.usefixtures("single_threaded")
    def test_a_client_that_came_over_a_fork_connects_anew_and_leaves_the_parents_connection(
        self, client: Client, hand: Hand
    ) -> None:
        task = client.submit("work", {"from": "parent"})
        mine = addresses(hand)
        reader, writer = os.pipe()

        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                theirs = client.submit("work", {"from": "child"})
                os.write(writer, theirs.id.encode())
                client.close()
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        id = os.read(reader, 100).decode()
        os.close(reader)

        assert client.get(id).payload == {"from": "child"}
        assert task.refresh().payload == {"from": "parent"}
        assert addresses(hand) == mine

    def test_a_closed_client_connects_again(self, client: Client) -> None:
        task = client.submit("work")
        client.close()

        assert task.refresh().status is Status.PENDING


class Cutter:
    """A proxy that can lose an answer: the server has done the work, the client never hears of it."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed = threading.Event()
        self._threads: list[threading.Thread] = []
        self.has_cut = False
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"

    def __enter__(self) -> Cutter:
        self._run(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def cut_next_answer(self) -> None:
        self._armed.set()

    def _run(self, function: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=function, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._run(self._pump, near, far, False)
            self._run(self._pump, far, near, True)

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_answer and self._armed.is_set():
                    self._armed.clear()
                    self.has_cut = True
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


def is_waited_for(hand: Hand, client: Client, id: str) -> bool:
    return bool(hand.redis.hexists(client._keys.task(id), "waited"))


def completed(hand: Hand, result: object) -> bool:
    try:
        hand.complete(result)
    except (Unavailable, redis.RedisError):
        return False
    return True


def calls(hand: Hand, command: str) -> int:
    stats: Any = hand.redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


def addresses(hand: Hand) -> set[str]:
    return {entry["addr"] for entry in hand.redis.client_list()}
