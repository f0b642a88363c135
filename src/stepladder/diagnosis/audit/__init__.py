"""What the numbers of a log support."""
