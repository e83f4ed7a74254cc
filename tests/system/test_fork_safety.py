"""Connections, threads and locks that exist before a fork: no process ever uses those of another."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import leaks
from tests.support.ledger import Ledger
from tests.support.load import load
from tests.support.node import Node
from tests.support.server import Server, ServerDied, dies_with_its_parent, free_port
from tests.support.until import until

StartNode = Callable[..., Node]

CLIENT = """
import os, time
import redis
from prefork_q import App
app = App()
client = redis.Redis.from_url({url!r}, decode_responses=True)
assert client.ping()
@app.task("ask", max_attempts=1)
def ask(word: str) -> list:
    # Who shared its connection with another process would get the other's answers.
    answers = [client.echo(f"{{word}} {{n}}") for n in range(20)]
    time.sleep(0.05)
    return [answers == [f"{{word}} {{n}}" for n in range(20)], os.getpid(), client.client_id()]
"""

EXPORTER = """
import os, queue, threading
from prefork_q import App
app = App()
# What clients with a channel of their own do when they are imported: a thread that serves all calls.
calls: queue.Queue = queue.Queue()
answered = threading.Condition()
answers = {}
def serve():
    while True:
        call = calls.get()
        with answered:
            answers[call] = call * 2
            answered.notify_all()
threading.Thread(target=serve, name="channel", daemon=True).start()
@app.task("call", max_attempts=1)
def call(n: int) -> int:
    calls.put(n)
    with answered:
        answered.wait_for(lambda: n in answers)
        return answers[n]
"""

LOGGER = """
import logging, os, threading
from prefork_q import App
app = App()
logging.basicConfig(filename=os.devnull)
def chatter():
    while True:
        logging.warning("a line from a thread that never rests")
threading.Thread(target=chatter, name="chatter", daemon=True).start()
@app.on_worker_start
def begin():
    logging.warning("a line from a worker that begins")
@app.task("log")
def log() -> int:
    logging.warning("a line from a task")
    return os.getpid()
"""


def written(folder: Path, text: str) -> str:
    path = folder / "own.py"
    path.write_text(text)
    return f"{path}:app"


def links(pid: int) -> set[tuple[str, int]]:
    """The near ends of its TCP connections; a listening socket is none."""
    found = psutil.Process(pid).net_connections(kind="tcp")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_ESTABLISHED}


def test_the_master_has_no_line_to_redis_and_each_of_the_others_its_own(start_node: StartNode) -> None:
    node = start_node(workers=3, api_processes=2)
    node.ended(node.submit("return"))
    pids = node.pids()

    assert links(node.pid) == links(pids["template"][0]) == set()
    own = {pid: links(pid) for pid in (*pids["worker"], *pids["keeper"])}
    assert all(own.values())
    for one, other in itertools.combinations(own, 2):
        assert not own[one] & own[other]


def test_a_client_made_at_import_is_told_and_never_shared(
    start_node: StartNode, server: Server, tmp_path: Path
) -> None:
    node = start_node(workers=4, threads=2, target=written(tmp_path, CLIENT.format(url=server.url)))

    (told,) = node.events("preload_off")
    assert told["sockets"] == 1
    ids = node.submit_many("ask", [{"word": f"word {n}"} for n in range(200)])
    results = [node.ended(id)["result"] for id in ids]
    assert all(is_right for is_right, _, _ in results)
    clients = {(pid, client) for _, pid, client in results}
    assert len({pid for pid, _ in clients}) == 4
    # A connection has one process, however many a process has.
    assert len({client for _, client in clients}) == len(clients)


def test_a_thread_made_at_import_serves_the_handlers_of_every_worker(
    start_embedded: StartNode, tmp_path: Path
) -> None:
    node = start_embedded(workers=3, target=written(tmp_path, EXPORTER))

    ids = node.submit_many("call", [{"n": n} for n in range(60)])

    assert [node.ended(id)["result"] for id in ids] == [2 * n for n in range(60)]
    (told,) = node.events("preload_off")
    assert (told["threads"], told["sockets"]) == (["channel"], 0)


def test_preloading_all_the_same_says_which_threads_live_at_the_fork(
    start_embedded: StartNode, tmp_path: Path
) -> None:
    node = start_embedded(workers=2, target=written(tmp_path, EXPORTER), preload="on")

    (told,) = node.events("preload_unsafe")
    assert told["threads"] == ["channel"]
    assert node.stop() == 0


def test_no_birth_hangs_on_a_lock_of_a_thread_that_logs_all_the_time(
    start_embedded: StartNode, tmp_path: Path
) -> None:
    node = start_embedded(workers=2, target=written(tmp_path, LOGGER))
    for _ in range(15):
        (killed,) = node.kill("worker:0")
        until(lambda gone=killed: node.pids()["worker:0"] not in ([], [gone]), 20, "an heir")  # type: ignore[misc]
        until(lambda: node.status()["workers"][0]["state"] == "ready", 20, "a worker that is ready")

    pids = {node.ended(id)["result"] for id in node.submit_many("log", [{}] * 40)}
    assert pids <= set(node.pids()["worker"])
    assert not [event for event in node.events("exited") if "not ready within" in event["cause"]]
    assert node.status()["degraded"] == []


@pytest.mark.timeout(180)
def test_births_of_many_threads_under_load_make_no_trouble_with_connections(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, threads=32)
    with load(node, "sleep", {"seconds": 0.01}, rate=60) as submitted:
        for turn in range(20):
            place = f"worker:{turn % 2}"
            (killed,) = node.kill(place)
            until(lambda gone=killed, at=place: node.pids()[at] not in ([], [gone]), 20, "an heir")  # type: ignore[misc]
            until(lambda: not node.status()["degraded"], 20, "a node that is well")

    assert submitted.errors == []
    until(lambda: (now := node.metrics())["pending"] + now["processing"] == 0, 30, "the end of all tasks")
    numbers = node.metrics()
    assert numbers["completed_total"] + numbers["dead"] == len(submitted.ids)
    for word in ("Traceback", "redis_lost", "KeyError"):
        assert word not in node.log()
    assert node.metrics()["crashes_total"] <= 20 * 32


PARENT = """
import os, signal, sys
import redis
url, options = sys.argv[1], sys.argv[2:]
client = redis.Redis.from_url(url, decode_responses=True)
own = client.client_id()
pid = os.fork()
if pid == 0:
    os.setsid()
    from prefork_q.cli.main import main
    sys.argv = ["prefork-q", *options]
    os._exit(main() or 0)
print(pid, flush=True)
sys.stdin.readline()
os.kill(pid, signal.SIGTERM)
_, status = os.waitpid(pid, 0)
# Nothing of the node has touched the connection, and nobody has ended it.
assert client.echo("still here") == "still here"
assert client.client_id() == own
print(os.waitstatus_to_exitcode(status), flush=True)
"""


def test_a_program_that_forks_a_node_keeps_its_own_connection(
    server: Server, tmp_path: Path, ledger: Ledger
) -> None:
    node = Node(server.url, tmp_path / "node", namespace="of-a-program", ledger=ledger.path)
    parent = subprocess.Popen(
        [*dies_with_its_parent("KILL"), sys.executable, "-c", PARENT, server.url, *node.command()[1:]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=node.environ,
    )  # fmt: skip
    try:
        assert parent.stdin is not None
        assert parent.stdout is not None
        leaks.watch_session(int(parent.stdout.readline()))
        node.wait_ready()
        for worker in node.pids()["worker"]:
            os.kill(worker, 9)
        assert node.ended(node.submit("return", {"value": 1}))["result"] == 1
        out, _ = parent.communicate("stop\n", timeout=30)
        assert (out.strip(), parent.returncode) == ("0", 0)
    finally:
        parent.kill()
        parent.wait()


OPENED = """
import logging, os
from prefork_q import App
app = App()
logging.basicConfig(filename={log!r}, level=logging.INFO, format="%(process)d %(message)s")
table = open({table!r}, "rb")
@app.task("look")
def look(n: int) -> list:
    logging.info("task %d", n)
    return [os.getpid(), os.pread(table.fileno(), 4, 4 * n).decode()]
"""


@pytest.mark.parametrize("preload", ["auto", "off"])
def test_files_that_the_import_opened_are_open_in_every_worker(
    start_embedded: StartNode, tmp_path: Path, preload: str
) -> None:
    log, table = tmp_path / "own.log", tmp_path / "table"
    table.write_bytes(b"".join(b"%04d" % n for n in range(120)))
    target = written(tmp_path, OPENED.format(log=str(log), table=str(table)))
    node = start_embedded(workers=2, target=target, preload=preload)

    def work(numbers: range) -> None:
        tasks = [node.ended(id) for id in node.submit_many("look", [{"n": n} for n in numbers])]
        assert [task["result"][1] for task in tasks] == [f"{n:04}" for n in numbers]
        lines = log.read_text().splitlines()
        wanted = {f"{task['result'][0]} task {n}" for task, n in zip(tasks, numbers, strict=True)}
        assert wanted <= set(lines)

    work(range(40))
    (killed,) = node.kill("worker:0")
    until(lambda: node.pids()["worker:0"] not in ([], [killed]), 20, "an heir")
    work(range(40, 80))
    assert node.cli("ctl", "reload", "--wait").returncode == 0
    work(range(80, 120))
    assert "Logging error" not in node.log()


# -- TLS

TLS_CLIENT = CLIENT.replace("client = redis.Redis.from_url({url!r}, decode_responses=True)", """
client = redis.Redis.from_url({url!r}, decode_responses=True, ssl_ca_certs={authority!r})""")  # fmt: skip


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """The certificate of `localhost`, which is its own authority, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.fixture
def tls_url(new_server: Callable[..., Server], certificate: tuple[Path, Path]) -> str:
    """The URL of a server that is named by its host and speaks TLS."""
    own, key = certificate
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-cert-file", str(own), "--tls-key-file", str(key)]
    try:
        new_server(arguments=[*tls, "--tls-ca-cert-file", str(own), "--tls-auth-clients", "no"])
    except ServerDied as died:
        pytest.skip(f"this server was built without TLS: {str(died)[-200:]}")
    return f"rediss://localhost:{port}/0?ssl_ca_certs={own}"


def test_over_tls_the_master_stays_out_of_it_and_every_birth_gets_ready(
    start_node: StartNode, tls_url: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    url, _, _ = tls_url.partition("?")
    target = written(tmp_path, TLS_CLIENT.format(url=url, authority=str(certificate[0])))
    node = start_node(url=tls_url, workers=4, threads=2, target=target)
    for turn in range(12):
        place = f"worker:{turn % 4}"
        (killed,) = node.kill(place)
        until(lambda gone=killed, at=place: node.pids()[at] not in ([], [gone]), 20, "an heir")  # type: ignore[misc]
    until(lambda: not node.status()["degraded"], 20, "a node that is well")

    ids = node.submit_many("ask", [{"word": f"word {n}"} for n in range(200)])
    results = [node.ended(id)["result"] for id in ids]

    assert all(is_right for is_right, _, _ in results)
    assert len({pid for _, pid, _ in results}) == 4
    assert "SSL" not in node.log()
    assert links(node.pid) == set()
    maps = Path(f"/proc/{node.pid}/maps").read_text()
    assert "libssl" not in maps
    assert "_ssl." not in maps


def test_a_server_that_the_authority_does_not_know_is_refused(start_node: StartNode, tls_url: str) -> None:
    url, _, _ = tls_url.partition("?")
    node = start_node(url=url, workers=1, wait_ready=False)

    node.wait_event("redis_lost", timeout=20)
    assert node.status()["redis"]["reachable"] is False
    with redis.Redis.from_url(tls_url) as client:
        assert client.ping()
    assert node.stop() == 0
