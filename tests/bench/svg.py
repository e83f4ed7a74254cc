"""A bar chart as SVG: horizontal bars with names, values and the span from lowest to highest round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, NAMES, VALUES, BAR, GAP, TOP = 860, 230, 190, 18, 8, 52


@dataclass(frozen=True, slots=True)
class Bar:
    """`kind` is own, peer or limit: it chooses the colour."""

    name: str
    value: float
    low: float
    high: float
    kind: str
    label: str


COLOURS = {"own": "#2563eb", "peer": "#94a3b8", "limit": "#d97706"}


def bars(title: str, subtitle: str, rows: Sequence[Bar], *, is_logarithmic: bool) -> str:
    """Return the picture. A logarithmic axis starts at the power of ten below the smallest value."""
    room = WIDTH - NAMES - VALUES
    largest = max(row.high for row in rows)
    smallest = min(row.value for row in rows if row.value > 0)
    floor = 10.0 ** math.floor(math.log10(smallest) - 0.001) if is_logarithmic else 0.0

    def place(value: float) -> float:
        if not is_logarithmic:
            return room * value / largest
        if value <= floor:
            return 0.0
        return room * math.log10(value / floor) / math.log10(largest / floor)

    height = TOP + len(rows) * (BAR + GAP) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="16" font-weight="600" fill="#0f172a">{escape(title)}</text>',
        f'<text x="12" y="40" fill="#475569">{escape(subtitle)}</text>',
    ]
    if is_logarithmic:
        step = floor
        while step <= largest:
            x = NAMES + place(step)
            parts.append(
                f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 8}" stroke="#e2e8f0"/>'
            )
            step *= 10
    for number, row in enumerate(rows):
        y = TOP + number * (BAR + GAP)
        middle = y + BAR / 2
        low, high = NAMES + place(row.low), NAMES + place(row.high)
        parts += [
            f'<text x="{NAMES - 8}" y="{middle + 4}" text-anchor="end" fill="#0f172a">'
            f"{escape(row.name)}</text>",
            f'<rect x="{NAMES}" y="{y}" width="{max(1.0, place(row.value)):.1f}" height="{BAR}" rx="2" '
            f'fill="{COLOURS[row.kind]}"/>',
            f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="#0f172a"/>',
            f'<text x="{max(high, NAMES + place(row.value)) + 6:.1f}" y="{middle + 4}" fill="#334155">'
            f"{escape(row.label)}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])
