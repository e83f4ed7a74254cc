"""The units: those in the repository, those for another installation, and what verifying finds."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from prefork_q.cli.installation import NOTIFY_RELOAD, PLACES, PROGRAM, Installation
from prefork_q.cli.systemd import command
from prefork_q.config import OPTIONS, load

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = ("prefork-q.service", "prefork-q@.service", "prefork-q-api.service")
STANDARD = Installation(program=PROGRAM, notify_reload=True)


def settings(text: str) -> dict[str, list[str]]:
    """Return what a unit sets, by name; a name may stand there several times."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if re.match(r"[A-Z]\w+=", line):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_files_of_the_repository_are_those_of_the_standard_installation() -> None:
    written = STANDARD.files()

    assert written == {path.name: path.read_text() for path in UNITS.iterdir()}
    assert set(written) == set(PLACES)
    assert NOTIFY_RELOAD not in Installation(program=PROGRAM).files()


def test_another_installation_gets_its_own_words() -> None:
    other = Installation(
        program="/srv/100% venv/bin/prefork-q", config=Path("/srv/etc/queue.toml"), user="queue",
        listen="127.0.0.1:9000", drain_timeout=120.0, memory_max="4G", cpu_quota="200%",
    )  # fmt: skip

    written = other.files()

    for name, text in written.items():
        assert PROGRAM not in text, name
        assert "/etc/prefork-q/" not in text, name
    service = settings(written["prefork-q.service"])
    assert service["ExecStart"] == ["/srv/100%% venv/bin/prefork-q run"]
    assert service["Environment"] == ["PREFORK_Q_CONFIG=/srv/etc/queue.toml"]
    assert (service["User"], service["Group"]) == (["queue"], ["queue"])
    assert (service["TimeoutStopSec"], service["MemoryMax"], service["CPUQuota"]) == (
        ["125"],
        ["4G"],
        ["200%"],
    )
    assert settings(written["prefork-q@.service"])["Environment"][0] == "PREFORK_Q_CONFIG=/srv/etc/%i.toml"
    assert settings(written["prefork-q.socket"])["ListenStream"] == ["127.0.0.1:9000"]
    assert written["prefork-q.sysusers.conf"].count("u queue ") == 1
    assert "d /srv/etc 0750 root queue" in written["prefork-q.tmpfiles.conf"]
    assert other.place("config.toml") == Path("/srv/etc/queue.toml")


def test_the_stop_limit_is_the_default_drain_and_a_margin() -> None:
    drain = next(option.default for option in OPTIONS if option.name == "drain_timeout")
    assert drain == "30s"
    for name in SERVICES:
        service = settings((UNITS / name).read_text())
        assert service["TimeoutStopSec"] == ["35"], name
        assert service["KillMode"] == ["mixed"], name
        assert service["RestartPreventExitStatus"] == ["2 78"], name


def test_all_services_are_hardened_alike() -> None:
    blocks = {
        re.search(r"^NoNewPrivileges=.*?^SystemCallErrorNumber=\w+$", (UNITS / name).read_text(),
                  re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]
        for name in SERVICES
    }  # fmt: skip
    assert len(blocks) == 1


def test_no_line_of_a_unit_is_a_mistake_of_form() -> None:
    for path in UNITS.glob("*.s*"):
        if path.suffix in (".service", ".socket"):
            parser = configparser.ConfigParser(strict=False, interpolation=None)
            parser.optionxform = str  # type: ignore[assignment,method-assign]
            parser.read(path)
            assert set(parser.sections()) <= {"Unit", "Service", "Socket", "Install"}, path


def test_the_example_configuration_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    text = (UNITS / "config.toml").read_text()
    for candidate in (text, re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE)):
        file.write_text(candidate)
        config = load({}, {}, file)
        assert config.http == ("fd:http",)
        assert config.target is not None


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.output


def test_what_was_written_is_verified(tmp_path: Path) -> None:
    folder = str(tmp_path / "units")
    config = tmp_path / "config.toml"
    config.write_text("drain_timeout = '10s'\n")
    options = ("--output", folder, "--config", str(config))

    assert run(*options)[0] == 0
    assert "TimeoutStopSec=15\n" in (tmp_path / "units/prefork-q.service").read_text()
    code, told = run("--check", "--output", folder)  # what it is for is read from the units
    assert (code, "failed" in told) == (0, False), told
    assert "unchanged" in run(*options)[1]

    config.write_text("drain_timeout = '20s'\n")
    code, told = run("--check", *options)
    assert code == 78
    assert "it has TimeoutStopSec=15, it lacks TimeoutStopSec=25" in told
    os.unlink(tmp_path / "units/prefork-q.service")
    assert "is not there" in run("--check", *options)[1]


def test_a_configuration_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("workers = 3\n")

    told = run("--output", str(tmp_path))[1]

    assert f"kept       {tmp_path}/config.toml" in told
    assert (tmp_path / "config.toml").read_text() == "workers = 3\n"


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--user", "a b", "a user's name"),
        ("--user", "a\nExecStart=b", "a user's name"),
        ("--listen", "foo", "write IP:PORT"),
        ("--listen", "localhost:80", "write IP:PORT"),
        ("--listen", "unix:/run/x", "write IP:PORT"),
        ("--listen", "127.0.0.1:0", "write IP:PORT"),
        ("--listen", "0.0.0.0:80", "no tokens configured"),
        ("--memory-max", "foo", "a size as 8G"),
        ("--memory-max", "120%", "a size as 8G"),
        ("--cpu-quota", "2", "200% are two cores"),
        ("--program", "/a b/prefork-q", "without spaces"),
        ("--config", "/a b.toml", "without spaces"),
    ],
)
def test_what_systemd_would_not_take_is_wrong_usage(
    tmp_path: Path, option: str, value: str, told: str
) -> None:
    with pytest.raises(click.BadParameter, match=told) as refused:
        run("--output", str(tmp_path / "units"), option, value)

    assert refused.value.exit_code == 2
    assert not (tmp_path / "units").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--user", "queue_1", "--memory-max", "8G", "--cpu-quota", "150.5%", "--listen", "[::1]:80"),
        ("--memory-max", "80%", "--listen", "/run/prefork-q/api.sock"),
        ("--memory-max", "infinity", "--listen", "127.0.0.1:9000"),
    ],
)
def test_what_systemd_takes_is_written(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert run("--output", str(tmp_path / "units"), *options)[0] == 0


def test_with_tokens_the_socket_may_listen_anywhere(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("token_file = '/etc/prefork-q/tokens'\n")

    assert run("--output", str(tmp_path / "units"), "--config", str(config), "--listen", "0.0.0.0:80")[0] == 0


def test_a_program_that_the_service_cannot_see_is_told(tmp_path: Path) -> None:
    for place, line in (("near", "/usr/bin/env python3"), ("far", "/home/me/venv/bin/python")):
        (tmp_path / place).write_text(f"#!{line}\n")
    link = tmp_path / "link"
    link.symlink_to("/root/venv/bin/prefork-q")

    def warned(program: object) -> bool:
        return "ProtectHome=yes" in run("--output", str(tmp_path / "units"), "--program", str(program))[1]

    assert not warned(tmp_path / "near")
    assert warned(tmp_path / "far")
    assert warned(link)
    assert warned("/run/user/1000/venv/bin/prefork-q")
