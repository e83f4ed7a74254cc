"""What a check found, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from prefork_q.cli.output import print_json, print_text, printable


class Finding(NamedTuple):
    """`state` is ok, warning or failed; `code` that of the error, for the exit code."""

    subject: str
    state: str
    detail: str
    code: str = ""


def tell(findings: Sequence[Finding], is_json: bool) -> None:
    """Print the findings."""
    if is_json:
        checks = [{"subject": f.subject, "state": f.state, "detail": f.detail} for f in findings]
        print_json({"ok": all(f.state != "failed" for f in findings), "checks": checks})
        return
    width = max([14, *(len(finding.subject) for finding in findings)])
    for finding in findings:
        head, _, below = finding.detail.partition("\n")
        click.echo(f"{finding.state:<8} {finding.subject:<{width}} {printable(head)}")
        print_text(below)
