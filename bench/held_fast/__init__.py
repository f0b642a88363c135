"""What holds between two checkouts of this project: the same results, files and findings."""
