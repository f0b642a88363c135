"""Tables of others as sources: columns of Parquet and Delta files to dictionaries of tensors."""
