"""Speed-up of a recipe: two recipes timed in interleaved blocks."""
