"""Studies of models × tasks, and of models along depth and training."""
