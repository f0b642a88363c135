"""Which split a picture belongs to: names of splits, and lists of their pictures."""
