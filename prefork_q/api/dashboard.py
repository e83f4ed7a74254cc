"""The dashboard: one static page, in which a browser asks the other endpoints.

The page has no data in it, so it is open to all; what it shows and does needs the token that whoever looks
at it types in. Its parts are files of the package, put together once.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

from prefork_q.api.answers import Answer, Route
from prefork_q.api.reading import Environ

SCRIPTS: Final = ("calls.js", "elements.js", "actions.js", "views.js", "main.js")
"""In this order they are one module."""
HTML: Final = "text/html; charset=utf-8"


class Dashboard:
    """`GET /`."""

    def __init__(self) -> None:
        style = read("style.css")
        script = "".join(map(read, SCRIPTS))
        page = read("index.html").replace("<style></style>", f"<style>{style}</style>")
        page = page.replace('<script type="module"></script>', f'<script type="module">{script}</script>')
        self._answer = Answer(200, page.encode(), HTML, headers(style, script))

    def routes(self) -> list[Route]:
        return [Route("GET", "/", self.show, None, needs_redis=False)]

    def show(self, environ: Environ) -> Answer:
        return self._answer


def read(name: str) -> str:
    return files("prefork_q").joinpath("api", "web", name).read_text("utf-8")


def headers(style: str, script: str) -> tuple[tuple[str, str], ...]:
    """Return what a browser may do with the page: run this script and this style, and ask this API."""
    policy = {
        "default-src": "'none'",
        "script-src": hashed(script),
        "style-src": hashed(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        # Then text that is used as HTML is an error in the script, not a hole.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return (
        ("Content-Security-Policy", "; ".join(f"{name} {value}" for name, value in policy.items())),
        ("Referrer-Policy", "no-referrer"),
        ("X-Frame-Options", "DENY"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )


def hashed(text: str) -> str:
    """Return how a policy names a script or style of this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
