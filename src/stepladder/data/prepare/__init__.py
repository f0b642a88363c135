"""Make a store: list, hash, split, decode, write."""
