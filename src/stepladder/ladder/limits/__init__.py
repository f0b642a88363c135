"""What a climb may spend, and what becomes of a rung that fails."""
