"""Models with handwritten weights, for which every measure is known in closed form."""

from .model import Built, build_planted, known_numbers, save_planted

__all__ = ["Built", "build_planted", "known_numbers", "save_planted"]
