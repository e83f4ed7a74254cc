"""Handlers for a test of the garbage collector: it runs all the time, and always has something to end.

The collector may run anywhere, also where a lock is held, and what it ends has destructors that may want
that lock: those of the client library's pipelines and subscriptions do.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import redis

from prefork_q import App

URL = "TEST_OF_PREFORK_Q_URL"
"""The variable with the URL of the server."""

app = App()
gc.set_threshold(5, 2, 2)
client: Any = None


@app.on_worker_start
def begin() -> None:
    """Make the client that the worker's threads share."""
    global client
    client = redis.Redis.from_url(os.environ[URL])


@app.task("litter")
def litter(n: int) -> list[Any]:
    """Use the client, and leave cycles of its objects that only the collector finds."""
    pipe, listener = client.pipeline(), client.pubsub()
    pipe.own, listener.own = [pipe], [listener]
    listener.subscribe("nothing")
    return list(pipe.echo(str(n)).echo("x").execute())


@app.task("quick")
def quick(n: int) -> int:
    """Do nothing."""
    return n
