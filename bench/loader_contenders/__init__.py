"""Loaders that bench/loaders.py compares, each a module that runs in a process of its own."""
