"""Sources of pictures: folders, CSV files, containers, Delta tables."""
