"""Checkpoints: their files, folders, state and mirror."""
