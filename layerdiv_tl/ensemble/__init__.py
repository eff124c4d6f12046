"""Numbers -> numbers: numpy only, no model, no path, no figure."""
