"""The rooms of the package and what they import, as the picture in CONTRIBUTING.

    python -m tests.oracles.house

An arrow goes from a room to one that it imports, unless a longer way leads there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.test_rooms import MODULES, _imports, _room

PICTURE = Path(__file__).parents[2] / "assets/house.svg"
# The column and the contents of each.
ROOMS = {
    "cli": (1, "demo, explore, check, run, report"),
    "views": (1, "figures, pages, the explorer"),
    "teaching": (0, "exercises"),
    "studies": (2, "grids, the papers' tables"),
    "zoo": (0, "small trained models"),
    "depth": (1, "passes with patches"),
    "tasks": (0, "rows with labels"),
    "attribution": (1, "contributions, profiles"),
    "model": (1, "the frozen path, loading"),
    "ensemble": (2, "bias, diversity, intervals"),
    "results": (1.5, "frames, figures, files"),
}
WIDTH, HEIGHT, BOX, TALL = 760, 92, 206, 48
STYLE = """text{font:13px system-ui,sans-serif;fill:#1a1d24;text-anchor:middle}.name{font-weight:700}
.about{font-size:11px;fill:#5d6880}rect{fill:#f2f4f8;stroke:#8a93a6}path{fill:none;stroke:#8a93a6;stroke-width:1.3}
@media(prefers-color-scheme:dark){text{fill:#e6e9f0}.about{fill:#a4adc0}rect{fill:#1d212b;stroke:#717b91}}"""


def arrows() -> dict[str, set[str]]:
    """{room: rooms that it imports and that no room between them imports}."""
    imported: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module in MODULES:
        for other in _imports(module):
            room, needed = _room(module), _room(other)
            if room in ROOMS and needed in ROOMS and room != needed:
                imported[room].add(needed)

    def below(room: str) -> set[str]:
        return set().union(imported[room], *(below(other) for other in imported[room]))

    return {
        room: {other for other in others if not any(other in below(between) for between in others)}
        for room, others in imported.items()
    }


def places(edges: Mapping[str, set[str]]) -> dict[str, tuple[float, float]]:
    """The middle of each room's box, as many floors above the ground as its longest way down has."""

    def floor(room: str) -> int:
        return 1 + max((floor(other) for other in edges[room]), default=-1)

    floors = {room: floor(room) for room in ROOMS}
    top = max(floors.values())
    return {
        room: (WIDTH / 3 * (column + 0.5), (top - floors[room]) * HEIGHT + 30) for room, (column, _) in ROOMS.items()
    }


def draw() -> str:
    """The picture as SVG."""
    edges = arrows()
    at = places(edges)
    height = max(y for _, y in at.values()) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8" /></marker></defs>',
    ]
    for room, others in edges.items():
        x, y = at[room]
        for other in sorted(others):
            to, end = at[other]
            side = x + (to - x) * 0.12
            parts.append(
                f'<path marker-end="url(#end)" d="M{side:.0f} {y + TALL / 2:.0f}C{side:.0f} {y + HEIGHT * 0.7:.0f} '
                f'{to:.0f} {end - HEIGHT * 0.6:.0f} {to:.0f} {end - TALL / 2 - 1:.0f}"/>'
            )
    for room, (x, y) in at.items():
        parts.append(f'<rect x="{x - BOX / 2:.0f}" y="{y - TALL / 2:.0f}" width="{BOX}" height="{TALL}" rx="6"/>')
        parts.append(f'<text class="name" x="{x:.0f}" y="{y - 3:.0f}">{room}</text>')
        parts.append(f'<text class="about" x="{x:.0f}" y="{y + 14:.0f}">{ROOMS[room][1]}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
