"""Pictures to a store, a store to batches."""
