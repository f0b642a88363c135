"""Read batches from a source."""
