"""The configuration: its sources, who beats whom, and what is refused with which words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from prefork_q.addresses import HttpAddress
from prefork_q.config import (
    OPTIONS,
    Config,
    QueueSpec,
    effective_redis_url,
    load,
    misspelt,
    require_ctl_folder,
)
from prefork_q.errors import ConfigurationError

URL = "redis://user:s3cret@host:6379/0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prefork-q.toml"


def refused(environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(flags, environ or {})
    return str(caught.value)


def test_the_defaults_are_the_documented_ones() -> None:
    config = load({}, {})

    assert config.embedded
    assert config.redis_url is None
    assert config.namespace == "default"
    assert config.workers == len(os.sched_getaffinity(0))
    assert (config.threads, config.api_processes, config.max_crashes) == (1, 1, 3)
    assert config.queues == (QueueSpec("default"),)
    assert config.http == ("127.0.0.1:8420",)
    assert (config.lease, config.drain_timeout, config.grace) == (30, 30, 2)
    assert (config.payload_limit, config.result_limit) == (262_144, 1_048_576)
    assert (config.retention, config.dead_limit, config.dead_retention) == (86_400, 100_000, 180 * 86_400)
    assert (config.preload, config.log_level, config.log_format, config.log_file) == (
        "auto",
        "info",
        None,
        None,
    )
    assert config.state_dir == Path.cwd() / ".prefork-q"
    assert config.ctl_socket == config.state_dir / "ctl.sock"
    assert effective_redis_url(config) == f"unix://{config.state_dir}/redis.sock"


def test_flags_beat_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text("lease = '5s'\ndrain-timeout = 6\nthreads = 7\n")
    environ = {"PREFORK_Q_LEASE": "8s", "PREFORK_Q_DRAIN_TIMEOUT": "9"}

    config = load({"lease": "10s", "threads": None, "http": ()}, environ, file)

    assert (config.lease, config.drain_timeout, config.threads) == (10, 9, 7)


def test_every_option_can_be_given_in_the_file_the_environment_and_by_flag(file: Path) -> None:
    values = {
        "target": "handlers:app",
        "namespace": "shop",
        "workers": "4",
        "threads": "2",
        "queues": "a,b=3",
        "token_file": "/tmp/tokens,/tmp/more",
        "http": "unix:/tmp/api.sock,127.0.0.1:0",
        "api_processes": "2",
        "ctl_socket": "/tmp/c.sock",
        "state_dir": "/tmp/s",
        "lease": "7s",
        "drain_timeout": "500ms",
        "grace": "1",
        "max_crashes": "5",
        "max_tasks": "1000",
        "max_rss": "512MiB",
        "preload": "off",
        "payload_limit": "1MiB",
        "result_limit": "2MiB",
        "retention": "1h",
        "dead_limit": "10",
        "dead_retention": "2d",
        "log_level": "debug",
        "log_format": "json",
        "log_file": "/tmp/log",
        "redis_url": URL,
        "redis_password_file": "/etc/password",
    }
    assert {*values, "embedded", "no_http", "reload", "no_fork"} == {option.name for option in OPTIONS}
    file.write_text("".join(f"{name} = '{value}'\n" for name, value in values.items()))

    by_file = load({}, {}, file)
    by_environment = load({}, {f"PREFORK_Q_{name.upper()}": value for name, value in values.items()})
    lists = {name: values[name].split(",") for name in ("http", "token_file")}
    by_flag = load(values | lists, {})

    assert by_file == by_environment == by_flag
    assert by_file.queues == (QueueSpec("a", 1), QueueSpec("b", 3))
    assert by_file.drain_timeout == 0.5
    assert by_file.workers == 4


def test_the_file_can_be_named_by_a_variable(file: Path) -> None:
    file.write_text("workers = 3\nhttp = ['127.0.0.1:1', 'fd:api']\n")

    config = load({}, {"PREFORK_Q_CONFIG": str(file)})

    assert config.workers == 3
    assert config.http_addresses == (
        HttpAddress("tcp", host="127.0.0.1", port=1),
        HttpAddress("fd", name="api"),
    )


def test_a_variable_set_to_nothing_counts_as_not_set() -> None:
    config = load(
        {}, {"PREFORK_Q_WORKERS": "", "REDIS_URL": "", "PREFORK_Q_REDIS_URL": "", "PREFORK_Q_CONFIG": ""}
    )

    assert config.embedded


def test_the_first_source_with_a_url_or_embedded_decides(file: Path) -> None:
    file.write_text(f"redis_url = '{URL}'")

    assert load({}, {"REDIS_URL": "redis://last"}).redis_url == "redis://last"
    assert load({}, {"REDIS_URL": "redis://last"}, file).redis_url == URL
    assert load({}, {"PREFORK_Q_REDIS_URL": "redis://env"}, file).redis_url == "redis://env"
    assert load({"redis_url": "redis://flag"}, {"PREFORK_Q_EMBEDDED": "1"}).redis_url == "redis://flag"
    assert load({"embedded": True}, {"PREFORK_Q_REDIS_URL": URL, "REDIS_URL": URL}, file).embedded
    assert not load({"redis_url": "redis://flag"}, {"PREFORK_Q_EMBEDDED": "1"}).embedded
    file.write_text("embedded = true")
    assert load({}, {"REDIS_URL": URL}, file).embedded
    file.write_text("embedded = false")
    assert load({}, {"REDIS_URL": URL}, file).redis_url == URL
    with pytest.raises(ConfigurationError, match="no Redis URL"):
        load({}, {}, file)


def test_a_source_that_turns_the_embedded_server_off_beats_those_below(file: Path) -> None:
    file.write_text("embedded = true")
    off = {"PREFORK_Q_EMBEDDED": "false"}

    config = load({}, off | {"REDIS_URL": "redis://last"}, file)
    assert (config.embedded, config.redis_url) == (False, "redis://last")
    with pytest.raises(ConfigurationError, match="embedded is off and no Redis URL is given"):
        load({}, off, file)
    assert load({"embedded": True}, off, file).embedded

    file.write_text(f"embedded = true\nredis_url = '{URL}'")
    config = load({}, off, file)
    assert (config.embedded, config.redis_url) == (False, URL)
    with pytest.raises(ConfigurationError, match="exclude each other"):
        load({}, {}, file)


def test_a_url_and_embedded_from_one_source_exclude_each_other() -> None:
    assert refused(redis_url=URL, embedded=True) == "--redis-url and --embedded exclude each other"


def test_the_first_source_with_addresses_or_no_http_decides(file: Path) -> None:
    file.write_text("no_http = true")

    assert load({}, {}, file).http == ()
    assert load({"http": ["[::1]:0"]}, {}, file).http == ("[::1]:0",)
    assert load({"no_http": True}, {"PREFORK_Q_HTTP": "127.0.0.1:1"}).http == ()
    assert "exclude" in refused(no_http=True, http=["127.0.0.1:1"])


def test_a_source_that_turns_no_http_off_beats_those_below(file: Path) -> None:
    file.write_text("no_http = true")
    off = {"PREFORK_Q_NO_HTTP": "no"}

    config = load({}, off, file)
    assert (config.http, config.no_http) == (("127.0.0.1:8420",), False)
    assert load({"no_http": True}, off, file).http == ()

    file.write_text("no_http = true\nhttp = '127.0.0.1:1'")
    config = load({}, off, file)
    assert (config.http, config.no_http) == (("127.0.0.1:1",), False)


def test_folders_come_from_the_service_manager() -> None:
    config = load({}, {"STATE_DIRECTORY": "/var/lib/q:/var/lib/other", "RUNTIME_DIRECTORY": "/run/q"})

    assert config.state_dir == Path("/var/lib/q")
    assert config.ctl_socket == Path("/run/q/ctl.sock")
    assert load({"state_dir": "/x"}, {"STATE_DIRECTORY": "/y"}).ctl_socket == Path("/x/ctl.sock")


@pytest.mark.parametrize("key", ["leas", "drain_timeuot", "lease.x", "config"])
def test_an_unknown_key_in_the_file_is_named_with_its_file(file: Path, key: str) -> None:
    file.write_text(f"{key} = 3\n")

    with pytest.raises(ConfigurationError) as caught:
        load({}, {}, file)

    assert str(file) in str(caught.value)
    if key == "leas":
        assert f"unknown option leas in {file}: did you mean lease?" == str(caught.value)


@pytest.mark.parametrize(
    "text", ["lease = ", "\x00", "lease = 3\nlease = 4", "drain-timeout = 1\ndrain_timeout = 2"]
)
def test_a_file_that_cannot_be_read_is_named(file: Path, text: str) -> None:
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=r"prefork-q\.toml"):
        load({}, {}, file)


def test_a_missing_file_a_folder_and_no_utf8_are_named(tmp_path: Path, file: Path) -> None:
    file.write_bytes(b"target = '\xff'")

    for path in (file, tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match=path.name):
            load({}, {}, path)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lease", "500ms", "greater than or equal to 1"),
        ("lease", "soon", "write a duration as"),
        ("lease", True, "write a duration as"),
        ("drain_timeout", "-1", "write a duration as"),
        ("workers", "0", "greater than or equal to 1"),
        ("workers", "two", "integer"),
        ("workers", True, "whole number"),
        ("workers", 4.0, "whole number"),
        ("max_crashes", "-1", "greater than or equal to 0"),
        ("namespace", "a b", "a name has"),
        ("namespace", "a{b}", "a name has"),
        ("namespace", "", "a name has"),
        ("queues", "", "a name has"),
        ("queues", "a,a", "each once"),
        ("queues", "a=0", "weight"),
        ("queues", "a=x", "weight"),
        ("queues", 3, "write queues as"),
        ("queues", "a b", "a name has"),
        ("http", "0.0.0.0:80", "other machines"),
        ("http", "example.org:80", "other machines"),
        ("http", "[::]:80", "other machines"),
        ("http", "8420", "no address"),
        ("http", ":8420", "no address"),
        ("http", "127.0.0.1:65536", "no address"),
        ("http", "unix:", "needs a path"),
        ("http", "unix:/" + "x" * 120, "at most 107 bytes"),
        ("http", "fd:", "needs the name"),
        ("redis_url", "host:6379", "a Redis URL is"),
        ("redis_url", "http://host", "a Redis URL is"),
        ("redis_url", "redis://host:x", "[Pp]ort"),
        ("redis_url", "redis://host/name", "number of a database"),
        ("redis_url", "unix://", "path of a socket"),
        ("preload", "yes", "'auto', 'on' or 'off'"),
        ("payload_limit", "1", "greater than or equal to"),
        ("payload_limit", "big", "write a size as"),
        ("retention", "0", "greater than or equal to"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("log_file", "", "path"),
        ("embedded", "maybe", "true or false"),
    ],
)
def test_a_wrong_value_is_refused_with_the_flags_name_and_what_to_mend(
    name: str, value: object, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        load({name: value}, {"REDIS_URL": URL})

    assert f"--{name.replace('_', '-')}" in str(caught.value)


def test_a_wrong_variable_is_called_by_its_name_and_every_problem_is_told() -> None:
    text = refused({"PREFORK_Q_LEASE": "0", "PREFORK_Q_WORKERS": "x"})

    assert "PREFORK_Q_LEASE: " in text
    assert "PREFORK_Q_WORKERS: " in text


def test_a_password_is_in_no_error_and_in_no_view() -> None:
    for url in ("redis://u:s3cret@host:x", "redis://u:s3cret@host/db", "mysql://u:s3cret@host"):
        assert "s3cret" not in refused(redis_url=url)
        assert "REDIS_URL" in refused({"REDIS_URL": url})

    assert load({"redis_url": URL}, {}).shown()["redis_url"] == "redis://user:***@host:6379/0"


def test_the_view_shows_effective_values() -> None:
    shown = load({"queues": "a=2,b=3", "lease": "7s"}, {}).shown()

    assert shown["queues"] == "a=2,b=3"
    assert shown["lease"] == 7
    assert shown["redis_url"].startswith("unix://")


def test_a_socket_path_too_long_for_the_kernel_is_refused_by_who_makes_it() -> None:
    config = load({"state_dir": "/" + "x" * 120}, {})

    with pytest.raises(ConfigurationError, match="at most 107 bytes"):
        config.require_socket_paths()
    load({"state_dir": "/tmp/x"}, {}).require_socket_paths()


def test_the_folder_of_a_control_socket_must_be_there_unless_it_is_the_usual_one(tmp_path: Path) -> None:
    folder, state = str(tmp_path / "nosuch"), {"state_dir": str(tmp_path / "state")}
    given = {"ctl_socket": f"{folder}/run/ctl.sock"}

    with pytest.raises(ConfigurationError, match=r"there is no folder .*nosuch"):
        require_ctl_folder(load(given, {}), {})
    require_ctl_folder(load(given, {}), {"RUNTIME_DIRECTORY": f"{folder}/run"})
    require_ctl_folder(load({"ctl_socket": f"{folder}/ctl.sock"}, {}), {})
    require_ctl_folder(load(state, {}), {})
    require_ctl_folder(load({"ctl_socket": str(tmp_path / "ctl.sock")}, {}), {})


def test_the_configuration_does_not_change() -> None:
    config = load({}, {})

    with pytest.raises(ValidationError):
        config.lease = 5  # type: ignore[misc]


def test_a_misspelt_variable_is_told_and_a_foreign_one_is_not() -> None:
    foreign = dict.fromkeys(("PREFORK_Q_PORT_8420_TCP_ADDR", "PREFORK_Q_SERVICE_PORT", "PREFORK_Q_YES"), "1")
    environ = {"PREFORK_Q_LEAES": "3", "PREFORK_Q_LEASE": "3", **foreign}

    assert misspelt(environ) == (
        "PREFORK_Q_LEAES is no option and has no effect: did you mean PREFORK_Q_LEASE?",
    )


def test_every_option_has_help_and_a_default_that_its_own_check_accepts() -> None:
    for option in OPTIONS:
        assert option.help.endswith(".")
        if option.default and option.name not in ("workers",):
            default = option.default.split(",") if option.kind == "multiple" else option.default
            assert (
                getattr(load({option.name: default}, {}), option.name)
                == Config.model_fields[option.name].default
            )
