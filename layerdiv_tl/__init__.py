"""Decompose a language model's logits along its residual stream; measure the bias and diversity of the components.

The public names are loaded when they are first used, so that importing this package is instant.

.. include:: reference.md
"""

import lazy_loader

from . import _registry

__version__ = "0.1.0"

# What lower rooms use of higher ones: imported when first looked up.
_registry.PLACES.update(
    figure="layerdiv_tl.views.figures:figure",
    study_page="layerdiv_tl.views.study_page:study_page",
    depth_page="layerdiv_tl.views.depth_page:depth_page",
    zoo_names="layerdiv_tl.zoo:NAMES",
    zoo_source="layerdiv_tl.zoo:source",
)

# The public names stand in `__init__.pyi`, once, for Python and for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
