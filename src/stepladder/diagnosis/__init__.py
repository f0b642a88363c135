"""Diagnosis of runs and logs: fit, remedies, stages, machine use."""
