"""Underfitting and overfitting: curves, levels, remedies, learning curves."""
