"""The scripts on servers that restart, and on a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable

from prefork_q.broker import Broker, HandBack
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import Settlement
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.support.server import Server
from tests.support.state import LEASE, State, request
from tests.support.until import until


def life_of_a_few_tasks(broker: Broker, state: State) -> None:
    """Take tasks through most of the life cycle."""
    ids = [new_id() for _ in range(6)]
    broker.submit([Submission(id, "t", b"{}", idempotency_key=id, fingerprint="x") for id in ids])
    one, two, three, four = broker.claim(request(room=4)).leases
    broker.complete(one.id, one.token, b"1")
    broker.fail(two.id, two.token, b"{}", delay=0)
    broker.fail(three.id, three.token, b"{}", delay=None)
    broker.hand_back("node.0.1", [HandBack(ids[3], four.token, "crashed", b"{}")], lease=LEASE)
    broker.promote()
    broker.cancel(ids[4])
    broker.retry([ids[2]], nonce="n")
    assert state.status(ids[0]) is Status.SUCCEEDED
    (suspect,) = broker.claim(request("node.0.2", room=9)).leases
    outcomes = [Settlement("complete", suspect.id, suspect.token, 1, b"1")]
    _, claimed = broker.commit(outcomes, request("node.0.2", room=9))
    assert [lease.id.decode() for lease in claimed.leases] == [ids[5], ids[1], ids[2]]


def test_after_a_kill_of_the_server_everything_is_there_and_goes_on(own_server: Server, keys: Keys) -> None:
    broker, state = Broker(own_server.client(), keys), State(own_server.client(), keys)
    life_of_a_few_tasks(broker, state)
    state.seed("pending")
    (before,) = broker.claim(request("node.0.2")).leases
    snapshot = state.snapshot(without=["reaper"])

    own_server.kill()
    own_server.start()

    broker, state = Broker(own_server.client(), keys), State(own_server.client(), keys)
    assert state.snapshot(without=["reaper"]) == snapshot
    broker.complete(before.id, before.token, b"1")
    state.seed("pending")
    (after,) = broker.claim(request("node.0.2")).leases
    assert after.token > before.token
    state.assert_sums()


def test_a_node_of_a_cluster_serves_a_namespace(new_server: Callable[..., Server], keys: Keys) -> None:
    server = new_server(is_persistent=False, arguments=["--cluster-enabled", "yes"])
    client = server.client()
    client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
    until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), what="a whole cluster")
    broker, state = Broker(client, keys), State(client, keys)

    life_of_a_few_tasks(broker, state)

    state.assert_sums()
