"""Where labels are: in names, in tables beside the pictures, in annotations of tools."""
