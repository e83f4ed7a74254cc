"""The commands about tasks, the dead and queues, against a real server and without a node."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from prefork_q.broker import Broker
from prefork_q.cli.main import run
from prefork_q.client import Client
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Lease
from tests.support.server import Server

UNKNOWN = "01a227ee-635d-7572-9b90-05c41070da02"


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def cli(
    server: Server, keys: Keys, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """Return a function that runs a command on the server, in a namespace of its own."""
    monkeypatch.setenv("PREFORK_Q_REDIS_URL", server.url)
    monkeypatch.setenv("PREFORK_Q_NAMESPACE", keys.namespace)

    def call(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capfd.readouterr()
        code = run(list(arguments))
        return Ran(code, *capfd.readouterr())

    return call


@pytest.fixture
def client(server: Server, keys: Keys) -> Client:
    return Client(server.url, keys.namespace)


@pytest.fixture
def broker(server: Server, keys: Keys) -> Broker:
    return Broker(server.client(), keys)


def claim(broker: Broker, room: int = 1) -> list[Lease]:
    request = ClaimRequest("w.0.1", 1, 30_000, room, room, 0, ["default"])
    return broker.claim(request).leases


def bury(client: Client, broker: Broker, *types: str) -> list[str]:
    """Make dead tasks of these types; return their ids."""
    ids = [client.submit(type_, {"n": n}).id for n, type_ in enumerate(types)]
    for number in range(len(ids)):
        request = ClaimRequest(f"w.{number}.1", 1, 30_000, 1, 1, 0, ["default"])
        (lease,) = broker.claim(request).leases
        error = json.dumps({"type": "ValueError", "message": "as told\x1b[31m", "traceback": "..."})
        broker.fail(lease.id, lease.token, error.encode(), delay=None)
    return ids


# -- task


def test_submit_prints_the_id_alone_and_stores_the_payload(cli: Cli, client: Client) -> None:
    ran = cli("task", "submit", "add", '{"a": 1}', "--queue", "low", "--max-attempts", "7")

    assert (ran.code, ran.err) == (0, "")
    task = client.get(ran.out.strip())
    assert (task.type, task.payload, task.queue, task.max_attempts) == ("add", {"a": 1}, "low", 7)


def test_submit_waits_no_longer_than_it_is_told(cli: Cli, client: Client) -> None:
    ran = cli("task", "submit", "add", "--wait", "--timeout", "50ms")

    assert (ran.code, ran.out) == (75, "")
    id = ran.err.split()[1]
    assert client.get(id).status == "pending"
    assert cli("task", "submit", "add", "--timeout", "1s").code == 2


def test_submit_warns_of_a_type_that_no_live_worker_knows(cli: Cli, broker: Broker) -> None:
    node = {"ready": 1, "types": ["other"], "queues": ["default"], "host": "h", "version": "1"}
    assert cli("task", "submit", "add").err == ""  # nobody lives who could know it

    broker.register("n", node)
    warned = cli("task", "submit", "add")
    assert (warned.code, len(warned.out.split())) == (0, 1)
    assert "no live worker knows the type add" in warned.err
    assert cli("task", "submit", "add", "--json").err == ""
    assert cli("task", "submit", "other").err == ""


def test_submit_as_json_tells_the_status(cli: Cli) -> None:
    ran = cli("task", "submit", "add", "--delay", "5m", "--json")

    assert ran.json["status"] == "delayed"


def test_the_same_idempotency_key_gives_the_same_task(cli: Cli) -> None:
    first = cli("task", "submit", "add", '{"a": 1}', "--idempotency-key", "k")
    again = cli("task", "submit", "add", '{"a": 1}', "--idempotency-key", "k")
    other = cli("task", "submit", "add", '{"a": 2}', "--idempotency-key", "k")

    assert first.out == again.out
    assert (other.code, other.out) == (2, "")


def test_a_payload_may_come_from_stdin(cli: Cli, client: Client) -> None:
    ran = cli("task", "submit", "add", "-", stdin='{"a": "ä"}')

    assert client.get(ran.out.strip()).payload == {"a": "ä"}


@pytest.mark.parametrize("payload", ["{", "[1]", "7", '{"a": NaN}', '{"a": 1, "a": 2}'])
def test_a_payload_that_is_no_strict_json_object_is_wrong_usage(cli: Cli, payload: str) -> None:
    ran = cli("task", "submit", "add", payload)

    assert (ran.code, ran.out) == (2, "")
    assert "JSON" in ran.err


@pytest.mark.parametrize(
    "options", [["--delay", "soon"], ["--max-attempts", "0"], ["--queue", "a b"], ["--nosuch"]]
)
def test_a_wrong_option_is_wrong_usage(cli: Cli, options: list[str]) -> None:
    assert cli("task", "submit", "add", *options).code == 2


def test_show_and_list_say_the_same_as_json(cli: Cli, client: Client) -> None:
    id = client.submit("add", {"a": 1}).id

    shown = cli("task", "show", id, "--json").json
    listed = cli("task", "list", "--json").json

    assert shown["id"] == id
    assert shown["payload"] == {"a": 1}
    assert listed == {"tasks": [shown]}


def test_show_is_for_people_without_json(cli: Cli, client: Client) -> None:
    id = client.submit("add", {"a": 1}).id

    ran = cli("task", "show", id)

    assert re.search(rf"^id +{id}$", ran.out, re.MULTILINE)
    assert re.search(r'^payload +{"a": 1}$', ran.out, re.MULTILINE)


@pytest.mark.parametrize("group", ["task", "dead"])
def test_show_has_the_error_in_a_line_and_the_traceback_as_text_below(
    cli: Cli, client: Client, broker: Broker, group: str
) -> None:
    id = client.submit("add", {}).id
    (lease,) = claim(broker)
    error = {
        "type": "ValueError", "message": "as told\x1b[31m\nand more",
        "traceback": 'Traceback:\n  File "a.py"\n\x1b[31mraise\n',
        "cause": {"signal": 11, "stack": "in thread one\nin f"},
    }  # fmt: skip
    broker.fail(lease.id, lease.token, json.dumps(error).encode(), delay=None)

    ran = cli(group, "show", id)

    assert ran.code == 0, ran.err
    assert re.search(r"^error +ValueError: as told\\x1b\[31m\\nand more$", ran.out, re.MULTILINE)
    assert re.search(r'^cause +{"signal": 11}$', ran.out, re.MULTILINE)
    assert ran.out.endswith(
        '\n\nTraceback:\n  File "a.py"\n\\x1b[31mraise\n\nin thread one\nin f\n'
    )
    assert cli(group, "show", id, "--json").json["error"] == error


def test_list_finds_by_status_type_and_queue(cli: Cli, client: Client) -> None:
    client.submit("add", {}, queue="low")
    delayed = client.submit("add", {}, queue="low", delay=60).id
    client.submit("other", {}, queue="low", delay=60)
    client.submit("add", {}, delay=60)

    ran = cli("task", "list", "--status", "delayed", "--type", "add", "--queue", "low", "--json")

    assert [task["id"] for task in ran.json["tasks"]] == [delayed]


def test_list_goes_over_as_many_pages_as_its_limit_needs(cli: Cli, client: Client) -> None:
    for _ in range(130):
        client.submit("add", {})

    assert len(cli("task", "list", "--limit", "125", "--json").json["tasks"]) == 125
    assert len(cli("task", "list", "--json").json["tasks"]) == 50


def test_a_plain_list_is_aligned_and_has_a_header(cli: Cli, client: Client) -> None:
    id = client.submit("add", {}).id

    header, row = cli("task", "list").out.splitlines()

    assert header.split() == ["ID", "TYPE", "QUEUE", "STATUS", "ATTEMPTS", "CREATED"]
    assert row.split()[:5] == [id, "add", "default", "pending", "0"]


def test_wait_prints_the_result(cli: Cli, client: Client, broker: Broker) -> None:
    id = client.submit("add", {}).id
    (lease,) = claim(broker)
    broker.complete(lease.id, lease.token, b'{"sum":3}')

    ran = cli("task", "wait", id)

    assert (ran.code, ran.json) == (0, {"sum": 3})


def test_wait_fails_with_the_error_of_a_dead_task(cli: Cli, client: Client, broker: Broker) -> None:
    (id,) = bury(client, broker, "add")

    ran = cli("task", "wait", id)

    assert (ran.code, ran.out) == (1, "")
    assert "ValueError: as told" in ran.err


def test_wait_that_takes_too_long_may_be_tried_again(cli: Cli, client: Client) -> None:
    id = client.submit("add", {}).id

    assert cli("task", "wait", id, "--timeout", "50ms").code == 75


def test_cancel_ends_a_pending_task_once(cli: Cli, client: Client) -> None:
    id = client.submit("add", {}).id

    assert cli("task", "cancel", id).code == 0
    assert client.get(id).status == "cancelled"


def test_cancel_refuses_what_has_ended(cli: Cli, client: Client, broker: Broker) -> None:
    (id,) = bury(client, broker, "add")

    assert cli("task", "cancel", id).code == 1


@pytest.mark.parametrize("verb", ["show", "wait", "cancel", "explain"])
def test_a_task_that_is_not_there_is_a_failure(cli: Cli, verb: str) -> None:
    ran = cli("task", verb, UNKNOWN)

    assert (ran.code, ran.out) == (1, "")
    assert UNKNOWN in ran.err


# -- task explain


def reasons(cli: Cli, id: str) -> dict[str, str]:
    found = cli("task", "explain", id, "--json").json["reasons"]
    return {reason["reason"]: reason["detail"] for reason in found}


def test_explain_says_that_the_queue_is_paused_and_how_many_are_before(
    cli: Cli, client: Client, broker: Broker
) -> None:
    client.submit("add", {})
    client.submit("add", {})
    id = client.submit("add", {}).id
    broker.pause("default")

    found = reasons(cli, id)

    assert "paused" in found
    assert "2 tasks are before it" in found["behind"]


def test_explain_says_that_nobody_works_on_it(cli: Cli, client: Client, broker: Broker) -> None:
    id = client.submit("add", {}).id
    assert "no_worker" in reasons(cli, id)

    node = {"ready": 2, "types": ["other"], "queues": ["high"], "host": "h", "version": "1"}
    broker.register("n", node)
    assert {"unknown_type", "no_worker_for_queue"} <= set(reasons(cli, id))

    broker.register("n", node | {"types": ["add"], "queues": ["default"]})
    assert set(reasons(cli, id)) == {"next"}


def test_explain_says_that_the_type_and_the_queue_are_not_known_together(
    cli: Cli, client: Client, broker: Broker
) -> None:
    id = client.submit("add", {}).id
    node = {"ready": 2, "host": "h", "version": "1"}
    broker.register("n1", node | {"types": ["add"], "queues": ["high"]})
    broker.register("n2", node | {"types": ["other"], "queues": ["default"]})

    assert set(reasons(cli, id)) == {"no_worker_for_queue"}


def test_explain_says_that_whoever_could_run_it_is_quiet(cli: Cli, client: Client, broker: Broker) -> None:
    id = client.submit("add", {}).id
    node = {"ready": 2, "types": ["add"], "queues": ["default"], "host": "h", "version": "1"}
    broker.register("n1", node | {"quiet": True})
    broker.register("n2", node | {"types": ["other"]})
    assert "n1" in reasons(cli, id)["quiet"]

    broker.register("n3", node)
    assert set(reasons(cli, id)) == {"next"}


def test_explain_does_not_accuse_a_node_with_more_types_than_it_can_tell(
    cli: Cli, client: Client, broker: Broker
) -> None:
    id = client.submit("add", {}).id
    types = [f"type-{n}" for n in range(63)]

    broker.register("n", {"ready": 1, "types": types, "queues": ["default"]})

    assert set(reasons(cli, id)) == {"next"}


def test_explain_says_until_when_a_task_is_delayed(cli: Cli, client: Client) -> None:
    id = client.submit("add", {}, delay=3600).id

    assert "from now" in reasons(cli, id)["delayed"]


def test_explain_says_why_a_task_is_dead(cli: Cli, client: Client, broker: Broker) -> None:
    (id,) = bury(client, broker, "add")

    assert "ValueError: as told" in reasons(cli, id)["dead"]


def test_explain_says_that_a_worker_holds_it(cli: Cli, client: Client, broker: Broker) -> None:
    id = client.submit("add", {}).id
    claim(broker)

    assert "attempt 1 of 3" in reasons(cli, id)["processing"]


# -- dead


def test_dead_tasks_are_listed_with_their_error_and_no_control_characters(
    cli: Cli, client: Client, broker: Broker
) -> None:
    first, second = bury(client, broker, "add", "other")

    ran = cli("dead", "list")

    assert {first, second} == set(re.findall(r"^[0-9a-f-]{36}", ran.out, re.MULTILINE))
    assert "ValueError: as told\\x1b[31m" in ran.out
    assert "\x1b" not in ran.out
    assert [task["id"] for task in cli("dead", "list", "--type", "other", "--json").json["tasks"]] == [second]


def test_dead_show_is_for_dead_tasks_only(cli: Cli, client: Client, broker: Broker) -> None:
    (dead,) = bury(client, broker, "add")
    alive = client.submit("add", {}).id

    assert cli("dead", "show", dead, "--json").json["error"]["type"] == "ValueError"
    assert cli("dead", "show", alive).code == 1
    assert cli("dead", "show", UNKNOWN).code == 1


def test_dead_retry_gives_the_named_ones_a_new_life(cli: Cli, client: Client, broker: Broker) -> None:
    first, second = bury(client, broker, "add", "add")

    ran = cli("dead", "retry", first)

    assert ran.code == 0
    assert [client.get(id).status for id in (first, second)] == ["pending", "dead"]
    assert client.get(first).attempts == 0


def test_dead_retry_tells_of_those_that_are_not_dead(cli: Cli, client: Client, broker: Broker) -> None:
    (dead,) = bury(client, broker, "add")
    alive = client.submit("add", {}).id

    ran = cli("dead", "retry", dead, alive, UNKNOWN)

    assert ran.code == 1
    assert f"{alive} is not dead" in ran.err
    assert f"there is no task {UNKNOWN}" in ran.err
    assert "1 task retried" in ran.err
    assert client.get(dead).status == "pending"


def test_dead_retry_by_type_and_all(cli: Cli, client: Client, broker: Broker) -> None:
    ids = bury(client, broker, "add", "other", "add")

    assert cli("dead", "retry", "--type", "add").code == 0
    assert [client.get(id).status for id in ids] == ["pending", "dead", "pending"]
    assert cli("dead", "retry", "--all").code == 0
    assert client.get(ids[1]).status == "pending"


@pytest.mark.parametrize(
    "command",
    [
        ["dead", "list", "--type", ""],
        ["dead", "retry", "--type", ""],
        ["dead", "retry", "--type", "", "--all"],
        ["dead", "delete", "--type", "", "--all", "--yes"],
        ["task", "list", "--type", ""],
        ["task", "list", "--queue", ""],
    ],
)
def test_an_empty_name_is_wrong_usage_and_chooses_nothing(
    cli: Cli, client: Client, broker: Broker, command: list[str]
) -> None:
    (id,) = bury(client, broker, "add")

    ran = cli(*command)

    assert (ran.code, ran.out) == (2, "")
    assert command[2] in ran.err
    assert client.get(id).status == "dead"


@pytest.mark.parametrize("verb", ["retry", "delete"])
def test_dead_tasks_are_chosen_in_exactly_one_way(cli: Cli, verb: str) -> None:
    assert cli("dead", verb).code == 2
    assert cli("dead", verb, UNKNOWN, "--all").code == 2
    assert cli("dead", verb, "--type", "add", "--all").code == 2


def test_dead_delete_asks_first(cli: Cli, client: Client, broker: Broker) -> None:
    (id,) = bury(client, broker, "add")

    for answer in ("", "n\n"):
        ran = cli("dead", "delete", id, stdin=answer)
        assert (ran.code, ran.out) == (1, "")
        assert client.get(id).status == "dead"

    assert cli("dead", "delete", id, stdin="y\n").code == 0
    assert cli("task", "show", id).code == 1


def test_dead_delete_asks_only_if_there_is_something_to_delete(
    cli: Cli, client: Client, broker: Broker
) -> None:
    alive = client.submit("add", {}).id

    ran = cli("dead", "delete", UNKNOWN, alive)
    assert ran.code == 1
    assert ran.err.splitlines() == [
        f"there is no task {UNKNOWN}", f"task {alive} is not dead", "0 tasks deleted",
    ]  # fmt: skip

    client.cancel(alive)
    (dead,) = bury(client, broker, "add")
    assert "Delete 1 dead task for good?" in cli("dead", "delete", UNKNOWN, dead, stdin="n\n").err


def test_dead_delete_by_type_deletes_no_other(cli: Cli, client: Client, broker: Broker) -> None:
    ids = bury(client, broker, "add", "other")

    assert cli("dead", "delete", "--type", "add", "--yes").code == 0
    assert [cli("task", "show", id).code for id in ids] == [1, 0]


# -- queue


def test_queues_are_listed_paused_and_resumed(cli: Cli, client: Client) -> None:
    client.submit("add", {}, queue="low")

    assert cli("queue", "pause", "low").code == 0
    (queue,) = cli("queue", "list", "--json").json["queues"]
    assert (queue["name"], queue["pending"], queue["paused"]) == ("low", 1, True)
    assert cli("queue", "list").out.splitlines()[1].split()[:3] == ["low", "1", "yes"]

    assert cli("queue", "resume", "low").err == "queue low is resumed\n"
    assert cli("queue", "list", "--json").json["queues"][0]["paused"] is False


@pytest.mark.parametrize("verb", [["pause"], ["resume"], ["purge", "--yes"]])
def test_a_queue_that_never_was_is_a_failure(cli: Cli, verb: list[str]) -> None:
    assert cli("queue", *verb, "nosuch").code == 1


def test_purge_deletes_the_pending_tasks_of_one_queue_only(cli: Cli, client: Client) -> None:
    for _ in range(3):
        client.submit("add", {}, queue="low")
    kept = [client.submit("add", {}, queue="low", delay=60).id, client.submit("add", {}).id]

    asked = cli("queue", "purge", "low")
    assert asked.code == 1
    assert "3 pending tasks" in asked.err

    ran = cli("queue", "purge", "low", "--yes")
    assert ran.code == 0
    assert "3 tasks deleted" in ran.err
    assert {task["id"] for task in cli("task", "list", "--json").json["tasks"]} == set(kept)


# -- whatever the command


@pytest.mark.parametrize(
    "command",
    [
        ["task", "list"],
        ["task", "submit", "add"],
        ["dead", "list"],
        ["queue", "list"],
        ["queue", "pause", "a"],
    ],
)
def test_a_server_that_cannot_be_reached_has_its_own_exit_code(cli: Cli, command: list[str]) -> None:
    ran = cli(*command, "--redis-url", "redis://:secret@127.0.0.1:1")

    assert (ran.code, ran.out) == (69, "")
    assert "secret" not in ran.err


@pytest.mark.parametrize("command", ["task list", "dead list", "queue list"])
def test_a_wrong_configuration_has_its_own_exit_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert cli(*command.split(), "--namespace", "a b").code == 2
    monkeypatch.setenv("PREFORK_Q_NAMESPACE", "a b")

    ran = cli(*command.split())

    assert (ran.code, ran.out) == (78, "")
