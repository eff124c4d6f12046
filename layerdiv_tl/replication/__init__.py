"""Claims of the two papers, with intervals, nulls and verdicts."""
