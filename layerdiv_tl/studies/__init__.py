"""Many models on many rows: a grid of results in a folder, and the papers' tables from it."""
