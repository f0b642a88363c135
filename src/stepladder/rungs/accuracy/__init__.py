"""Rungs that make a model better."""
