"""Rungs that need other hardware."""
