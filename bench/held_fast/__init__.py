"""Compare two checkouts of this project: results, files and findings must be the same."""
