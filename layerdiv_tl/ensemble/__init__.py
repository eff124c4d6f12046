"""Numbers -> numbers: numpy and scipy only, no model, no path, no figure. `theorems` maps equations to functions."""
