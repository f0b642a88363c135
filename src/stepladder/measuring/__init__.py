"""Measure where a step's time goes, what a machine can do, and how training goes."""
