"""Rungs that improve accuracy."""
