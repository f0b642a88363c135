"""A run folder as tables, charts and one HTML file."""
