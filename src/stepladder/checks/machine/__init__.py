"""Checks of the machine, of checkpoints and of ranks."""
