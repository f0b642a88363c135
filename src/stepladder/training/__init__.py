"""Step, clock, loop, stopping, checkpoints: one run from start to summary."""
