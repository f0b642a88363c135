"""What was seen, as plain data: written by the watchers, read by the detectors."""
