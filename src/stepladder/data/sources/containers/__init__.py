"""Pictures that lie many to a file: Parquet of several kinds, Delta tables, tars of WebDataset."""
