"""Position to example: the order of an epoch as a pure function."""
