"""Hooks on loaders, datasets and the inputs of models."""
