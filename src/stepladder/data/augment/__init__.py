"""Random augmentation of training batches."""
