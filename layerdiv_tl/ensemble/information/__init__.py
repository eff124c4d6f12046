"""Information-theoretic diversity (Theorems 4-8), estimated with its errors."""

from .information import Information, information

__all__ = ["Information", "information"]
