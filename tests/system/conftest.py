"""A systemd in a container, for the tests of the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.fixtures import RUN
from tests.support.service import Service
from tests.support.systemd import NoSystemd, System, installed_image, system_image


def run_of(config: pytest.Config, image: Callable[[], str]) -> Iterator[System]:
    """Run a container. Where none can be had the test is skipped, or fails if one is said to be there."""
    try:
        system = System(image(), config.stash[RUN])
    except NoSystemd as reason:
        if os.environ.get("PREFORK_Q_TEST_SYSTEMD") == "1":
            pytest.fail(f"no systemd to test with: {reason}", pytrace=False)
        pytest.skip(f"no systemd to test with: {reason}")
    yield system
    system.close()


@pytest.fixture
def empty_server(pytestconfig: pytest.Config) -> Iterator[System]:
    """A server on which nothing is installed but Debian's packages, and a folder with our wheel."""
    yield from run_of(pytestconfig, system_image)


@pytest.fixture(scope="session")
def installed_server(pytestconfig: pytest.Config) -> Iterator[System]:
    """A server with prefork-q in /opt/prefork-q; shared by the tests of one process."""
    yield from run_of(pytestconfig, installed_image)


@pytest.fixture
def service(installed_server: System) -> Service:
    """Installed and set up anew, with the handlers of `tests.support.service`; it does not run yet."""
    service = Service(installed_server)
    service.set_up()
    return service
