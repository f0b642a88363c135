"""Measurements shared by several checks: samples, features, gradients, short trainings."""
