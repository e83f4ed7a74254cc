"""Kinds of problems: each status has one of its own."""

from __future__ import annotations

from http import HTTPStatus

from prefork_q.api.problems import DEFAULT_KIND, KINDS, STATUS, Problem


def test_every_status_that_is_used_has_a_kind() -> None:
    assert set(STATUS.values()) <= set(DEFAULT_KIND)
    for kind in KINDS.values():
        assert Problem(kind.status, "as told").status_line.startswith(f"{HTTPStatus(kind.status).value} ")


def test_the_first_of_a_status_is_its_default() -> None:
    assert Problem(422, "x").kind == "invalid"
    assert Problem(400, "x").kind == "malformed-request"
    assert Problem(403, "x", kind="cross-site").kind == "cross-site"
