"""Watch an unmodified training script, and report its faults."""
