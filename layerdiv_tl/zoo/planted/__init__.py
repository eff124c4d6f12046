"""Models whose weights are written by hand, so that every measure is known in closed form."""
