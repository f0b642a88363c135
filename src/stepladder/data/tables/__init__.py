"""Read existing Parquet and Delta tables as dictionaries of tensors."""
