"""The toolkit of all figures: traces, hovers, axes, panels, buttons, and what stands around a figure, each once."""

# ruff: noqa: F403
from .layout import *
from .parts import *
from .traces import *
