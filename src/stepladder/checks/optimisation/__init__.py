"""Checks of the step: gradients, updates, learning rate, seeds."""
