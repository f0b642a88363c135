"""What a run shows and writes: display, events, sinks, results."""
