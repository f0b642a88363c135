"""Checks of examples, labels and splits."""
