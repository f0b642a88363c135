"""Checks of a job before training. Each check must fire on its own broken example."""
