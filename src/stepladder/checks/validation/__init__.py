"""Checks of validation: its examples, its metrics, and decisions based on it."""
