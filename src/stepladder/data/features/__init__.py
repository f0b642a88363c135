"""Feature files, and sources that read them."""
