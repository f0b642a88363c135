"""The store: its Parquet layout, side index, manifest, and its files opened for reading."""
