"""Hooks on torch that record what a script does."""
