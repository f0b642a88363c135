"""Optimisers, schedules, learning-rate rules."""
