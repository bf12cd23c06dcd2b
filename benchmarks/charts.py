"""Charts of measurements as self-contained SVG: bars to compare, points with fitted lines."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

WIDTH, LEFT, RIGHT, TOP = 820, 250, 90, 48
ROW, BAR = 24, 16
PLOT: Final = 300
STYLE: Final = """
.b { --paper: #fff; --ink: #1d2733; --faint: #5d6b7a; --line: #d4dae1; --ours: #2f6fb7; --theirs: #a9b4c0;
  font: 12px ui-monospace, Menlo, Consolas, monospace; }
@media (prefers-color-scheme: dark) { .b { --paper: #14181d; --ink: #e8ebef; --faint: #9aa7b4; --line: #37414c;
  --ours: #6aa5e8; --theirs: #55606c; } }
.b .paper { fill: var(--paper); } .b text { fill: var(--ink); } .b .faint { fill: var(--faint); }
.b .title { font-weight: bold; font-size: 14px; } .b .ours { fill: var(--ours); } .b .theirs { fill: var(--theirs); }
.b .grid { stroke: var(--line); } .b .fit { stroke: var(--faint); fill: none; stroke-dasharray: 4 4; }
"""
Points = Sequence[tuple[float, float]]


def bars(title: str, groups: Mapping[str, Mapping[str, float]], ours: Sequence[str]) -> str:
    """A bar for each name in each group, in seconds; the bars of `ours` have another colour."""
    most = max((value for group in groups.values() for value in group.values()), default=1.0)
    room, y, drawn = WIDTH - LEFT - RIGHT, TOP, []
    for group, values in groups.items():
        drawn.append(f'<text class="faint" x="12" y="{y + 14}">{escape(group)}</text>')
        y += ROW
        for name, value in values.items():
            kind, long = ("ours" if name in ours else "theirs"), max(1.0, value / most * room)
            drawn += [
                f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(_short(name))}</text>',
                f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR}" rx="2"/>',
                f'<text x="{LEFT + long + 8:.1f}" y="{y + 13}">{value:.1f} s</text>',
            ]
            y += ROW
        y += ROW // 2
    return _document(title, drawn, y)


def lines(title: str, across: str, up: str, series: Mapping[str, tuple[Points, Points]]) -> str:
    """Measured points and, for each series, the model's dashed line."""
    every = [point for both in series.values() for points in both for point in points]
    right, top = max(x for x, _ in every) or 1, max(y for _, y in every) or 1
    room = WIDTH - LEFT - RIGHT

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return LEFT / 2 + point[0] / right * room, TOP + PLOT - point[1] / top * PLOT

    drawn = []
    for part in (0.25, 0.5, 0.75, 1.0):
        (x, _), (_, y) = place((right * part, 0)), place((0, top * part))
        drawn += [
            f'<line class="grid" x1="{LEFT / 2}" y1="{y:.1f}" x2="{LEFT / 2 + room}" y2="{y:.1f}"/>',
            f'<text class="faint" x="{LEFT / 2 - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(top * part)}</text>',
            f'<text class="faint" x="{x:.1f}" y="{TOP + PLOT + 18}" text-anchor="middle">{_number(right * part)}</text>',
        ]
    for name, (measured, fitted) in series.items():
        for before, after in pairwise(sorted(fitted)):
            (x1, y1), (x2, y2) = place(before), place(after)
            drawn.append(f'<line class="fit" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
        for point in measured:
            x, y = place(point)
            drawn.append(f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        x, y = place(max(fitted or measured))
        drawn.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    drawn.append(f'<text class="faint" x="{LEFT / 2}" y="{TOP + PLOT + 38}">{escape(across)}</text>')
    drawn.append(f'<text class="faint" x="12" y="{TOP - 10}">{escape(up)}</text>')
    return _document(title, drawn, TOP + PLOT + 50)


def _document(title: str, drawn: Sequence[str], height: float) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="b" viewBox="0 0 {WIDTH} {height:g}" role="img">'
    body = [
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
    ]
    return "\n".join(
        [head, *body, f'<text class="title" x="12" y="24">{escape(title)}</text>', *drawn, "</svg>", ""]
    )


def _short(name: str) -> str:
    return name.split(" (", maxsplit=1)[0]


def _number(value: float) -> str:
    for size, mark in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {mark}"
    return f"{value:.3g}"
