"""The Redis password out of a file, and secrets that systemd passes."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from prefork_q.app import App
from prefork_q.client import Client
from prefork_q.config import effective_redis_url, load
from prefork_q.connection import connect
from prefork_q.errors import ConfigurationError
from prefork_q.options import redis_url_given
from prefork_q.passwords import with_password

SECRET = "p@ss/w:rd %3F#"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    return file


@pytest.mark.parametrize(
    ("url", "user", "rest"),
    [
        ("redis://host:6379/3", None, ("host", 6379, "/3", "")),
        ("rediss://anna@host/0", "anna", ("host", None, "/0", "")),
        ("rediss+sentinel://anna@a/tasks/0", "anna", ("a", None, "/tasks/0", "")),
        ("unix:///run/redis.sock?db=2", None, (None, None, "/run/redis.sock", "db=2")),
    ],
)
def test_a_password_from_a_file_arrives_at_the_server(
    file: Path, url: str, user: str | None, rest: tuple[object, ...]
) -> None:
    effective = effective_redis_url(load({"redis_url": url, "redis_password_file": str(file)}, {}))

    parts = urlsplit(effective)
    assert (parts.username or None, unquote(parts.password or "")) == (user, SECRET)
    assert (parts.hostname, parts.port, parts.path, parts.query) == rest
    options = connect(effective).connection_pool.connection_kwargs
    assert (options["password"], options.get("username")) == (SECRET, user)


def test_a_password_is_shown_nowhere(file: Path) -> None:
    config = load({"redis_url": "redis://host", "redis_password_file": str(file)}, {})

    assert SECRET not in str(config.shown())
    assert "rd%20" not in str(config.shown())
    assert config.redis_url == "redis://host"


@pytest.mark.parametrize(
    ("configured", "given", "is_same"),
    [
        ("redis://host:6379/0", "redis://HOST", True),
        ("redis://anna@host/0", "redis://anna@host", True),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2", True),
        ("redis+sentinel://a,b/tasks", "redis+sentinel://a:26379,b/tasks/0", True),
        ("redis://host/0", "redis://other/0", False),
        ("redis://host/0", "redis://host/1", False),
        ("redis://host/0", "redis://host:6380/0", False),
        ("redis://anna@host/0", "redis://host/0", False),
        ("rediss://host/0", "redis://host/0", False),
        ("redis://host/0", "redis://host/0?host=other", False),
        ("redis+sentinel://a,b/tasks", "redis+sentinel://c/tasks", False),
        ("redis://host/0", "redis://:own@host/0", False),
    ],
)
def test_a_url_in_a_program_gets_the_password_of_the_configured_server_alone(
    file: Path, configured: str, given: str, is_same: bool
) -> None:
    config = load({"redis_url": configured, "redis_password_file": str(file)}, {})

    assert redis_url_given(given, config) == (with_password(given, SECRET) if is_same else given)


def test_a_client_sends_the_configured_password_to_no_other_server(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFORK_Q_CONFIG", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("PREFORK_Q_REDIS_PASSWORD_FILE", str(file))
    assert "***" not in repr(Client("redis://host/0"))

    monkeypatch.setenv("PREFORK_Q_REDIS_URL", "redis://host")
    assert "***" in repr(Client("redis://host/0"))
    assert "***" not in repr(Client("redis://other/0"))
    app = App("redis://host/0")
    app.bind(load({}, os.environ))
    assert "***" in repr(app.client)


def test_two_passwords_are_one_too_many() -> None:
    for url in ("redis://:x@host", "unix:///s?password=x", "redis+sentinel://:x@a:1,b:2/s"):
        with pytest.raises(ConfigurationError, match="one of them"):
            with_password(url, "y")


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"\xff\xfe", b"x" * 5_000])
def test_what_is_no_password_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)

    with pytest.raises(ConfigurationError, match="redis_password_file"):
        effective_redis_url(load({"redis_url": "redis://host", "redis_password_file": str(path)}, {}))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    config = load({"redis_url": "redis://host", "redis_password_file": str(tmp_path / "no")}, {})

    with pytest.raises(ConfigurationError, match="No such file"):
        effective_redis_url(config)


def test_a_password_without_a_url_is_a_mistake(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is none"):
        load({"redis_password_file": str(file)}, {})


def test_credentials_of_systemd_are_used_where_nothing_else_is_said(tmp_path: Path, file: Path) -> None:
    (tmp_path / "redis-password").write_text("from systemd")
    (tmp_path / "api-tokens").write_text("shop submit,read 3PnQw0cY8mJx7bVd2kRf5tZh\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "REDIS_URL": "redis://host"}

    config = load({}, environ)
    assert effective_redis_url(config) == "redis://:from%20systemd@host"
    assert config.token_file == (tmp_path / "api-tokens",)
    assert load({"redis_password_file": str(file)}, environ).redis_password_file == file
    # The embedded server has no password.
    assert load({}, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).redis_password_file is None
