"""Checks of validation: its examples, its metric, what it decides."""
