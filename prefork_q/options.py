"""The options: one declaration each feeds key, variable, flag, help and validation.

An option `drain_timeout` is the key `drain_timeout` (or `drain-timeout`) in the TOML file, the
variable `PREFORK_Q_DRAIN_TIMEOUT` and the flag `--drain-timeout`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from prefork_q.addresses import (
    HttpAddress,
    is_sentinel_url,
    parse_http,
    parse_sentinels,
    require_socket_path,
)
from prefork_q.errors import ConfigurationError
from prefork_q.events import Level, mask_url
from prefork_q.option_types import (
    AbsolutePath,
    Addresses,
    Duration,
    Name,
    Paths,
    Queues,
    QueueSpec,
    RedisUrl,
    Size,
    Whole,
    require_private,
)
from prefork_q.passwords import read_password, with_password
from prefork_q.task import DEFAULT_QUEUE
from prefork_q.units import format_duration, format_size

PREFIX: Final = "PREFORK_Q_"
YEAR: Final = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Opt:
    """What the command line says of an option; the name, default and checks are the field's own."""

    help: str
    metavar: str | None = None
    kind: Literal["value", "switch", "multiple", "argument"] = "value"


@dataclass(frozen=True, slots=True)
class Option:
    """An option as a command line declares it. `default` is text for the help, "" for none."""

    name: str
    flag: str
    env: str
    help: str
    metavar: str | None
    kind: Literal["value", "switch", "multiple", "argument"]
    choices: tuple[str, ...]
    default: str


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Config(BaseModel):
    """The configuration of a node. Durations are in seconds, sizes in bytes, paths absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, hide_input_in_errors=True)

    target: Annotated[
        str | None,
        Opt("Handlers: package.module:attribute or path/to/file.py:attribute.", "TARGET", "argument"),
    ] = None
    redis_url: Annotated[
        RedisUrl | None,
        Opt("URL of the Redis or Valkey server; the last fallback is REDIS_URL.", "URL"),
    ] = None
    redis_password_file: Annotated[
        AbsolutePath | None,
        Opt("File with the password of the server, for a URL without one.", "FILE"),
    ] = None
    embedded: Annotated[
        bool,
        Opt("Start a server of its own in the state folder: the default if no URL is given.", None, "switch"),
    ] = False
    namespace: Annotated[Name, Opt("Prefix of all keys; queues of two namespaces never meet.", "NAME")] = (
        "default"
    )
    workers: Annotated[Whole, Field(ge=1, le=512), Opt("Worker processes.", "N")] = Field(
        default_factory=cores, ge=1, le=512
    )
    threads: Annotated[Whole, Field(ge=1, le=256), Opt("Processor threads in each worker.", "P")] = 1
    queues: Annotated[
        Queues,
        Opt("Queues to work on: a,b in strict order, or a=1,b=3 by weight.", "QUEUES"),
    ] = (QueueSpec(DEFAULT_QUEUE),)
    token_file: Annotated[
        Paths,
        Opt("File with the API's tokens: NAME SCOPES TOKEN in each line; repeatable.", "FILE", "multiple"),
    ] = ()
    http: Annotated[
        Addresses,
        Opt("Where the API listens: HOST:PORT, unix:PATH or fd:NAME; repeatable.", "ADDRESS", "multiple"),
    ] = ("127.0.0.1:8420",)
    no_http: Annotated[bool, Opt("No API.", None, "switch")] = False
    api_processes: Annotated[Whole, Field(ge=1, le=64), Opt("API processes.", "M")] = 1
    ctl_socket: Annotated[
        AbsolutePath,
        Opt("Control socket; $RUNTIME_DIRECTORY/ctl.sock, else ctl.sock in the state folder.", "PATH"),
    ]
    state_dir: Annotated[AbsolutePath, Opt("State folder; $STATE_DIRECTORY, else ./.prefork-q.", "DIR")]
    lease: Annotated[
        Duration, Field(ge=1, le=86_400), Opt("How long a claim holds without renewal.", "DURATION")
    ] = 30.0
    drain_timeout: Annotated[
        Duration, Field(le=86_400), Opt("How long a stop waits for running tasks.", "DURATION")
    ] = 30.0
    grace: Annotated[
        Duration, Field(le=3600), Opt("Time between the soft and the hard time limit of a task.", "DURATION")
    ] = 2.0
    max_crashes: Annotated[
        Whole, Field(ge=0, le=1000), Opt("How many crashes of its worker a task survives.", "N")
    ] = 3
    max_tasks: Annotated[
        Whole | None, Field(ge=1, le=10**12), Opt("Recycle a worker after so many attempts.", "N")
    ] = None
    max_rss: Annotated[
        Size | None,
        Field(ge=1024**2, le=1024**5),
        Opt("Recycle a worker that has grown by so much; half as much again: kill it.", "SIZE"),
    ] = None
    preload: Annotated[
        Literal["auto", "on", "off"],
        Opt("Import the handlers once, before workers are forked.", None),
    ] = "auto"
    payload_limit: Annotated[
        Size, Field(ge=64, le=64 * 1024**2), Opt("The largest payload, as JSON.", "SIZE")
    ] = 256 * 1024
    result_limit: Annotated[
        Size, Field(ge=64, le=64 * 1024**2), Opt("The largest result, as JSON.", "SIZE")
    ] = 1024**2
    retention: Annotated[
        Duration, Field(ge=1, le=10 * YEAR), Opt("How long ended tasks are kept.", "DURATION")
    ] = 86_400.0
    dead_limit: Annotated[Whole, Field(ge=1, le=100_000_000), Opt("How many dead tasks are kept.", "N")] = (
        100_000
    )
    dead_retention: Annotated[
        Duration, Field(ge=1, le=10 * YEAR), Opt("How long dead tasks are kept.", "DURATION")
    ] = 180 * 86_400.0
    log_level: Annotated[Level, Opt("The lowest level that is logged.", None)] = "info"
    log_format: Annotated[
        Literal["text", "json"] | None, Opt("Form of the log; text on a terminal, json otherwise.", None)
    ] = None
    log_file: Annotated[AbsolutePath | None, Opt("Log to this file, not to stderr.", "FILE")] = None
    reload: Annotated[
        bool, Opt("Reload when the code changes; for development (needs watchfiles).", None, "switch")
    ] = False
    no_fork: Annotated[
        bool, Opt("Do all in one process: for debuggers and breakpoints.", None, "switch")
    ] = False

    @field_validator("target")
    @classmethod
    def _names_an_attribute(cls, target: str | None) -> str | None:
        place, _, attribute = (target or "").rpartition(":")
        if target is not None and not (place and attribute):
            raise ValueError(
                f"{target!r}: write package.module:attribute or path/to/file.py:attribute, as in handlers:app"
            )
        return target

    @field_validator("http")
    @classmethod
    def _is_guarded(cls, http: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        # Declared below token_file, so that this is known here.
        if not info.data.get("token_file"):
            require_private(http)
        return http

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if self.redis_url is not None and self.embedded:
            raise ValueError("a Redis URL and the embedded server exclude each other: give one of them")
        if self.redis_password_file is not None and self.redis_url is None:
            raise ValueError("redis_password_file is for a Redis URL, and there is none")
        return self

    def require_socket_paths(self) -> None:
        """Check that the control socket and the embedded server's can be made: for who makes them.

        Raises:
            ConfigurationError: a path is longer than the kernel allows.
        """
        paths = {"ctl_socket": self.ctl_socket} | ({"state_dir": self.store_socket} if self.embedded else {})
        for name, path in paths.items():
            try:
                require_socket_path(str(path))
            except ValueError as error:
                raise ConfigurationError(f"{name}: {error}") from None

    @property
    def needs_state_dir(self) -> bool:
        """Whether a node puts anything into the state folder."""
        return self.embedded or self.state_dir in self.ctl_socket.parents

    @property
    def store_socket(self) -> Path:
        """The Unix socket of the embedded server."""
        return self.state_dir / "redis.sock"

    @property
    def http_addresses(self) -> tuple[HttpAddress, ...]:
        """Where the API listens; empty if there is none."""
        return tuple(parse_http(text) for text in self.http)

    def shown(self) -> dict[str, Any]:
        """The effective values, ready for JSON, for people to read; passwords are masked."""
        shown = self.model_dump(mode="json")
        shown["queues"] = ",".join(
            spec.name if spec.weight is None else f"{spec.name}={spec.weight}" for spec in self.queues
        )
        shown["redis_url"] = mask_url(effective_redis_url(self))
        return shown


def effective_redis_url(config: Config) -> str:
    """Return the URL of the server: the configured one with its password, or the embedded server's socket.

    Raises:
        ConfigurationError: the file with the password cannot be read, or there are two passwords.
    """
    if config.redis_url is None:
        return f"unix://{quote(str(config.store_socket))}"
    if config.redis_password_file is None:
        return config.redis_url
    return with_password(config.redis_url, read_password(config.redis_password_file))


def redis_url_given(url: str, config: Config) -> str:
    """Return the URL of a server that a program names itself, with the configured password if that is meant
    for it: if the URL has none and names what the configured one names, to the same user and as safely.

    Raises:
        ConfigurationError: the file with the password cannot be read.
    """
    if config.redis_url is None or config.redis_password_file is None:
        return url
    if urlsplit(url).password is not None or _named_by(url) != _named_by(config.redis_url):
        return url
    return with_password(url, read_password(config.redis_password_file))


def _named_by(url: str) -> tuple[object, ...]:
    """Return all that a URL says but a password, without what is mere spelling."""
    parts = urlsplit(url)
    # Two groups of sentinels may know different servers by one name, and options can lead elsewhere.
    sentinels = parse_sentinels(url).sentinels if is_sentinel_url(url) else ()
    return parts.scheme, parts.username or None, sentinels, database_of(url), parts.query


def database_of(url: str) -> tuple[str, str]:
    """Return what tells one database from another: server and number, however the URL spells them."""
    if is_sentinel_url(url):
        sentinel = parse_sentinels(url)
        return sentinel.service, str(sentinel.database)
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return unquote(parts.path), parse_qs(parts.query).get("db", ["0"])[0]
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}", parts.path.strip("/") or "0"


def _options() -> tuple[Option, ...]:
    options = []
    for name, field in Config.model_fields.items():
        opt = next(item for item in field.metadata if isinstance(item, Opt))
        options.append(
            Option(
                name=name,
                flag="--" + name.replace("_", "-"),
                env=PREFIX + name.upper(),
                help=opt.help,
                metavar=opt.metavar,
                kind=opt.kind,
                choices=_choices(field.annotation),
                default=_default_text(name, field.get_default()),
            )
        )
    return tuple(options)


def _choices(annotation: Any) -> tuple[str, ...]:
    literal = next((part for part in get_args(annotation) if get_args(part)), annotation)
    return tuple(word for word in get_args(literal) if isinstance(word, str))


def _default_text(name: str, default: object) -> str:
    if name == "workers":
        return "the number of cores"
    if name == "queues":
        return DEFAULT_QUEUE
    if isinstance(default, tuple):
        return ",".join(default)
    if isinstance(default, float):
        return format_duration(default)
    if name.endswith("_limit") and name != "dead_limit" and isinstance(default, int):
        return format_size(default)
    if default is None or isinstance(default, bool) or repr(default) == "PydanticUndefined":
        return ""
    return str(default)


OPTIONS: Final[tuple[Option, ...]] = _options()
"""Every option, in the order of the help. `--config FILE` (PREFORK_Q_CONFIG) is the command line's own."""
