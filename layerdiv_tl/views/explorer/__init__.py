"""The explorer: linked views of one text, as an offline page and as a notebook widget."""

from .explorer import Explorer as Explorer
from .explorer import explore as explore
from .selection import Selection as Selection
