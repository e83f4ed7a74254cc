"""`prefork-q openapi`: the API's OpenAPI document, for handlers that need not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prefork_q.api.create import describe
from prefork_q.cli.apart import apart
from prefork_q.cli.handlers import load_handlers
from prefork_q.cli.options import config_options, load_config
from prefork_q.cli.output import print_json


@click.command("openapi")
@config_options(("target", "redis_url", "namespace", "token_file"))
def command(config: Path | None, **given: Any) -> None:
    """Print the OpenAPI document of the HTTP API, as `GET /openapi.json` gives it.

    TARGET names the handlers whose tasks are accepted. Nothing is started and no server is reached.
    """
    settings = load_config(config, given)
    if settings.target:
        print_json(apart(lambda: describe(settings, load_handlers(settings).handlers)))
    else:
        print_json(describe(settings, {}))
