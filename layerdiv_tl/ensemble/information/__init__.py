"""Information-theoretic diversity (Theorems 4-8), estimated with its errors."""

from .bounds import Bounds
from .fit import GaussianFit
from .gains import GainCurve
from .lower_bound import LowerBound
from .measure import information
from .result import Information

__all__ = ["Bounds", "GainCurve", "GaussianFit", "Information", "LowerBound", "information"]
