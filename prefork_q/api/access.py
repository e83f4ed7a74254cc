"""Who may do what: bearer tokens and their scopes, requests of other sites, and the audit log.

Without tokens whoever reaches the API may use it, so it listens on loopback addresses and Unix sockets
only. There the danger is a browser: a page of any site can make it send requests to a loopback address,
and a site whose name is made to point there (DNS rebinding) can read the answers too.
"""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from prefork_q.api.problems import Problem
from prefork_q.api.reading import SAFE_METHODS, Environ
from prefork_q.events import Events
from prefork_q.tokens import Scope, Tokens

BEARER: Final = re.compile(r"Bearer +([A-Za-z0-9._~+/-]+={0,2})", re.ASCII | re.IGNORECASE)
REALM: Final = 'Bearer realm="prefork-q"'
TELL: Final = 1.0
"""Seconds between two lines of the log about requests without a valid token, however many come."""
PATH_SHOWN: Final = 300


class Access:
    """Admits requests and notes what they changed. Used from any thread."""

    def __init__(self, tokens: Tokens | None, events: Events) -> None:
        self._tokens = tokens
        self._events = events
        self._lock = threading.Lock()
        self._refused = 0
        self._tell_at = 0.0

    def admit(self, environ: Environ, scope: Scope | None) -> str | None:
        """Return the name of the token that this request presents; None if none is needed.

        Raises:
            Problem: it presents none that is known, or one without the scope, or comes from another site.
        """
        refuse_other_origins(environ)
        if self._tokens is None:
            refuse_other_names(environ)
            return None
        if scope is None:
            return None
        given = environ.get("HTTP_AUTHORIZATION")
        if given is None:
            raise self._unknown(environ, REALM, "send a token: Authorization: Bearer TOKEN")
        match = BEARER.fullmatch(given.strip(" \t"))
        token = None if match is None else self._tokens.find(match[1])
        if token is None:
            detail = "the token is not known" if match else "the header is not Authorization: Bearer TOKEN"
            raise self._unknown(environ, f'{REALM}, error="invalid_token"', detail)
        if scope not in token.scopes:
            has = ", ".join(sorted(token.scopes))
            problem = Problem(
                403,
                f"this needs the scope {scope}; the token {token.name} has {has}",
                kind="missing-scope",
                headers=[("WWW-Authenticate", f'{REALM}, error="insufficient_scope", scope="{scope}"')],
            )
            self.note(environ, scope, token.name, problem.status, {})
            raise problem
        return token.name

    def note(
        self, environ: Environ, scope: Scope | None, token: str | None, status: int, fields: Mapping[str, Any]
    ) -> None:
        """Write the line of the audit log for a request that would change something.

        Without tokens submissions are left out: there is no name to note, and each task leaves its own line.
        """
        method = environ["REQUEST_METHOD"]
        if method in SAFE_METHODS or (self._tokens is None and scope == "submit"):
            return
        path = environ.get("PATH_INFO", "")[:PATH_SHOWN]
        self._events.emit("audited", token=token, method=method, path=path, status=status, **fields)

    def _unknown(self, environ: Environ, challenge: str, detail: str) -> Problem:
        with self._lock:
            self._refused += 1
            now, refused = time.monotonic(), self._refused
            is_told = now >= self._tell_at
            if is_told:
                self._refused, self._tell_at = 0, now + TELL
        if is_told:
            self._events.emit(
                "unauthorized",
                level="warning",
                requests=refused,
                method=environ["REQUEST_METHOD"],
                path=environ.get("PATH_INFO", "")[:PATH_SHOWN],
                client=environ.get("REMOTE_ADDR"),
            )
        return Problem(401, detail, headers=[("WWW-Authenticate", challenge)])


def refuse_other_origins(environ: Environ) -> None:
    """Refuse what a browser sends on behalf of a page of another site.

    Such a page can reach a loopback address, and can post JSON without asking. Browsers say where a
    request comes from; other clients say nothing.

    Raises:
        Problem: the request would change something and comes from another origin.
    """
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    is_own = site in ("same-origin", "none") if site else not origin or _is_host(origin, environ)
    if not is_own and environ["REQUEST_METHOD"] not in SAFE_METHODS:
        raise Problem(403, "pages of other sites may not change anything here", kind="cross-site")


def refuse_other_names(environ: Environ) -> None:
    """Refuse what comes to a loopback address under a name of the DNS, whoever has made that name point here.

    Addresses, `localhost` and names without a dot are no names that a site could have.

    Raises:
        Problem: Host is such a name.
    """
    if not _is_loopback(environ.get("REMOTE_ADDR", "")):
        return
    host = environ.get("HTTP_HOST", "").lower()
    name = host if host.endswith("]") else re.sub(r":\d*$", "", host)
    if "." not in name or name.endswith(".localhost") or _is_address(name.strip("[]")):
        return
    raise Problem(
        421,
        f"Host is {name[:100]!r}, and without tokens this API answers to localhost and to addresses only: "
        "configure tokens, or let a proxy use the Unix socket",
    )


def _is_host(origin: str, environ: Environ) -> bool:
    try:
        host = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return host != "" and host == environ.get("HTTP_HOST", "").lower()


def _is_loopback(text: str) -> bool:
    return _is_address(text) and ipaddress.ip_address(text.partition("%")[0]).is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
