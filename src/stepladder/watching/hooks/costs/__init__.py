"""Hooks that find what takes the time of a step."""
