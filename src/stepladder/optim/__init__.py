"""Optimizers, schedules, learning-rate rules."""
