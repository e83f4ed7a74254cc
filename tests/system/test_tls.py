"""Redis behind TLS: one spelling for every part, checked by default; refusals name host and reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefork_q.client import Client
from tests.support.certificates import Authority, can_make_certificates
from tests.support.flavours import Flavour
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.sentinels import SERVICE, Sentinel
from tests.support.server import ProcessServer, Server, ServerDied, free_port

StartNode = Callable[..., Node]

UNREACHABLE = 69


@dataclass(frozen=True)
class Secure:
    """A server that speaks TLS, and whom it and its clients may trust."""

    port: int
    authority: Authority
    other: Authority

    lines: tuple[str, ...]
    """Of a configuration file, for another server that shows the same certificate."""

    def url(self, host: str = "127.0.0.1", **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"rediss://{host}:{self.port}/0?{query}"


@pytest.fixture
def secure(new_server: Callable[..., Server], tmp_path: Path) -> Callable[..., Secure]:
    if not can_make_certificates():
        pytest.skip("there is no openssl to make certificates with")
    authority, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    certificate, key = authority.vouch("server", names="IP:127.0.0.1")

    def start(*, asks_clients: bool) -> Secure:
        port = free_port()
        lines = (
            f"tls-cert-file {certificate}",
            f"tls-key-file {key}",
            f"tls-ca-cert-file {authority.certificate}",
            f"tls-auth-clients {'yes' if asks_clients else 'no'}",
        )
        arguments = ["--tls-port", str(port), *(word for line in lines for word in f"--{line}".split())]
        try:
            server = new_server(arguments=arguments)
        except ServerDied:
            pytest.skip("this server was built without TLS")
        if not isinstance(server, ProcessServer):
            pytest.skip("a server with certificates is a process here")
        return Secure(port, authority, other, lines)

    return start


def test_a_node_works_over_tls(start_node: StartNode, secure: Callable[..., Secure], ledger: Ledger) -> None:
    server = secure(asks_clients=False)
    node = start_node(url=server.url(ssl_ca_certs=server.authority.certificate), workers=2)

    ids = node.submit_many("flaky", [{"failures": 1, "value": "x" * 100_000}] * 20)
    ids += node.submit_many("return", [{}] * 20, delay_s=0.5)

    assert {node.ended(id)["status"] for id in ids} == {"succeeded"}
    assert node.events("redis_lost") == []
    place = ("--redis-url", node.url or "", "--namespace", node.namespace)
    assert node.cli("task", "submit", "return", "--wait", *place).returncode == 0
    with Client(node.url, node.namespace) as client:
        assert client.submit("add", {"a": 1}).wait(10) == 2


def test_every_part_refuses_whom_nobody_trusted_vouches_for(
    start_node: StartNode, secure: Callable[..., Secure]
) -> None:
    server = secure(asks_clients=False)
    wrong_authority = server.url(ssl_ca_certs=server.other.certificate)
    wrong_name = server.url("localhost", ssl_ca_certs=server.authority.certificate)
    nobodys = server.url()

    for url, reason in (
        (wrong_authority, "verify failed"),
        (wrong_name, "mismatch"),
        (nobodys, "verify failed"),
    ):
        node = start_node(url=url, workers=1, wait_ready=False)
        told = node.wait_event("redis_lost", kind="connection", role="keeper")
        texts = [str(told["error"])]
        for command in (("task", "submit", "return"), ("check",), ("queue", "list")):
            done = node.cli(*command, "--redis-url", url, "--namespace", node.namespace)
            assert done.returncode == UNREACHABLE, (command, done)
            texts.append(done.stderr + done.stdout)
        for text in texts:
            assert reason in text.lower(), text
            assert f"{'localhost' if url == wrong_name else '127.0.0.1'}:{server.port}" in text, text
        node.stop()


def test_a_server_that_asks_for_certificates_gets_one(
    start_node: StartNode, secure: Callable[..., Secure], ledger: Ledger
) -> None:
    server = secure(asks_clients=True)
    certificate, key = server.authority.vouch("client")
    known = server.url(ssl_ca_certs=server.authority.certificate, ssl_certfile=certificate, ssl_keyfile=key)
    node = start_node(url=known)
    unknown = server.url(ssl_ca_certs=server.authority.certificate)

    assert node.ended(node.submit("return"))["status"] == "succeeded"
    refused = node.cli("task", "submit", "return", "--redis-url", unknown, "--namespace", node.namespace)
    assert refused.returncode == UNREACHABLE
    assert f"127.0.0.1:{server.port}" in refused.stderr
    assert "certificate" in refused.stderr


def test_sentinels_with_a_password_are_asked_over_tls(
    start_node: StartNode, secure: Callable[..., Secure], flavour: Flavour, tmp_path: Path, ledger: Ledger
) -> None:
    server, port = secure(asks_clients=False), free_port()
    lines = (f"tls-port {port}", "tls-replication yes", *server.lines)
    sentinel = Sentinel(
        flavour, tmp_path / "sentinel", server.port, quorum=1, lines=lines, password="theirs"
    )  # fmt: skip
    try:
        ca = server.authority.certificate
        url = f"rediss+sentinel://127.0.0.1:{port}/{SERVICE}/1?sentinel_password=theirs&ssl_ca_certs={ca}"
        node = start_node(url=url)

        assert node.ended(node.submit("flaky", {"failures": 1}))["status"] == "succeeded"
        assert node.events("redis_lost") == []
        wrong = url.replace("theirs", "others")
        refused = node.cli("queue", "list", "--redis-url", wrong)
        assert refused.returncode == UNREACHABLE
        assert f"127.0.0.1:{port}: " in refused.stderr
        assert "others" not in node.cli("check", "--redis-url", wrong).stdout
    finally:
        sentinel.close()
