"""Models of which each rank holds a part: sharded, tensor parallel, in a pipeline."""
