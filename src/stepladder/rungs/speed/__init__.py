"""Rungs that make a training faster."""
