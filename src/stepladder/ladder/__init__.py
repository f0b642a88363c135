"""Climbs: predict and try rungs, and keep those that pay off."""
