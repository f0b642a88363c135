"""Checks of the model: its layers, its initial weights, its gradients."""
