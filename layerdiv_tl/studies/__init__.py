"""Models × tasks."""
