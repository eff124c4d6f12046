"""From numbers to numbers: numpy and scipy only; no model, path or figure. `theorems` maps equations to functions."""
