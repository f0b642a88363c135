"""Unmodified scripts: speed-ups that are applied from outside, tried, and written as a diff."""
