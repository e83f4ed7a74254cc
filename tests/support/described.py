"""Handlers whose payloads have all kinds of types: for what is said of them in the API's description."""

from __future__ import annotations

import enum
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from prefork_q import App, Reject, TaskContext

app = App()


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    x: Annotated[int, Field(ge=0, le=10_000)]
    y: Annotated[int, Field(ge=0, le=10_000)] = 0


class Node(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=20)]
    children: Annotated[list[Node], Field(max_length=2)] = []


Address = Annotated[str, Field(pattern="^[a-z]+@example[.]org$")]


@app.task("resize", queue="images", max_attempts=5, timeout=30)
def resize(ctx: TaskContext, path: str, size: Size, at: Point | None = None) -> str:
    """Make a picture smaller.

    This line is not for the summary.
    """
    return path


@app.task("mail:send")
def send(to: Address, kind: Literal["html", "text"] = "text") -> str:
    return to


@app.task("count_words")
def count_words(texts: list[str], least: int = 1) -> int:
    return len(texts)


@app.task("tree")
def tree(root: Node, when: datetime | None = None) -> str:
    return root.name


@app.task("anything")
def anything(value: Any = None, **others: Any) -> Any:
    return value


@app.task("nothing", queue="low")
def nothing() -> None:
    return None


@app.task("refuse", max_attempts=1)
def refuse(reason: str = "as told") -> None:
    """Never succeed."""
    raise Reject(reason)


@app.task("odd")
def odd(folder: Path, letters: Annotated[str, Field(pattern="^[xyz]{4}$")]) -> None:
    """No example is made for it: what the pattern means is not worked out."""
