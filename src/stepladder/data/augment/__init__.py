"""Random changes of training batches."""
