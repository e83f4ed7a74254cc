"""Wires `tests.support` into pytest: servers are chosen once, told to every process, named in the header."""

from __future__ import annotations

import os
import signal
import uuid
import zlib
from typing import Any

import pytest

from tests.support.alone import needs_its_own_process, run_alone
from tests.support.fixtures import (
    FLAVOURS,
    RUN,
    flavour,
    flavours,
    keys,
    ledger,
    new_server,
    no_process_left,
    node,
    own_server,
    redis_client,
    redis_server,
    remove_containers,
    server,
    shared_servers,
    single_threaded,
    start_node,
)
from tests.support.flavours import Choice, Flavour, choose

__all__ = [  # the fixtures, which pytest finds because they stand in this module
    "flavour",
    "keys",
    "ledger",
    "new_server",
    "no_process_left",
    "node",
    "own_server",
    "redis_client",
    "redis_server",
    "server",
    "shared_servers",
    "single_threaded",
    "start_node",
]

CHOICE: pytest.StashKey[Choice] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        choices=("all", "one"),
        default="all",
        help="run the tests that need a server on every kind that there is (all), or on the first (one)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "either_server: what is tested does not depend on the server; each test runs on one of the flavours",
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in a job in the background; what the tests start would ignore it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    told = getattr(config, "workerinput", None)
    if told:  # a process of pytest-xdist
        config.stash[FLAVOURS] = tuple(Flavour(**flavour) for flavour in told["flavours"])
        config.stash[RUN] = told["run"]
        return
    choice = choose(os.environ, is_one_enough=config.getoption("servers") == "one")
    if not choice.flavours:
        raise pytest.UsageError("no server to test with: " + "; ".join(choice.notes))
    config.stash[CHOICE] = choice
    config.stash[FLAVOURS] = choice.flavours
    config.stash[RUN] = uuid.uuid4().hex


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: in the first process, for each other one."""
    node.workerinput["flavours"] = [flavour.to_json() for flavour in flavours(node.config)]
    node.workerinput["run"] = node.config.stash[RUN]


def pytest_report_header(config: pytest.Config) -> list[str]:
    choice = config.stash.get(CHOICE, Choice(()))  # the processes of pytest-xdist are asked too
    return [f"server: {flavour}" for flavour in choice.flavours] + [f"note: {note}" for note in choice.notes]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.get_verbosity() < 0:  # -q leaves the header out
        terminalreporter.write_line("; ".join(pytest_report_header(config)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "flavour" not in metafunc.fixturenames:
        return
    chosen = flavours(metafunc.config)
    if metafunc.definition.get_closest_marker("either_server"):
        # The same one each time, and about as many tests on each.
        chosen = (chosen[zlib.crc32(metafunc.definition.nodeid.encode()) % len(chosen)],)
    metafunc.parametrize("flavour", chosen, indirect=True, ids=_name, scope="session")


def _name(flavour: Flavour) -> str:
    return flavour.name


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not needs_its_own_process(pyfuncitem):
        return None
    factory: pytest.TempPathFactory = pyfuncitem.funcargs["tmp_path_factory"]
    run_alone(pyfuncitem, factory.mktemp("alone") / "base")
    return True


def pytest_unconfigure(config: pytest.Config) -> None:
    if CHOICE in config.stash and any(flavour.image for flavour in flavours(config)):
        remove_containers(config.stash[RUN], dict(os.environ))
