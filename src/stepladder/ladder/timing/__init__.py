"""How much faster: two recipes timed in interleaved blocks."""
