"""Rungs that make training faster."""
