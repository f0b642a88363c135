"""Populations: many models trained at once, whose settings change while they train."""
