"""Information-theoretic diversity (Theorems 4-8), estimated with its errors."""

from .bounds import Bounds
from .gains import GainCurve
from .measure import information
from .result import Information

__all__ = ["Bounds", "GainCurve", "Information", "information"]
