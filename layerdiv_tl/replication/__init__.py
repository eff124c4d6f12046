"""What the two papers claim, with intervals, nulls and verdicts."""
