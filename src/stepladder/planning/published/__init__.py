"""Published measurements, and what the planner says to them."""
