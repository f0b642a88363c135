"""Hooks on modules, their weights and statistics."""
