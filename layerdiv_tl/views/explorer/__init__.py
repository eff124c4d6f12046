"""The explorer: one text, one linked view of it, as one offline page and as a widget in a notebook."""

from .explorer import Explorer as Explorer
from .explorer import explore as explore
from .selection import Selection as Selection
