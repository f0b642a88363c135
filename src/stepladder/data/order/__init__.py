"""The order of the examples of an epoch as a pure function."""
