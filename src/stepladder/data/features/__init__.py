"""Features on disk, and sources that read them."""
