from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prefork_q.addresses import HttpAddress, parse_http
from prefork_q.cli.listen import listening, name_of, require_loopback
from prefork_q.errors import ConfigurationError

LISTEN = """
import os
from prefork_q.addresses import HttpAddress, parse_http
from prefork_q.cli.listen import listening, name_of
with listening([parse_http("fd:api")], os.environ) as sockets:
    print(*map(name_of, sockets), "LISTEN_FDS" in os.environ)
"""


def addresses(*texts: str) -> list[HttpAddress]:
    return [parse_http(text) for text in texts]


def test_a_free_port_is_found_and_told() -> None:
    with listening(addresses("127.0.0.1:0"), {}) as (one,):
        host, _, port = name_of(one).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5):
            pass


def test_a_name_with_two_addresses_has_one_port() -> None:
    with listening(addresses("localhost:0"), {}) as sockets:
        assert len({one.getsockname()[1] for one in sockets}) == 1


def test_an_address_in_use_is_refused_and_nothing_stays_open() -> None:
    with listening(addresses("127.0.0.1:0"), {}) as (taken,):
        port = taken.getsockname()[1]
        before = set(os.listdir("/proc/self/fd"))
        with (
            pytest.raises(ConfigurationError, match="in use"),
            listening(addresses("127.0.0.1:0", f"127.0.0.1:{port}"), {}),
        ):
            pass
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_unix_socket_of_a_dead_service_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with listening(addresses(f"unix:{path}"), {}) as (one,):
        assert name_of(one) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_unix_socket_in_use_and_a_file_are_left_alone(tmp_path: Path) -> None:
    path, file = tmp_path / "api.sock", tmp_path / "file"
    file.write_text("precious")

    with listening(addresses(f"unix:{path}"), {}):
        with (
            pytest.raises(ConfigurationError, match="in use"),
            listening(addresses(f"unix:{path}"), {}),
        ):
            pass
        assert path.exists()
    with (
        pytest.raises(ConfigurationError, match="no socket"),
        listening(addresses(f"unix:{file}"), {}),
    ):
        pass
    assert file.read_text() == "precious"


@pytest.mark.parametrize("ip", ["0.0.0.0", "192.0.2.1", "::", "fe80::1%eth0"])
def test_only_this_machine_is_listened_to(ip: str) -> None:
    with pytest.raises(ConfigurationError, match="other machines"):
        require_loopback(ip, "name:80")


def passed(one: socket.socket, name: str) -> subprocess.CompletedProcess[str]:
    """Run LISTEN as systemd would: with the socket as descriptor 3."""
    return subprocess.run(
        ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" -c "$1"', sys.executable, LISTEN],
        env=os.environ | {"LISTEN_FDS": "1", "LISTEN_FDNAMES": name},
        preexec_fn=lambda: os.dup2(one.fileno(), 3),
        pass_fds=(3,), capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


def test_a_socket_that_systemd_passes_is_taken_by_its_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        ran = passed(one, "api")

        assert ran.stdout.split() == [name_of(one), "False"], ran.stderr


def place(first: int, second: int) -> None:
    """Make them descriptors 3 and 4, whichever they are."""
    high = os.dup(first), os.dup(second)
    for number, fd in enumerate(high, 3):
        os.dup2(fd, number)


def test_all_sockets_of_a_name_are_taken() -> None:
    environ = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:api"}
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ran = subprocess.run(
            ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" -c "$1"', sys.executable, LISTEN],
            env=os.environ | environ,
            preexec_fn=lambda: place(one.fileno(), two.fileno()),
            pass_fds=(3, 4), capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

        assert ran.stdout.split() == [name_of(one), name_of(two), "False"], ran.stderr


def test_a_passed_socket_that_does_not_fit_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket() as idle:
        assert "there are: other" in passed(one, "other").stderr
        assert "does not listen" in passed(idle, "api").stderr
    with socket.create_server(("0.0.0.0", 0)) as public:
        assert "other machines" in passed(public, "api").stderr
