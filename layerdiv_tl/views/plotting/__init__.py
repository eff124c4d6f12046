"""The toolkit of all figures: traces, hovers, axes, panels, buttons, and what stands around a figure, each once."""

# ruff: noqa: F401
from .axes import component_axis, named_columns, named_rows, tilted, token_axis
from .controls import buttons, changes
from .hover import between, hover_lines, whiskered
from .layout import arrange, cell, clipped, panels, short, wrapped
from .traces import (
    DOTTED,
    band,
    bar,
    by_module,
    dots,
    error_bars,
    heat_map,
    line,
    module_bars,
    module_strip,
    robust_limit,
    whiskers,
)
