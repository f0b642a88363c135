"""Measure what a model computes: FLOPs, single operations, memory, gradient noise."""
