"""Files that are not read, with the command that converts them."""
