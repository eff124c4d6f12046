"""Colors, fonts and number formats of all figures and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

# System fonts only, so that a page looks the same without a network.
FONT = "'Noto Sans', 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"
Stops = list[tuple[float, str]]


@dataclass(frozen=True)
class Theme:
    """Colors without meaning of their own, which differ between the light, the dark and the neutral theme.

    `sequential` has the paper's color at zero; `diverging` is centered: purple below zero, gold above.
    """

    ink: str
    muted: str
    grid: str
    zero: str
    paper: str
    ground: str
    sequential: Stops
    diverging: Stops


def _stops(*colors: str) -> Stops:
    return list(zip(np.linspace(0, 1, len(colors)).tolist(), colors, strict=True))


LIGHT = Theme(
    *("#1f2430", "#667085", "#e6e8ee", "#9aa1ad", "#ffffff", "#f6f7f9"),
    sequential=_stops("#ffffff", "#cfe2ef", "#7db3d5", "#2f7fb3", "#003f66"),
    diverging=_stops("#5b2d91", "#ab93cd", "#ffffff", "#e2bd5a", "#a87400"),
)
DARK = Theme(
    *("#e8eaf0", "#a3abb9", "#343a46", "#667085", "#1b1f27", "#12151b"),
    sequential=_stops("#1b1f27", "#1d4663", "#2f7fb3", "#7db3d5", "#e3f1fa"),
    diverging=_stops("#cdb7ea", "#8f68c2", "#1b1f27", "#c79a2c", "#f2d583"),
)
CLEAR = "rgba(0,0,0,0)"
_PURPLE, _GOLD = "rgba(122, 79, 181, {})", "rgba(192, 138, 0, {})"
# Readable on any background, for notebooks, whose theme is unknown when a figure is made. Gray has equal contrast to
# white and to the dark backgrounds of JupyterLab and VS Code.
BOTH = Theme(
    *("#767f8c", "#767f8c", "rgba(128, 136, 150, 0.25)", "rgba(128, 136, 150, 0.8)", CLEAR, CLEAR),
    sequential=_stops("rgba(31, 111, 168, 0)", "rgba(31, 111, 168, 1)"),
    diverging=[(0, _PURPLE.format(1)), (0.4999, _PURPLE.format(0)), (0.5001, _GOLD.format(0)), (1, _GOLD.format(1))],
)
# Okabe and Ito's colors: distinct for every common color vision, in print too. A color has one meaning: these are
# modules, purple and gold are signs, terms, models and tasks have others. {module: (color, name)}.
_MODULES = {
    "embedding": ("#009e73", "Embedding"),
    "attention": ("#0072b2", "Attention"),
    "mixer": ("#56b4e9", "Mixer"),
    "mlp": ("#d55e00", "MLP"),
    "group": ("#7a5cc7", "Group"),
    "ple": ("#e69f00", "Per-layer input"),
    "laurel": ("#999933", "Laurel"),
    "constant": ("#8a8f98", "Constant"),
    "rounding": ("#b0b5bd", "Rounding"),
    "added": ("#cc79a7", "Added by hooks"),
    "member": ("#0072b2", "Member"),
    "layer": ("#7a5cc7", "Whole layer"),
}
MODULE = {module: color for module, (color, _) in _MODULES.items()}
MODULE_NAME = {module: name for module, (_, name) in _MODULES.items()}
# Terms along depth; centered terms have a lighter shade.
TERM = {
    "accuracy": "#5d6b9e",
    "mse": "#8a6242",
    "bias": "#c2417c",
    "bias_centered": "#e58fb4",
    "diversity": "#2595a8",
    "diversity_centered": "#7cc9d6",
    "cross_entropy": "#7f9c2f",
    "entropy": "#b08a00",
}
_TERM_NAMES = {
    "mse": "MSE",
    "cross_entropy": "cross-entropy",
    "diversity_logit": "|L|² × diversity",
    "contribution": "|mean contribution|",
    "net_linear": "part of the cross-entropy",
}
# For tasks and models: neither modules' colors nor those of signs.
SERIES = ("#5d6b9e", "#c2417c", "#2595a8", "#b08a00", "#7f9c2f", "#8a6242", "#e58fb4", "#a77bb5")
# Marks for confirmed, and for refuted or prominent notes.
GOOD, BAD = "#009e73", "#d55e00"
# Elements without meaning of their own (whiskers, guides), visible on light and dark backgrounds.
NEUTRAL = "#8a8f98"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Units that a number does not need: a share is a number from 0 to 1.
BARE = ("share", "cosine")
# Below this p, results are drawn as significant: a full bar, a line at a change point.
SIGNIFICANT = 0.05


def template(theme: Theme = LIGHT) -> go.layout.Template:
    """Make the plotly template of all figures.

    It holds the colors that differ between light and dark (text, grids, lines, color scales), so that a page can switch
    it. In a notebook, whose theme is unknown, figures use the template for `BOTH`. Heat maps set `autocolorscale=True`,
    with zmin = −zmax for diverging scales.
    """
    small, tip = {"size": 12, "color": theme.muted}, LIGHT if theme is BOTH else theme
    # "200µ logits²" would look like another unit.
    numbers = {"tickfont": small, "exponentformat": "power"}
    lines = {"gridcolor": theme.grid, "linecolor": theme.grid, "tickcolor": theme.grid, "zerolinecolor": theme.zero}
    axis_title = {"font": {"size": 13, "color": theme.muted}, "standoff": 10}
    axis = numbers | lines | {"zerolinewidth": 1, "ticks": "outside", "automargin": True, "title": axis_title}
    subtitle = {"font": {"size": 13, "color": theme.muted}}
    # A fixed distance from the upper edge of a figure of any height.
    title = {"font": {"size": 17, "color": theme.ink}, "x": 0, "xref": "container", "xanchor": "left", "y": 1}
    signs, tips = {"diverging": theme.diverging}, {"bgcolor": tip.paper, "bordercolor": theme.zero}
    # plotly 7 adds a button that uploads the chart to its makers' cloud; our figures send nothing.
    bar = {"remove": ["sendChartToCloud", "select2d", "lasso2d"], "bgcolor": CLEAR, "color": theme.zero}
    layout = {
        "font": {"family": FONT, "size": 13, "color": theme.ink},
        "title": title | {"yanchor": "top", "pad": {"l": 16, "t": 16}, "subtitle": subtitle},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "xaxis": axis,
        "yaxis": axis,
        "colorscale": signs | {"sequential": theme.sequential, "sequentialminus": theme.sequential[::-1]},
        "colorway": SERIES,
        "annotationdefaults": {"font": {"size": 12, "color": theme.ink}, "arrowcolor": theme.muted},
        "shapedefaults": {"line": {"color": theme.ink}},
        "hoverlabel": tips | {"font": {"family": FONT, "size": 13, "color": tip.ink}},
        # Above the panel, where it covers no axis title; `layout.finish` puts it below.
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
        "modebar": bar | {"activecolor": theme.ink},
        "margin": {"l": 70, "r": 24, "t": 96, "b": 56},
    }
    return go.layout.Template(
        data={"heatmap": [go.Heatmap(colorbar=numbers | {"title": {"font": small}})]}, layout=layout
    )


def css_variables(scope: str = ":root", scales: bool = False) -> str:
    """Return the colors and font as CSS variables, light or dark like the reader's system.

    Args:
        scope: A selector; inside a notebook it follows the notebook's theme.
        scales: Include the colors of modules and the stops of the color scales (`--seq-0` … `--div-4`).
    """
    light, dark = (_variables(theme, scales) for theme in (LIGHT, DARK))
    rules = [f"{scope} {{ color-scheme: light dark; --font: {FONT}; }}", f"{scope} {{{light} }}"]
    rules.append(f"@media (prefers-color-scheme: dark) {{ {scope} {{{dark} }} }}")
    if scope != ":root":
        rules.append(f"[data-jp-theme-light=true] {scope}, .vscode-light {scope} {{ color-scheme: light;{light} }}")
        rules.append(f"[data-jp-theme-light=false] {scope}, .vscode-dark {scope} {{ color-scheme: dark;{dark} }}")
    return "\n".join(rules) + "\n"


def _variables(theme: Theme, scales: bool) -> str:
    values = {"ink": theme.ink, "muted": theme.muted, "line": theme.grid, "paper": theme.paper}
    values |= {"zero": theme.zero, "ground": theme.ground, "good": GOOD, "bad": BAD}
    if scales:
        values |= MODULE
        for name, stops in (("seq", theme.sequential), ("div", theme.diverging)):
            values |= {f"{name}-{number}": color for number, (_, color) in enumerate(stops)}
    return "".join(f" --{name}: {value};" for name, value in values.items())


def term_name(column: str) -> str:
    """Name the column of a term or measure for a reader.

    >>> term_name("diversity_logit_centered"), term_name("block_influence"), term_name("mse")
    ('|L|² × diversity, centered', 'block influence', 'MSE')
    """
    name = column.removesuffix("_centered")
    return _TERM_NAMES.get(name, name.replace("_", " ")) + ", centered" * (name != column)


def count(n: int, noun: str) -> str:
    """Format a number with its noun: "1 model", "2 models"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def number(x: float, digits: int = 2) -> str:
    """Format a number with at least its integer digits, at most `digits` significant ones otherwise.

    Only numbers that must add up in a title have more than two.

    >>> number(0.0776), number(-98.44), number(1234.5), number(1.234, 3), number(-3e-6)
    ('0.078', '−98', '1,234', '1.23', '−3·10⁻⁶')
    """
    if abs(x) >= 10**digits - 0.5:
        shown = f"{x:,.0f}"
    elif 0 < abs(x) < 1e-4:
        power = math.floor(math.log10(abs(x)))
        shown = f"{x / 10.0**power:.{digits}g}·10" + superscript(power)
    else:
        shown = f"{x:.{digits}g}"
    return shown.replace("-", "−")


def signed(x: float) -> str:
    """Format a number with its sign."""
    return "+" * bool(x >= 0) + number(x)


def percent(share: float) -> str:
    """Format a share in percent.

    Only 1 is 100 %.

    >>> percent(0.9844), percent(0.0312), percent(0.9961)
    ('98 %', '3.1 %', '99.6 %')
    """
    rounded = number(100 * share)
    return f"{min(round(100 * share, 1), 99.9) if rounded == '100' and share < 1 else rounded} %"


def p_value(p: float) -> str:
    """Format a p-value.

    >>> p_value(0.444), p_value(0.000999)
    ('p = 0.44', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {number(p)}"


def superscript(power: int) -> str:
    """Write an exponent."""
    return str(power).translate(_SUPERSCRIPT)


def interval(low: float, high: float, form: str = "", none: str = "(no interval)", *, of: float = math.nan) -> str:
    """Format an interval in brackets, of the number `of`; `none` if there is no interval.

    >>> interval(0.1, 0.25), interval(float("nan"), float("nan")), interval(-0.408, 1.64, of=0.0633)
    ('(0.10 to 0.25)', '(no interval)', '(−0.41 to 1.64)')
    >>> interval(0.0035, 0.19, of=0.1)
    '(0.004 to 0.190)'
    """
    if math.isnan(low) or math.isnan(high):
        return none
    ends = [f"{end:{form}}".replace("-", "−") if form else _fixed(end, _decimals(low, high, of)) for end in (low, high)]
    return f"({' to '.join(ends)})"


def _fixed(x: float, decimals: int) -> str:
    return number(x) if decimals > 5 else f"{x:,.{decimals}f}".replace("-", "−")


def _decimals(low: float, high: float, value: float = math.nan) -> int:
    """Return the decimals that show two digits of the larger end, and one of the width and, if possible, the value."""

    def first(x: float) -> int:
        return -math.floor(math.log10(abs(x))) if x and math.isfinite(x) else 0

    two, nearest = first(max(abs(low), abs(high))) + 1, min(abs(low), abs(high))
    decimals = max(0, two, first(high - low), min(first(value), two + 1))
    if low * high > 0 and not round(nearest, decimals) and first(nearest) <= decimals + 2:
        return first(nearest)  # an interval that excludes 0 does not seem to begin there
    return decimals


def estimate(value: float, low: float = math.nan, high: float = math.nan, *, unit: str = "", gap: str = " ") -> str:
    """Format a number with its unit and, if there is one, its 95 % interval, with as many decimals as the interval.

    >>> estimate(0.0776, -0.00176, 0.157, unit="nats"), estimate(2.345), estimate(1, unit="bits")
    ('0.08 nats (−0.00 to 0.16)', '2.3', '1 bit')
    """
    ends = interval(low, high, none="", of=value)
    shown = _fixed(value, _decimals(low, high, value)) if ends else number(value)
    unit = unit.removesuffix("s") if shown.lstrip("−") == "1" else unit
    return shown + f" {unit}" * bool(unit and unit not in BARE) + f"{gap}{ends}" * bool(ends)


def faint(color: str, share: float = 0.22) -> str:
    """Make a color `#rrggbb` transparent, for bands and backgrounds in the light and the dark theme.

    >>> faint("#0072b2")
    'rgba(0, 114, 178, 0.22)'
    """
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {share})"
