"""The explorer: one text, one linked view of it, as one offline page and as a widget in a notebook."""

from .explorer import Explorer, explore
from .selection import Selection

__all__ = ["Explorer", "Selection", "explore"]
