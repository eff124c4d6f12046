"""The explorer: linked views of one text, as an offline page and as a notebook widget."""

from .explorer import Explorer as Explorer
from .explorer import Selection as Selection
from .explorer import explore as explore
