"""Detectors of faults in the examples, their order and their values."""
