"""Limits of a climb: its budget, and rungs that cannot be tried or fail."""
