"""The app: registration, hooks, what `load_app` finds, and what the package exports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import assert_type

import pytest

import prefork_q
from prefork_q import App, Client, ConfigurationError, NewTask, Task, TaskContext
from prefork_q.app import load_app
from prefork_q.config import load
from prefork_q.handler import Handler, Prepared


@pytest.fixture
def app() -> App:
    return App("redis://:s3cret@localhost:1/0", "shop")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder of its own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def problem(target: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_app(target)
    return str(caught.value)


SOURCE = "from prefork_q import App\napp = App()\n@app.task\ndef work(n: int) -> int: return n\n"


class TestRegistration:
    def test_handlers_stand_in_their_order_under_their_names(self, app: App) -> None:
        @app.task
        def second() -> None: ...

        @app.task("first")
        def anything() -> None: ...

        @app.task()
        def third() -> None: ...

        assert list(app.handlers) == ["second", "first", "third"]
        assert app.handlers["first"] is anything
        assert repr(app) == "<App: second, first, third>"

    def test_a_name_is_given_once(self, app: App) -> None:
        @app.task("work")
        def first() -> None: ...

        with pytest.raises(ConfigurationError, match=r"handler work: the name is taken by .*first"):

            @app.task("work")
            def second() -> None: ...

        assert app.handlers["work"] is first

    def test_what_is_registered_cannot_be_changed_from_outside(self, app: App) -> None:
        with pytest.raises(TypeError):
            app.handlers["x"] = None  # type: ignore[index]

    def test_hooks_are_kept_in_order_and_stay_functions(self, app: App) -> None:
        @app.on_worker_start
        def first() -> str:
            return "first"

        @app.on_worker_start
        def second() -> None: ...

        app.on_template_start(first)
        app.on_worker_stop(second)

        assert app.hooks.worker_start == [first, second]
        assert app.hooks.template_start == [first]
        assert app.hooks.worker_stop == [second]
        assert first() == "first"
        with pytest.raises(ConfigurationError, match="a hook is a function"):
            app.on_worker_stop(None)  # type: ignore[type-var]

    def test_types_reach_the_caller(self, app: App) -> None:
        @app.task("typed")
        def typed(path: str, width: int = 1, *, ctx: TaskContext = TaskContext()) -> bytes:  # noqa: B008
            return path.encode()

        assert_type(typed(path="a"), bytes)
        assert_type(typed.new(path="a", width=2), NewTask)
        assert_type(typed.options(delay=5).new("a"), NewTask)
        submit: Callable[..., Task] = typed.submit
        assert submit is not None
        assert isinstance(typed, Handler)
        assert isinstance(typed.options(), Prepared)
        with pytest.raises(prefork_q.InvalidPayload):
            typed.new(pat="a")  # type: ignore[call-arg]


class TestClientOfAnApp:
    def test_it_says_what_the_app_says(self, app: App) -> None:
        assert isinstance(app.client, Client)
        assert repr(app.client) == "Client('redis://:***@localhost:1/0', 'shop')"
        assert app.client is app.client

    def test_what_the_app_leaves_out_comes_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", "redis://last")
        assert repr(App().client) == "Client('redis://last', 'default')"
        monkeypatch.setenv("PREFORK_Q_REDIS_URL", "redis://env/3")
        monkeypatch.setenv("PREFORK_Q_NAMESPACE", "n")
        assert repr(App().client) == "Client('redis://env/3', 'n')"
        assert repr(App(namespace="m").client) == "Client('redis://env/3', 'm')"

    def test_without_a_url_it_is_the_embedded_server(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("REDIS_URL", "PREFORK_Q_REDIS_URL"):
            monkeypatch.delenv(name, raising=False)

        assert repr(App().client) == f"Client('unix://{folder}/.prefork-q/redis.sock', 'default')"

    def test_a_running_node_tells_its_own(self, app: App) -> None:
        config = load({"redis_url": "redis://node", "namespace": "n"}, {})
        silent = App()

        silent.bind(config)
        app.bind(config)

        assert repr(silent.client) == "Client('redis://node', 'n')"
        assert "localhost:1" in repr(app.client)

    @pytest.mark.parametrize("arguments", [{"redis_url": "s3cret@host"}, {"namespace": "a b"}])
    def test_a_wrong_argument_is_refused_at_once(self, arguments: dict[str, str]) -> None:
        makers: tuple[Callable[..., object], ...] = (App, Client)
        for make in makers:
            with pytest.raises(ConfigurationError) as caught:
                make(**arguments)
            assert "s3cret" not in str(caught.value)


class TestLoadApp:
    def test_a_module_a_package_and_a_file_are_found_from_the_current_folder(self, folder: Path) -> None:
        (folder / "handlers_a.py").write_text(SOURCE)
        (folder / "package_a").mkdir()
        (folder / "package_a" / "__init__.py").write_text("")
        (folder / "package_a" / "inner.py").write_text(SOURCE)
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere" / "sibling_a.py").write_text("N = 7\n")
        (folder / "elsewhere" / "handlers_b.py").write_text(f"import sibling_a\n{SOURCE}")

        assert list(load_app("handlers_a:app").handlers) == ["work"]
        assert list(load_app("package_a.inner:app").handlers) == ["work"]
        by_file = load_app("elsewhere/handlers_b.py:app")
        assert list(by_file.handlers) == ["work"]
        assert load_app(f"{folder}/elsewhere/handlers_b.py:app") is by_file
        assert sys.modules["handlers_b"].app is by_file

    def test_an_attribute_may_be_inside_another(self, folder: Path) -> None:
        (folder / "handlers_c.py").write_text(f"{SOURCE}class Box: pass\nbox = Box()\nbox.app = app\n")

        assert list(load_app("handlers_c:box.app").handlers) == ["work"]

    def test_a_file_called_as_a_library_does_not_take_its_place(self, folder: Path) -> None:
        (folder / "csv.py").write_text(SOURCE)
        (folder / "prefork_q.py").write_text(SOURCE)

        assert list(load_app("csv.py:app").handlers) == ["work"]
        assert list(load_app("prefork_q.py:app").handlers) == ["work"]
        assert sys.modules["prefork_q"] is prefork_q
        assert getattr(sys.modules.get("csv"), "app", None) is None

    @pytest.mark.parametrize("target", ["handlers", "handlers:", ":app", "", ":"])
    def test_a_target_names_a_place_and_an_attribute(self, target: str) -> None:
        assert "package.module:attribute" in problem(target)

    def test_what_is_missing_is_named(self, folder: Path) -> None:
        (folder / "handlers_d.py").write_text(f"{SOURCE}other = 7\n")

        assert f"no module nothing_here in {folder}" in problem("nothing_here:app")
        assert "no module handlers_d.inner" in problem("handlers_d.inner:app")
        assert "no file" in problem("nothing/here.py:app")
        assert "apps is missing; there is handlers_d:app" in problem("handlers_d:apps")
        assert "other is a int, no App" in problem("handlers_d:other")

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("raise ValueError('why')", "ValueError: why"),
            ("def f():\n    return 1 / 0\nf()", "line 2, in f"),
            ("import missing_library", "No module named 'missing_library'"),
            ("def broken(:", "SyntaxError"),
            ("try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError from e", "ZeroDivisionError"),
            ("import sys; sys.exit(3)", "SystemExit: 3"),
        ],
    )
    @pytest.mark.parametrize("target", ["broken_a:app", "broken_a.py:app"])
    def test_an_import_that_fails_shows_the_users_own_traceback(
        self, folder: Path, source: str, text: str, target: str
    ) -> None:
        (folder / "broken_a.py").write_text(source)

        told = problem(target)

        assert told.startswith(f"target {target!r} cannot be imported:\n")
        assert text in told
        assert "broken_a.py" in told or "SyntaxError" not in text
        assert "importlib" not in told
        assert "target.py" not in told

    def test_a_file_that_failed_can_be_mended_and_loaded(self, folder: Path) -> None:
        (folder / "mended_a.py").write_text("1 / 0")
        problem("mended_a.py:app")

        (folder / "mended_a.py").write_text(SOURCE)

        assert list(load_app("mended_a.py:app").handlers) == ["work"]


class TestPackage:
    def test_it_exports_exactly_the_public_names(self) -> None:
        assert sorted(prefork_q.__all__) == prefork_q.__all__
        assert set(prefork_q.__all__) == {
            "App", "Client", "Config", "ConfigurationError", "Conflict", "IdempotencyConflict", "Invalid",
            "InvalidPayload", "NewTask", "NotFound", "PreforkQError", "Reject", "Retry", "RetryAfter", "Task",
            "TaskContext", "TaskFailed", "TaskRecord", "TaskTimeout", "TooLarge", "Unavailable",
        }  # fmt: skip
        for name in prefork_q.__all__:
            assert getattr(prefork_q, name).__name__ == name
            assert getattr(prefork_q, name).__doc__
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            prefork_q.nothing  # noqa: B018

    def test_every_public_name_can_be_imported_first_in_a_fresh_interpreter(self) -> None:
        program = "".join(
            f"import subprocess, sys\nfrom prefork_q import {name}\n" for name in prefork_q.__all__
        )

        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    def test_importing_the_package_brings_no_library_along(self) -> None:
        program = (
            "import sys, prefork_q, prefork_q.errors, prefork_q.events, prefork_q.states, prefork_q.retry\n"
            "found = {name.split('.')[0] for name in sys.modules}\n"
            "assert not found & {'redis', 'pydantic', 'bottle', 'waitress', 'click', 'rich'}, found\n"
        )

        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
