"""Features of a frozen trunk, computed once and read by the head."""
