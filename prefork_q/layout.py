"""The version of the layout in Redis. DESIGN.md says how the layout may change."""

from __future__ import annotations

from typing import Final

LAYOUT: Final = "1"
"""What this version of prefork-q reads and writes."""


def wrong_layout(stored: str) -> str:
    """Return why a namespace with another layout is left alone."""
    return (
        f"what the namespace holds has layout {stored}, and this version of prefork-q knows {LAYOUT}: run a "
        "version that knows it, or give another --namespace"
    )
