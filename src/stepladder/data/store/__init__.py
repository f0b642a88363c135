"""The store: its Parquet layout, index, manifest and readers."""
