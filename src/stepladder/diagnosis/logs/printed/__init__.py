"""Readers of what trainings print on a terminal."""
