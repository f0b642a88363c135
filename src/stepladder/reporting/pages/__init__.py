"""One HTML page, or one text, for each kind of result."""
