"""Where `ctl` looks for the master."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefork_q.cli.asking import find_socket
from prefork_q.cli.main import run
from prefork_q.errors import ConfigurationError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that says nothing, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("PREFORK_Q_CTL_SOCKET", "PREFORK_Q_CONFIG", "PREFORK_Q_STATE_DIR", "REDIS_URL",
                 "STATE_DIRECTORY", "RUNTIME_DIRECTORY"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_it_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_socket() == ".prefork-q/ctl.sock"
    monkeypatch.setenv("PREFORK_Q_STATE_DIR", "/srv/state")
    assert find_socket() == "/srv/state/ctl.sock"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/q:/run/other")
    assert find_socket() == "/run/q/ctl.sock"
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("PREFORK_Q_CTL_SOCKET", "~/q.sock")
    assert find_socket() == "/home/somebody/q.sock"


def test_it_is_where_the_configuration_file_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "q.toml").write_text("ctl_socket = '/run/mine.sock'")
    monkeypatch.setenv("PREFORK_Q_CONFIG", str(folder / "q.toml"))

    assert find_socket() == "/run/mine.sock"


def test_a_broken_file_keeps_nobody_from_asking_a_node_that_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "q.toml").write_text("lease = 'soon'")
    monkeypatch.setenv("PREFORK_Q_CONFIG", str(folder / "q.toml"))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(folder / "run"))

    with pytest.raises(ConfigurationError, match="write a duration as"):
        find_socket()

    (folder / "run").mkdir()
    (folder / "run/ctl.sock").touch()
    assert find_socket() == str(folder / "run/ctl.sock")


@pytest.mark.parametrize("wrong", ["x", "1.5", "١"])
def test_what_is_no_number_of_a_worker_is_called_so(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ctl", "restart", wrong]) == 2
    assert f"{wrong!r} is not a worker's number" in capsys.readouterr().err
