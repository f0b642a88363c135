"""Hooks on losses, their terms and targets."""
