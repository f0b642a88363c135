"""Several processes that train together: who they are, how they start, and what they exchange."""
