"""Detectors of faults in models: their weights, axes and saved states."""
