"""Checks of the loss: what goes in, what comes out."""
