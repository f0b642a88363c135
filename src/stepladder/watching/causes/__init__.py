"""What makes the steps of a script slow: pure functions of what was seen."""
