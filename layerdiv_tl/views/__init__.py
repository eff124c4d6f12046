"""Results -> pictures and pages."""
