"""Detectors of faults in losses, targets and metrics."""
