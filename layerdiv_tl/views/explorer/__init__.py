"""The explorer: one text, one linked view of it, as one offline page and as a widget in a notebook."""

from .explorer import Explorer as Explorer
from .explorer import Selection as Selection
from .explorer import explore as explore
