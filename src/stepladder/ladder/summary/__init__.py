"""The end of a climb: timings before and after, the final training, the text."""
