"""Information-theoretic diversity (Theorems 4-8), estimated with its errors."""

from .gain_curve import GainCurve
from .information import information
from .result import Bounds, Information

__all__ = ["Bounds", "GainCurve", "Information", "information"]
