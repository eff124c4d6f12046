"""Information-theoretic diversity (Theorems 4-8), estimated with its errors."""

from .bounds import Bounds
from .gain_curve import GainCurve
from .information import information
from .result import Information
from .variational import LowerBound

__all__ = ["Bounds", "GainCurve", "Information", "LowerBound", "information"]
