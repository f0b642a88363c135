"""Underfit or overfit: curves, levels, remedies, learning curves."""
