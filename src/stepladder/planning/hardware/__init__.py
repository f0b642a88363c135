"""Accelerators, connections and machines, by data sheet or measured."""
