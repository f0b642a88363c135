"""Where pictures come from: folders, CSV files, containers, Delta tables."""
