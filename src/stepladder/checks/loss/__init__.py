"""Checks of the loss: its inputs and its values."""
