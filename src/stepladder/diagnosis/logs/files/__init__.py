"""Readers of single files: CSV, JSON, notebooks, and arrays of other programs."""
