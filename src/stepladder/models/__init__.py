"""Trunks, heads and classifiers."""
