"""Colors, fonts and number formats of all figures and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

# System fonts only, so that a page looks the same without a network.
FONT = "'Noto Sans', 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Theme:
    """Colors without a meaning, which differ between a light, a dark and an unknown background."""

    ink: str
    muted: str
    grid: str
    zero: str
    paper: str
    ground: str


LIGHT = Theme("#1f2430", "#667085", "#e6e8ee", "#4b5261", "#ffffff", "#f6f7f9")
DARK = Theme("#e8eaf0", "#a3abb9", "#343a46", "#c3c9d4", "#1b1f27", "#12151b")
# For notebooks, whose theme is unknown when a figure is made: gray has equal contrast to white and to the dark
# backgrounds of JupyterLab and VS Code.
BOTH = Theme("#767f8c", "#767f8c", "rgba(128, 136, 150, 0.22)", "#808896", CLEAR, CLEAR)

# The first option, what is right and positive numbers; the second option, what is wrong and negative numbers.
PAIR = ("#1d83cc", "#de8500")
# Labels, with a shape and a glyph each, because colors of more than two cannot be told apart by everybody.
LABELS = (*PAIR, "#009e73", "#cc79a7", "#8c6d1f", "#8a8f98")
SHAPES = ("circle", "diamond", "square", "triangle-up", "star", "x")
GLYPHS = "●◆■▲★✕"
# Whiskers, guides and whatever belongs to no module, visible on light and dark backgrounds.
NEUTRAL = "#8a8f98"
# {module: (color, shape, name)}; colors of Okabe and Ito, distinct for every common color vision.
_MODULES = {
    "embedding": (NEUTRAL, "diamond", "Embedding"),
    "attention": ("#7a5cc7", "circle", "Attention"),
    "mixer": ("#56b4e9", "circle", "Mixer"),
    "mlp": ("#009e73", "square", "MLP"),
    "group": ("#cc79a7", "star", "Group"),
    "ple": ("#e69f00", "diamond", "Per-layer input"),
    "laurel": ("#999933", "diamond", "Laurel"),
    "constant": ("#5b6170", "x", "Constant"),
    "rounding": ("#b0b5bd", "x", "Rounding"),
    "added": ("#8c6d1f", "x", "Added by hooks"),
    "member": ("#7a5cc7", "circle", "Member"),
    "layer": ("#2595a8", "circle", "Layer"),
}
MODULE = {module: color for module, (color, _, _) in _MODULES.items()}
MODULE_SHAPE = {module: shape for module, (_, shape, _) in _MODULES.items()}
MODULE_NAME = {module: name for module, (_, _, name) in _MODULES.items()}
TERM = {"bias": "#c2417c", "diversity": "#2595a8", "loss": "#767f8c", "accuracy": "#767f8c"}
# Plans, models and tasks: neither the colors of modules nor those of signs.
SERIES = ("#5d6b9e", "#c2417c", "#2595a8", "#b08a00", "#7f9c2f", "#8a6242", "#e58fb4", "#a77bb5")
# A prominent note.
BAD = "#de8500"
# Units that a number does not need: a share is a number from 0 to 1.
BARE = ("share", "cosine")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def faint(color: str, share: float = 0.22) -> str:
    """Make a color `#rrggbb` transparent, for bands.

    >>> faint("#0072b2")
    'rgba(0, 114, 178, 0.22)'
    """
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {share})"


# Color scales of maps: nothing is seen where a value is 0, on any background.
SIGNS = [(0.0, faint(PAIR[1], 1)), (0.5, faint(PAIR[1], 0)), (0.5, faint(PAIR[0], 0)), (1.0, faint(PAIR[0], 1))]
SIZES = [(0.0, faint(PAIR[0], 0)), (1.0, faint(PAIR[0], 1))]


def template(theme: Theme = LIGHT) -> go.layout.Template:
    """Make the plotly template of all figures, with everything that differs between light and dark.

    The background is transparent, so that a figure follows the page that it stands on.
    """
    small = {"size": 12, "color": theme.muted}
    axis = {
        "gridcolor": theme.grid,
        "linecolor": theme.grid,
        "zerolinecolor": theme.zero,
        "zerolinewidth": 1.5,
        "tickfont": {"size": 12, "color": theme.ink},
        "exponentformat": "power",  # "200µ logits²" would look like another unit
        "ticks": "",
        "automargin": True,
        "title": {"font": small, "standoff": 8},
    }
    title = {
        "font": {"size": 17, "color": theme.ink},
        "subtitle": {"font": small},
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yanchor": "top",
        "pad": {"l": 12, "t": 12},
    }
    tip = LIGHT if theme is BOTH else theme
    layout = {
        "font": {"family": FONT, "size": 12, "color": theme.ink},
        "title": title,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "xaxis": axis,
        "yaxis": axis,
        "colorway": SERIES,
        "annotationdefaults": {"font": {"size": 12, "color": theme.ink}, "arrowcolor": theme.ink, "showarrow": False},
        "shapedefaults": {"line": {"color": theme.ink}},
        "hoverlabel": {"bgcolor": tip.paper, "bordercolor": theme.zero, "font": {"color": tip.ink}},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
        # plotly 7 adds a button that uploads the chart to its makers' cloud; our figures send nothing.
        "modebar": {
            "remove": ["sendChartToCloud", "select2d", "lasso2d"],
            "bgcolor": CLEAR,
            "color": theme.zero,
            "activecolor": theme.ink,
        },
        "margin": {"l": 12, "r": 16, "t": 84, "b": 48},
    }
    return go.layout.Template(layout=layout)


def css_variables(scope: str = ":root") -> str:
    """Return all colors and the font as CSS variables, light or dark like the reader's system.

    Inside a notebook `scope` is a selector, and follows the notebook's theme.
    """
    light, dark = _variables(LIGHT), _variables(DARK)
    rules = [f"{scope} {{ color-scheme: light dark; --font: {FONT};{light} }}"]
    rules.append(f"@media (prefers-color-scheme: dark) {{ {scope} {{{dark} }} }}")
    if scope != ":root":
        rules.append(f"[data-jp-theme-light=true] {scope}, .vscode-light {scope} {{ color-scheme: light;{light} }}")
        rules.append(f"[data-jp-theme-light=false] {scope}, .vscode-dark {scope} {{ color-scheme: dark;{dark} }}")
    return "\n".join(rules) + "\n"


def _variables(theme: Theme) -> str:
    values = {"ink": theme.ink, "muted": theme.muted, "line": theme.grid, "paper": theme.paper}
    values |= {"zero": theme.zero, "ground": theme.ground, "bad": BAD, "high": PAIR[0], "low": PAIR[1]}
    return "".join(f" --{name}: {value};" for name, value in (values | MODULE).items())


def visible(text: Any, most: int = 24) -> str:
    """Write a name or token in one line, cut to a length; blanks at its ends and line breaks are visible.

    >>> visible(" a b\\n"), visible("=" * 80, most=4), visible("")
    ('␣a b⏎', '===…', '∅')
    """
    text = str(text).replace("\n", "⏎")
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    if left == len(text):
        return "␣" * left or "∅"
    text = "␣" * left + text.strip(" ") + "␣" * right
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(x: float, digits: int = 2) -> str:
    """Format a number with all digits before the point, else with at most `digits` significant ones.

    >>> number(0.0776), number(-98.44), number(1234.5), number(1.234, 3), number(-3e-6)
    ('0.078', '−98', '1,234', '1.23', '−3·10⁻⁶')
    """
    if abs(x) >= 10**digits - 0.5:
        text = f"{x:,.0f}"
    elif 0 < abs(x) < 1e-4:
        power = math.floor(math.log10(abs(x)))
        text = f"{x / 10.0**power:.{digits}g}·10" + str(power).translate(_SUPERSCRIPT)
    else:
        text = f"{x:.{digits}g}"
    return text.replace("-", "−")


def signed(x: float) -> str:
    """Format a number with its sign."""
    return f"+{number(x)}" if x >= 0 else number(x)


def estimate(value: float, low: float = math.nan, high: float = math.nan, *, unit: str = "") -> str:
    """Format a number with its unit and, if there is one, its interval.

    >>> estimate(0.0776, -0.00176, 0.157, unit="nats"), estimate(2.345), estimate(1, unit="bits")
    ('0.078 nats (−0.0018 to 0.16)', '2.3', '1 bit')
    """
    text = number(value)
    ends = "" if math.isnan(low + high) else f"({number(low)} to {number(high)})"
    unit = unit.removesuffix("s") if text.lstrip("−") == "1" else unit
    return " ".join(part for part in (text, "" if unit in BARE else unit, ends) if part)
