"""Blocks of a recipe's work, timed."""
