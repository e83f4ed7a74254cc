"""The HTTP API: a WSGI application, and the process that serves it.

- `create_app` makes the application for any WSGI server.
- `run_api` is the api process of a node.
"""

from prefork_q.api.create import create_app
from prefork_q.api.process import run_api

__all__ = ["create_app", "run_api"]
