"""Handlers: what a signature makes of a payload, what is refused at registration, how they are called."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import orjson
import pydantic
import pydantic_core
import pytest

import prefork_q.context
from prefork_q import App, ConfigurationError, InvalidPayload, Retry, TaskContext
from prefork_q.handler import Handler
from prefork_q.task import MAX_ATTEMPTS_LIMIT

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

    from prefork_q import TaskContext as OnlyForCheckers

CONTEXT = TaskContext(id="a", type="t", attempt=2, max_attempts=3, deadline=5.0, token=7)


OWN_FIRST, OTHER_FIRST = pydantic.AliasChoices("a", "b"), pydantic.AliasChoices("b", "a")


class Lines(pydantic.BaseModel):
    """Its payload has nothing that is read lazily."""

    text: str

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def lines(self) -> Iterable[str]:
        return self.text.splitlines()


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


def opaque_schema(source: Any, handler: Any) -> pydantic_core.CoreSchema:
    """The schema of a type that can be checked and has no description."""
    return pydantic_core.core_schema.callable_schema()


class Model(pydantic.BaseModel):
    n: int
    tag: str = "x"


class Connection: ...


class Broken(pydantic.BaseModel):
    x: Missing  # type: ignore[name-defined]  # noqa: F821


@dataclasses.dataclass
class Point:
    x: float
    y: int = 0


@pytest.fixture
def app() -> App:
    return App()


def run(handler: Handler[..., Any], payload: object) -> Any:
    """Do what a worker does with a payload."""
    return handler.call(handler.arguments(orjson.dumps(payload)), CONTEXT)


def refusal(handler: Handler[..., Any], payload: object) -> InvalidPayload:
    body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    with pytest.raises(InvalidPayload) as caught:
        handler.validate(body)
    assert caught.value.pointer == "/payload"
    return caught.value


def register(app: App, function: Callable[..., Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        app.task("thumbnail")(function)
    assert "thumbnail" in str(caught.value)
    return str(caught.value)


class TestStrictTypes:
    @pytest.mark.parametrize(
        ("annotation", "good", "bad"),
        [
            (int, [7, -1, 2**64 - 1, -(2**63)], ["7", True, 7.0, 7.5, None, [7]]),
            (float, [7, 7.5, 1e-7], ["7", True, None]),
            (str, ["", "é😀", "\0"], [7, True, None, ["a"]]),
            (bool, [True, False], [0, 1, "true", None]),
            (dict, [{}, {"a": [1]}], [[], "x", None]),
            (list, [[], [1, "a", None]], [{}, "x"]),
            (list[int], [[], [1]], [["1"], [True], 1]),
            (None, [None], [0, ""]),
            (
                Optional[int],  # noqa: UP045
                [None, 1],
                ["1", 1.0],
            ),
            (int | str, [1, "1"], [1.5, None]),
            (Literal["a", 1], ["a", 1], ["b", "1", 2]),
            (Annotated[int, pydantic.Field(ge=1)], [1], [0, "1"]),
            (Any, [1, "a", None, {"a": [2**64 - 1]}, []], []),
            (object, [1, "a", None], []),
        ],
    )
    def test_json_types_are_taken_as_they_are(
        self, app: App, annotation: Any, good: list[Any], bad: list[Any]
    ) -> None:
        def function(value: Any) -> Any:
            return value

        function.__annotations__["value"] = annotation
        handler = app.task("t")(function)

        for value in good:
            assert run(handler, {"value": value}) == value
        for value in bad:
            assert refusal(handler, {"value": value}).errors[0][0].startswith("/payload/value")

    @pytest.mark.parametrize(
        ("annotation", "given", "value"),
        [
            (float, 7, 7.0),
            (pathlib.Path, "/a/b", pathlib.Path("/a/b")),
            (
                datetime.datetime,
                "2026-11-29T15:00:00Z",
                datetime.datetime(2026, 11, 29, 15, tzinfo=datetime.UTC),
            ),
            (datetime.date, "2026-11-29", datetime.date(2026, 11, 29)),
            (bytes, "abc", b"abc"),
            (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
            (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
            (Colour, "red", Colour.RED),
            (Colour, 2, Colour.TWO),
            (Model, {"n": 1}, Model(n=1)),
            (Point, {"x": 1}, Point(1.0)),
            (tuple[int, str], [1, "a"], (1, "a")),
            (set[int], [1, 1], {1}),
            (list[Model], [{"n": 1, "tag": "y"}], [Model(n=1, tag="y")]),
        ],
    )
    def test_what_json_lacks_is_read_from_its_json_form(
        self, app: App, annotation: Any, given: Any, value: Any
    ) -> None:
        def function(value: Any) -> Any:
            return value

        function.__annotations__["value"] = annotation
        handler = app.task("t")(function)

        result = run(handler, {"value": given})

        assert result == value
        assert type(result) is type(value)

    @pytest.mark.parametrize(
        ("annotation", "given", "pointer"),
        [
            (Colour, "blue", "/payload/value"),
            (Model, {"n": "1"}, "/payload/value/n"),
            (Model, {}, "/payload/value/n"),
            (Point, {"x": 1, "z": 2}, "/payload/value/z"),
            (list[Model], [{"n": 1}, {"n": True}], "/payload/value/1/n"),
            (dict[str, int], {"a/b~": "1"}, "/payload/value/a~1b~0"),
            (int | list[str], ["a", 1], "/payload/value"),
            (datetime.datetime, "yesterday", "/payload/value"),
            (pathlib.Path, 1, "/payload/value"),
        ],
    )
    def test_the_place_of_an_error_is_a_pointer_into_the_payload(
        self, app: App, annotation: Any, given: Any, pointer: str
    ) -> None:
        def function(value: Any) -> Any:
            return value

        function.__annotations__["value"] = annotation
        handler = app.task("t")(function)

        assert pointer in [place for place, _ in refusal(handler, {"value": given}).errors]

    def test_a_union_names_the_item_that_fits_no_option(self, app: App) -> None:
        @app.task
        def handler(value: int | list[str]) -> None: ...

        assert [place for place, _ in refusal(handler, {"value": ["a", 1]}).errors] == [
            "/payload/value",
            "/payload/value/1",
        ]


class TestMembers:
    @pytest.fixture
    def thumbnail(self, app: App) -> Handler[..., Any]:
        @app.task("thumbnail")
        def thumbnail(path: str, width: int = 128) -> Any:
            return path, width

        return thumbnail

    def test_members_are_arguments_and_defaults_hold(self, thumbnail: Handler[..., Any]) -> None:
        assert run(thumbnail, {"path": "a"}) == ("a", 128)
        assert run(thumbnail, {"width": 1, "path": "a"}) == ("a", 1)

    def test_a_missing_an_unknown_and_a_wrong_member_are_each_named(
        self, thumbnail: Handler[..., Any]
    ) -> None:
        error = refusal(thumbnail, {"width": "7", "hight": 1})

        assert dict(error.errors) == {
            "/payload/path": "missing: thumbnail needs it",
            "/payload/width": "Input should be a valid integer, not a string",
            "/payload/hight": "unknown member: thumbnail takes path, width",
        }
        assert str(error).startswith("the payload does not fit thumbnail: /payload/")
        assert str(error).endswith("(and 2 more)")

    @pytest.mark.parametrize("payload", [[], "x", 1, None, True])
    def test_a_payload_is_an_object(self, thumbnail: Handler[..., Any], payload: object) -> None:
        assert refusal(thumbnail, payload).errors[0][0] == "/payload"

    @pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"path": "a"} x', b"[" * 5000])
    def test_a_body_that_is_no_json_is_refused_and_nothing_else(
        self, thumbnail: Handler[..., Any], body: bytes
    ) -> None:
        assert "not JSON" in str(refusal(thumbnail, body))

    def test_a_long_list_of_errors_is_cut(self, app: App) -> None:
        @app.task
        def many(values: list[int]) -> None: ...

        error = refusal(many, {"values": ["x"] * 5000})

        assert len(error.errors) == 100
        assert "(and 4999 more)" in str(error)

    def test_unannotated_parameters_take_anything(self, app: App) -> None:
        @app.task
        def loose(a, b=None):  # type: ignore[no-untyped-def]
            return a, b

        assert run(loose, {"a": [1, {"b": None}]}) == ([1, {"b": None}], None)

    def test_kwargs_take_the_unknown_members(self, app: App) -> None:
        @app.task
        def open_(path: str, **rest: Any) -> Any:
            return path, rest

        assert run(open_, {"path": "a", "x": 1, "y": [2]}) == ("a", {"x": 1, "y": [2]})
        assert run(open_, {"path": "a"}) == ("a", {})

    def test_annotated_kwargs_are_checked(self, app: App) -> None:
        @app.task
        def counts(name: str, **numbers: int) -> Any:
            return numbers

        assert run(counts, {"name": "a", "x": 1}) == {"x": 1}
        assert refusal(counts, {"name": "a", "x": "1"}).errors[0][0] == "/payload/x"

    def test_names_that_pydantic_keeps_for_itself_are_fine(self, app: App) -> None:
        @app.task
        def odd(json: int, copy: int, model_config: int, _private: int, self: int, schema: int = 1) -> Any:
            return json, copy, model_config, _private, self, schema

        payload = {"json": 1, "copy": 2, "model_config": 3, "_private": 4, "self": 5}
        assert run(odd, payload) == (1, 2, 3, 4, 5, 1)

    def test_a_check_of_the_users_own_that_raises_is_a_refusal(self, app: App) -> None:
        def explode(value: int) -> int:
            raise RuntimeError("no")

        @app.task
        def handler(n: Annotated[int, pydantic.AfterValidator(explode)]) -> None: ...

        # The annotation is looked up among the names where the handler is defined.
        assert "RuntimeError: no" in str(refusal(handler, {"n": 1}))


class TestContext:
    def test_it_is_given_whatever_its_name_and_kind(self, app: App) -> None:
        @app.task("a")
        def by_keyword(path: str, *, ctx: TaskContext) -> Any:
            return ctx, path

        @app.task("b")
        def by_position(context: TaskContext, /, path: str) -> Any:
            return context, path

        @app.task("c")
        def first(me: Optional[TaskContext], path: str) -> Any:  # noqa: UP045
            return me, path

        @app.task("d")
        def with_default(path: str, ctx: TaskContext | None = None) -> Any:
            return ctx, path

        @app.task("e")
        def annotated(path: str, ctx: Annotated[TaskContext, "note"]) -> Any:
            return ctx, path

        @app.task("f")
        def with_module(path: str, ctx: prefork_q.context.TaskContext) -> Any:
            return ctx, path

        @app.task("g")
        def with_rest(ctx: TaskContext, **rest: Any) -> Any:
            return ctx, rest["path"]

        for handler in app.handlers.values():
            assert run(handler, {"path": "p"}) == (CONTEXT, "p")

    def test_it_is_known_by_its_text_when_only_type_checkers_import_it(self, app: App) -> None:
        def function(path: str, ctx: OnlyForCheckers) -> Any:
            return ctx

        function.__annotations__["ctx"] = "missing.TaskContext | None"
        handler = app.task("t")(function)

        assert run(handler, {"path": "p"}) is CONTEXT

    def test_it_is_no_member_of_the_payload(self, app: App) -> None:
        @app.task("a")
        def closed(path: str, *, ctx: TaskContext) -> None: ...

        @app.task("b")
        def open_(path: str, *, ctx: TaskContext, **rest: Any) -> None: ...

        for handler in (closed, open_):
            assert handler.context_parameter == "ctx"
            assert "ctx" not in handler.json_schema()["properties"]
            assert refusal(handler, {"path": "a", "ctx": {}}).errors[0][0] == "/payload/ctx"
            with pytest.raises(InvalidPayload, match="the worker gives the context"):
                handler.new("a", ctx=CONTEXT)

    def test_a_detached_one_serves_plain_calls(self, app: App) -> None:
        @app.task
        def handler(path: str, ctx: TaskContext = TaskContext()) -> Any:  # noqa: B008
            ctx.progress(0.5, "half")
            return ctx.cancelled, ctx.lease_valid(), ctx.attempt, path

        assert handler(path="a") == (False, True, 1, "a")


class TestRegistration:
    def test_what_cannot_be_given_by_name_is_refused(self, app: App) -> None:
        def by_position(a: int, /) -> None: ...

        def many(*args: int) -> None: ...

        def contexts(*ctx: TaskContext) -> None: ...

        def two(a: TaskContext, b: TaskContext) -> None: ...

        assert "a before / has no name" in register(app, by_position)
        assert "*args has no name" in register(app, many)
        assert "one context" in register(app, contexts)
        assert "a and b both ask for the context" in register(app, two)

    def test_what_is_no_plain_function_is_refused(self, app: App) -> None:
        async def coroutine() -> None: ...

        async def async_generator() -> Any:
            yield 1

        def generator() -> Any:
            yield 1

        class Asynchronous:
            async def __call__(self) -> None: ...

        assert "asyncio.run" in register(app, coroutine)
        assert "asyncio.run" in register(app, functools.partial(coroutine))
        assert "asyncio.run" in register(app, Asynchronous())
        assert "async" in register(app, async_generator)
        assert "generator" in register(app, generator)
        assert "no function" in register(app, Asynchronous)
        assert "no function" in register(app, 7)  # type: ignore[arg-type]

    def test_a_type_that_json_cannot_carry_is_named(self, app: App) -> None:
        def function(path: str, connection: Connection) -> None: ...

        def unknown(path: str, other: Unknown) -> None: ...

        assert "no payload can give connection" in register(app, function)
        text = register(app, unknown)
        assert "'Unknown' of other cannot be looked up" in text
        assert "importable at run time" in text

    def test_a_model_that_is_not_fully_defined_is_refused_at_once(self, app: App) -> None:
        def function(value: Broken) -> None: ...

        assert "no payload can give value" in register(app, function)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"max_attempts": 0}, "from 1 to 1,000"),
            ({"max_attempts": MAX_ATTEMPTS_LIMIT + 1}, "from 1 to 1,000"),
            ({"max_attempts": True}, "whole number"),
            ({"max_attempts": 2.0}, "whole number"),
            ({"queue": "a b"}, "queue: a name has"),
            ({"queue": None}, "queue: a name has"),
            ({"timeout": 0}, "timeout: seconds"),
            ({"timeout": -1}, "timeout: seconds"),
            ({"timeout": float("nan")}, "timeout: seconds"),
            ({"timeout": "5"}, "timeout: seconds"),
            ({"retry": 3}, "retry is a Retry"),
            ({"name": "a b"}, "a name has"),
            ({"name": "a\nb"}, "a name has"),
            ({"name": ""}, "a name has"),
            ({"name": "x" * 101}, "a name has"),
        ],
    )
    def test_a_wrong_option_is_refused(self, app: App, options: dict[str, Any], text: str) -> None:
        def function() -> None: ...

        with pytest.raises(ConfigurationError, match=text):
            app.task(**options)(function)

    @pytest.mark.parametrize(
        "annotation", [Iterable[int], list[Iterable[str]], dict[str, Iterable[int]], Iterable[int] | None]
    )
    def test_what_would_be_checked_only_while_it_is_read_is_refused(self, app: App, annotation: Any) -> None:
        def function(x: Any) -> None: ...

        function.__annotations__["x"] = annotation
        assert "write list[...] or Sequence[...]" in register(app, function)

    def test_what_is_lazy_in_what_is_written_only_is_no_reason(self, app: App) -> None:
        def function(x: Lines) -> None: ...

        assert app.task("thumbnail")(function).validate(b'{"x": {"text": "a"}}')["x"].text == "a"

    def test_what_is_lazy_is_found_under_any_name(self, app: App) -> None:
        def function(metadata: Iterable[int], default: int = 3) -> None: ...

        assert "write list[...] or Sequence[...]" in register(app, function)

    def test_a_field_is_neither_default_nor_gives_another_name(self, app: App) -> None:
        def default(x: int = pydantic.Field(3, gt=0)) -> None: ...

        def alias(from_: Annotated[int, pydantic.Field(alias="from")]) -> None: ...

        def renamed(a: Annotated[str, pydantic.Field(validation_alias=OTHER_FIRST)] = "") -> None: ...

        def both(a: Annotated[str, pydantic.Field(validation_alias=OWN_FIRST)] = "") -> None: ...

        def sound(x: Annotated[int, pydantic.Field(gt=0)] = 3) -> None: ...

        assert "write x: Annotated[..., Field(...)]" in register(app, default)
        assert "from_ has an alias" in register(app, alias)
        assert "a has an alias" in register(app, renamed)
        known = app.task("both")(both)
        assert known.validate(b'{"b": "c"}') == known.validate(b'{"a": "c"}') == {"a": "c"}
        assert known.json_schema()["properties"]["a"]["default"] == ""
        with pytest.raises(InvalidPayload):
            app.task("thumbnail")(sound).validate(b'{"x": 0}')

    def test_a_payload_with_thousands_of_flaws_is_refused_briefly(self, app: App) -> None:
        def function(x: list[int]) -> None: ...

        handler = app.task("thumbnail")(function)
        with pytest.raises(InvalidPayload, match="20,000 values are wrong") as caught:
            handler.validate(b'{"x":[' + b",".join([b'""'] * 20_000) + b"]}")
        assert len(caught.value.errors) == 1

    def test_a_lambda_needs_a_name(self, app: App) -> None:
        with pytest.raises(ConfigurationError, match="give one with"):
            app.task(lambda: None)
        app.task("named")(lambda: None)

    def test_partials_methods_objects_and_wrapped_functions_can_be_handlers(self, app: App) -> None:
        def base(a: int, b: int) -> int:
            return a + b

        @functools.wraps(base)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return base(*args, **kwargs)

        class Adder:
            def __call__(self, a: int, b: int) -> int:
                return a + b

            def add(self, a: int, b: int) -> int:
                return a + b

            @staticmethod
            def static(a: int, b: int) -> int:
                return a + b

        functions: dict[str, Callable[..., Any]] = {
            "partial": functools.partial(base, b=2),
            "wrapper": wrapper,
            "object": Adder(),
            "method": Adder().add,
            "static": Adder.static,
        }
        for name, function in functions.items():
            handler = app.task(name)(function)
            assert run(handler, {"a": 1, "b": 3}) == 4
            assert refusal(handler, {"a": "1", "b": 3}).errors[0][0] == "/payload/a"

    def test_the_policy_is_kept(self, app: App) -> None:
        retry = Retry(base=2)

        @app.task("t", queue="low", max_attempts=5, timeout=30, retry=retry)
        def handler() -> None:
            """Makes it."""

        assert (handler.name, handler.queue, handler.max_attempts, handler.timeout) == ("t", "low", 5, 30)
        assert handler.retry is retry
        assert handler.__doc__ == "Makes it."


class TestJsonSchema:
    def test_it_describes_the_payload(self, app: App) -> None:
        @app.task("images/thumbnail")
        def thumbnail(path: pathlib.Path, size: Point, width: int = 128, *, ctx: TaskContext) -> None: ...

        schema = thumbnail.json_schema()

        assert schema["title"] == "images/thumbnail"
        assert schema["required"] == ["path", "size"]
        assert schema["additionalProperties"] is False
        assert schema["properties"]["width"] == {"title": "Width", "type": "integer", "default": 128}
        assert schema["properties"]["size"] == {"$ref": "#/$defs/Point"}
        assert thumbnail.json_schema(ref_template="#/x/{model}")["properties"]["size"] == {
            "$ref": "#/x/Point"
        }

    def test_extras_are_described(self, app: App) -> None:
        @app.task("a")
        def any_(**rest: Any) -> None: ...

        @app.task("b")
        def models(**rest: Model) -> None: ...

        assert any_.json_schema()["additionalProperties"] is True
        assert models.json_schema()["additionalProperties"] == {"$ref": "#/$defs/Model"}
        assert "Model" in models.json_schema()["$defs"]

    def test_a_type_without_a_description_leaves_it_open(self, app: App) -> None:
        @app.task("t")
        def handler(value: Annotated[Any, pydantic.PlainValidator(lambda v: v)], n: int) -> None: ...

        def opaque(value: Any) -> Any: ...

        opaque.__annotations__["value"] = Annotated[
            object,
            pydantic.GetPydanticSchema(opaque_schema),
        ]

        assert handler.json_schema()["title"] == "t"
        assert app.task("o")(opaque).json_schema() == {"title": "o", "type": "object"}


class TestSubmission:
    def test_a_new_task_is_written_like_a_call(self, app: App) -> None:
        @app.task("thumbnail", queue="low", max_attempts=5, timeout=30)
        def thumbnail(path: pathlib.Path, width: int = 128, *, ctx: TaskContext = TaskContext()) -> None: ...  # noqa: B008

        new = thumbnail.new(pathlib.Path("/a"), width=3)
        other = thumbnail.options(queue="high", delay=5, max_attempts=1, idempotency_key="k").new(
            path=pathlib.Path("/a")
        )

        assert (new.type, new.payload, new.queue, new.max_attempts, new.timeout) == (
            "thumbnail",
            {"path": pathlib.Path("/a"), "width": 3},
            "low",
            5,
            30,
        )
        assert (other.queue, other.delay, other.max_attempts, other.timeout, other.idempotency_key) == (
            "high",
            5,
            1,
            30,
            "k",
        )

    def test_what_does_not_fit_is_refused_before_it_is_sent(self, app: App) -> None:
        @app.task("thumbnail")
        def thumbnail(path: str, width: int = 128) -> None: ...

        for args, kwargs, text in (
            ((), {}, "/payload/path: missing"),
            (("a", "b"), {}, "/payload/width"),
            (("a", 1, 2), {}, "at most 2 members"),
            (("a",), {"path": "b"}, "given twice"),
            ((), {"path": "a", "other": 1}, "unknown member"),
        ):
            with pytest.raises(InvalidPayload, match=text):
                thumbnail.submit(*args, **kwargs)

    def test_a_plain_call_stays_one(self, app: App) -> None:
        @app.task
        def double(n: int) -> int:
            return 2 * n

        assert double(n=4) == double(4) == 8
