"""Where the configuration comes from: flags beat the environment, which beats the TOML file.

`REDIS_URL` is the last fallback for the URL; with none anywhere the server is the embedded one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefork_q.errors import ConfigurationError
from prefork_q.option_types import QueueSpec
from prefork_q.options import OPTIONS, PREFIX, Config, Option, effective_redis_url
from prefork_q.places import credential, default_ctl_socket, default_state_dir

__all__ = [
    "OPTIONS",
    "Config",
    "Option",
    "QueueSpec",
    "effective_redis_url",
    "load",
    "misspelt",
    "require_ctl_folder",
]

FLAG = "--{flag}"
ARGUMENTS = {option.name for option in OPTIONS if option.kind == "argument"}
SWITCH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Return the configuration out of flags, environment and file.

    `flags` holds what the command line gave, by the name of the option; None and () mean not
    given. The file is `file`, else the one that PREFORK_Q_CONFIG names, else none.

    Raises:
        ConfigurationError: a file cannot be read, a key is unknown, a value is wrong.
    """
    named = environ.get(f"{PREFIX}CONFIG")
    path = file or (Path(named) if named else None)
    layers = [
        Layer({k: v for k, v in flags.items() if v is not None and v != ()}, FLAG),
        Layer(_from_environment(environ), PREFIX + "{env}"),
        Layer(_from_file(path) if path else {}, f"{{key}} in {path}"),
    ]
    for layer in layers:
        layer.require_known()
    values, origins = _merge(layers)
    _choose_redis(values, layers, environ)
    _choose_http(values, layers)
    _place_folders(values, environ)
    _take_credentials(values, environ)
    try:
        return Config(**values)
    except ValidationError as error:
        raise ConfigurationError("; ".join(_told(problem, origins) for problem in error.errors())) from None


@dataclass(frozen=True, slots=True)
class Layer:
    """The options that one source gives; `pattern` says how that source spells a name."""

    values: Mapping[str, object]
    pattern: str

    def spell(self, name: str) -> str:
        if self.pattern == FLAG and name in ARGUMENTS:
            return name.upper()
        return self.pattern.format(flag=name.replace("_", "-"), env=name.upper(), key=name)

    def is_set(self, switch: str) -> bool:
        word = str(self.values.get(switch, False)).strip().lower()
        if word not in SWITCH:
            raise ConfigurationError(f"{self.spell(switch)}: write true or false")
        return SWITCH[word]

    def require_known(self) -> None:
        for name in self.values:
            if name not in Config.model_fields:
                nearest = _nearest(name, Config.model_fields)
                hint = f": did you mean {nearest}?" if nearest else ""
                raise ConfigurationError(f"unknown option {self.spell(name)}{hint}")


def require_ctl_folder(config: Config, environ: Mapping[str, str]) -> None:
    """Check that the control socket's folder is there, or can be made in one that is. The state folder and
    the default one are made anyway.

    Raises:
        ConfigurationError: it would be made wherever a slip of the pen has put it.
    """
    folder = config.ctl_socket.parent
    usual = Path(default_ctl_socket(environ, str(config.state_dir))).absolute().parent
    if folder not in (config.state_dir, usual) and not os.path.isdir(folder.parent):
        raise ConfigurationError(
            f"ctl_socket: there is no folder {folder.parent}: make it, or choose another path"
        )


def misspelt(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each variable that looks like an option's and is none's.

    No error: others may own such names (Kubernetes makes PREFORK_Q_PORT of a service's name).
    """
    known = {option.name.upper() for option in OPTIONS} | {"CONFIG"}
    # Without what all have in common: that alone would make any two of them look alike.
    given = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    return tuple(
        f"{PREFIX}{name} is no option and has no effect: did you mean {PREFIX}{nearest}?"
        for name in given
        if name not in known and (nearest := _nearest(name, known))
    )


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    # A variable that is set to nothing counts as not set, as shells and units use it.
    return {
        name: environ[variable]
        for name in Config.model_fields
        if environ.get(variable := PREFIX + name.upper())
    }


def _from_file(path: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"configuration file {path}: {error}") from None
    values: dict[str, object] = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name in values:
            raise ConfigurationError(f"configuration file {path}: {name} is given twice")
        values[name] = value
    return values


def _merge(layers: list[Layer]) -> tuple[dict[str, object], dict[str, str]]:
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in reversed(layers):
        for name, value in layer.values.items():
            values[name] = value
            origins[name] = layer.spell(name)
    return values, origins


def _choose_redis(values: dict[str, object], layers: list[Layer], environ: Mapping[str, str]) -> None:
    """Let the first source that gives a URL or asks for the embedded server decide between them.

    One that says no to the embedded server says so for the sources below it too.
    """
    is_off = False
    for layer in layers:
        if not is_off and layer.is_set("embedded"):
            if "redis_url" in layer.values:
                raise ConfigurationError(
                    f"{layer.spell('redis_url')} and {layer.spell('embedded')} exclude each other"
                )
            values.pop("redis_url", None)
            return
        if "redis_url" in layer.values:
            values["redis_url"] = layer.values["redis_url"]
            values.pop("embedded", None)
            return
        is_off = is_off or "embedded" in layer.values
    if environ.get("REDIS_URL"):
        values["redis_url"] = environ["REDIS_URL"]
        values.pop("embedded", None)
    elif "embedded" in values:
        raise ConfigurationError("embedded is off and no Redis URL is given: give one of the two")
    else:
        values["embedded"] = True


def _choose_http(values: dict[str, object], layers: list[Layer]) -> None:
    """Let the first source that gives addresses or refuses them decide.

    One that says no to `no_http` says so for the sources below it too.
    """
    is_off = False
    for layer in layers:
        if not is_off and layer.is_set("no_http"):
            if "http" in layer.values:
                raise ConfigurationError(
                    f"{layer.spell('http')} and {layer.spell('no_http')} exclude each other"
                )
            values["http"] = ()
            return
        if "http" in layer.values:
            values["http"] = layer.values["http"]
            values["no_http"] = False
            return
        is_off = is_off or "no_http" in layer.values


def _place_folders(values: dict[str, object], environ: Mapping[str, str]) -> None:
    state_dir = values.setdefault("state_dir", default_state_dir(environ))
    values.setdefault("ctl_socket", default_ctl_socket(environ, str(state_dir)))


def _take_credentials(values: dict[str, object], environ: Mapping[str, str]) -> None:
    """Use the secrets that systemd has passed, where nothing else is said."""
    password, tokens = credential(environ, "redis-password"), credential(environ, "api-tokens")
    if password is not None and "redis_url" in values:
        values.setdefault("redis_password_file", password)
    if tokens is not None:
        values.setdefault("token_file", (tokens,))


def _told(problem: Any, origins: Mapping[str, str]) -> str:
    detail = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return str(detail)
    name = str(problem["loc"][0])
    fallback = "REDIS_URL" if name == "redis_url" else name
    return f"{origins.get(name, fallback)}: {detail}"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)), None)
