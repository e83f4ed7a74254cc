from __future__ import annotations

from pathlib import Path

import pytest

from prefork_q.app import App
from prefork_q.cli.handlers import doubt_of_queues, load_handlers, require_same_place
from prefork_q.config import Config, load
from prefork_q.errors import ConfigurationError
from prefork_q.options import database_of


def config(**options: object) -> Config:
    return load(options, {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://localhost", "redis://LOCALHOST:6379/0"),
        ("redis://:secret@h:7000/2", "redis://h:7000/2"),
        ("unix:///a%20b/redis.sock", "unix:///a b/redis.sock?db=0"),
        ("redis+sentinel://a,b/tasks", "redis+sentinel://:secret@b:26379,c/tasks/0"),
    ],
)
def test_a_database_is_the_same_however_its_url_is_spelt(one: str, other: str) -> None:
    assert database_of(one) == database_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://localhost", "redis://localhost:6380"),
        ("redis://localhost/0", "redis://localhost/1"),
        ("redis://localhost", "redis://other"),
        ("unix:///a", "unix:///b"),
        ("redis+sentinel://a/tasks", "redis+sentinel://a/others"),
        ("unix:///a", "unix:///a?db=1"),
    ],
)
def test_other_databases_are_told_apart(one: str, other: str) -> None:
    assert database_of(one) != database_of(other)


def test_an_app_that_says_nothing_fits_everywhere() -> None:
    require_same_place(App(), config())


def test_an_app_of_another_server_or_namespace_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match=r"redis://:\*\*\*@h, this node uses unix://"):
        require_same_place(App("redis://:secret@h"), config())
    with pytest.raises(ConfigurationError, match="namespace a, this node uses b"):
        require_same_place(App(namespace="a"), config(namespace="b"))


def test_an_app_of_the_same_server_and_namespace_fits() -> None:
    require_same_place(App("redis://h", "a"), config(redis_url="redis://h:6379/0", namespace="a"))


def test_handlers_get_the_nodes_configuration(tmp_path: Path) -> None:
    file = tmp_path / "some_handlers.py"
    file.write_text("from prefork_q import App\napp = App()\n@app.task\ndef nothing(): ...\n")

    app = load_handlers(config(target=f"{file}:app", redis_url="redis://h", namespace="a"))

    assert list(app.handlers) == ["nothing"]


def test_an_app_without_handlers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "no_handlers.py"
    file.write_text("from prefork_q import App\napp = App()\n")

    with pytest.raises(ConfigurationError, match="no handlers"):
        load_handlers(config(target=f"{file}:app"))


def test_handlers_of_a_queue_that_the_node_does_not_work_on_are_doubted() -> None:
    app = App()
    app.task("mail")(lambda: None)
    app.task("fetch", queue="slow")(lambda: None)

    assert "fetch (slow): add them to --queues" in str(doubt_of_queues(app, config()))
    assert doubt_of_queues(app, config(queues="slow,default")) is None
