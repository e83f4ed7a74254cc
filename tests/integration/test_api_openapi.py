"""The API's description: it is complete, its examples are accepted, and the API does what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefork_q.api.breaker import Breaker
from prefork_q.api.create import assemble, describe
from prefork_q.api.openapi import scopes_of
from prefork_q.api.problems import KINDS, PREFIX
from prefork_q.app import load_app
from prefork_q.cli.main import run
from prefork_q.config import load
from prefork_q.keys import Keys
from tests.support.api import Api
from tests.support.node import Node
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

DESCRIBED = f"{Path(__file__).parents[1] / 'support' / 'described.py'}:app"
SECRET = "a-token-for-every-scope"
SCHEMATHESIS = Path(__file__).parents[1] / "support" / "schemathesis"


@pytest.fixture
def api(server: Server, keys: Keys, tmp_path: Path) -> Iterator[Api]:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"all submit,read,admin {SECRET}\n")
    api = Api(
        server.url, tmp_path / "api", target=DESCRIBED, namespace=keys.namespace, token_file=[str(tokens)]
    )
    yield api.start()
    api.close()


@pytest.fixture
def description(api: Api) -> dict[str, Any]:
    reply = ask(api, "GET", "/openapi.json")
    assert reply.status == 200
    told: dict[str, Any] = reply.json
    return told


def ask(api: Api, method: str, path: str, body: Any = None) -> Any:
    return api.http(method, path, body, headers={"Authorization": f"Bearer {SECRET}"})


def test_every_endpoint_is_described_with_its_scope(description: dict[str, Any]) -> None:
    config = load({"target": DESCRIBED}, {})
    _, routes = assemble(config, {}, Breaker())
    scopes = scopes_of(routes) | {("GET", "/openapi.json"): "read"}

    described = {
        (method.upper(), path): operation
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    }
    assert set(described) == set(scopes)
    for place, scope in scopes.items():
        assert described[place].get("security") == ([{"token": [scope]}] if scope else None), place
        assert ("401" in described[place]["responses"]) is (scope is not None)


def test_all_references_lead_somewhere(description: dict[str, Any]) -> None:
    text = json.dumps(description)
    for reference in set(re.findall(r'"#(/[^"]*)"', text)):
        here = description
        for step in reference[1:].split("/"):
            here = here[step]
    for name in description["components"]["schemas"]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


def test_each_type_is_a_variant_with_its_own_payload_and_policy(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    new_task = schemas["NewTask"]
    app = load_app(DESCRIBED)

    assert set(new_task["discriminator"]["mapping"]) == set(app.handlers)
    assert [one["$ref"] for one in new_task["oneOf"]] == list(new_task["discriminator"]["mapping"].values())
    resize = schemas["task.resize"]
    assert resize["description"] == "Make a picture smaller."
    assert resize["required"] == ["type", "payload"]
    assert resize["properties"]["type"] == {"type": "string", "const": "resize"}
    defaults = [resize["properties"][name]["default"] for name in ("queue", "max_attempts", "timeout_s")]
    assert defaults == ["images", 5, 30]
    assert schemas["payload.resize"]["required"] == ["path", "size"]
    assert schemas["payload.resize.Point"]["properties"]["x"]["maximum"] == 10_000
    assert schemas["task.nothing"]["required"] == ["type"]
    assert "task.mail-3asend" in schemas


def test_every_example_of_a_request_is_accepted(api: Api, description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    examples = {
        name: schema["examples"]
        for name, schema in schemas.items()
        if "examples" in schema and name.startswith("task.")
    }

    tasks = {name for name in schemas if name.startswith("task.")}
    assert set(examples) == tasks - {"task.odd", "task.mail-3asend"}
    for example in [*(one for some in examples.values() for one in some), *schemas["NewTask"]["examples"]]:
        assert ask(api, "POST", "/tasks", example).status == 202, example
    for example in schemas["Choice"]["examples"]:
        assert ask(api, "POST", "/dead/retry", example).status == 202


def test_every_kind_of_problem_is_listed(description: dict[str, Any]) -> None:
    listed = description["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert listed == [PREFIX + word for word in KINDS]


def test_without_tokens_nothing_is_said_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["openapi", DESCRIBED, "--namespace", "x"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed == describe(load({"target": DESCRIBED}, {}), load_app(DESCRIBED).handlers)
    assert "securitySchemes" not in printed["components"]
    assert "security" not in printed["paths"]["/tasks"]["post"]


def test_the_command_prints_what_the_api_serves(
    api: Api, description: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["openapi", DESCRIBED, "--token-file", str(tmp_path / "tokens")]) == 0
    assert json.loads(capsys.readouterr().out) == description


def test_without_handlers_nothing_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out)["components"]["schemas"]["NewTask"]["not"] == {}
    assert run(["openapi", "nowhere:app"]) == 78


@pytest.fixture
def guarded_node(tmp_path: Path) -> Iterator[Node]:
    """A node with the embedded server; once is enough."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"all submit,read,admin {SECRET}\n")
    node = Node(None, tmp_path / "node", target=DESCRIBED, workers=1, token_file=str(tokens))
    try:
        node.start(wait_ready=False)
        until(lambda: is_ready(node, {"Authorization": f"Bearer {SECRET}"}), 30)
        yield node
    finally:
        node.close()
        print(node.log_end())


@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(guarded_node: Node, tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file", str(SCHEMATHESIS / "schemathesis.toml"),
            "run", f"http://127.0.0.1:{guarded_node.port}/openapi.json",
            "--header", f"Authorization: Bearer {SECRET}",
            "--checks", "all", "--max-examples", "8", "--no-color", "--no-shrink",
            # What it tries depends on this number alone.
            "--seed", "1",
        ],
        env=os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(SCHEMATHESIS)},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "Stateful (in" in ran.stdout
    assert not guarded_node.events("request_failed")


def is_ready(node: Node, headers: dict[str, str]) -> bool:
    try:
        return node.http("GET", "/readyz", headers=headers).status == 200
    except OSError:
        return False
