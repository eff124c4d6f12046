"""Take a language model apart along its residual stream; measure the bias and diversity of its parts.

The public names are loaded when they are first used, so that importing this package is instant.
"""

import lazy_loader

__version__ = "0.1.0"

# The names stand in `__init__.pyi`, once, for Python and for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
