"""From a source to batches."""
