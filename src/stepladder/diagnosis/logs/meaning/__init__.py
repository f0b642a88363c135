"""What the columns, cells and rows of a log mean, whatever wrote it."""
