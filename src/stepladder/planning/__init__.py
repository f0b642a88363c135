"""Predict a training on hardware that is not here: its time, its price, and what limits it."""
