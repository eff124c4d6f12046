"""Models with handwritten weights, for which every measure is known in closed form."""
