"""Detectors of faults in training steps, schedules and evaluations."""
