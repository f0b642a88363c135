"""Hooks on backward, optimizers, and what surrounds a step."""
