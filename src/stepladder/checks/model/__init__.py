"""Checks of the model: its layers, its first weights, what reaches them."""
