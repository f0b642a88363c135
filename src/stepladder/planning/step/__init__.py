"""The time of a step on several devices."""
