"""Run prepare on Spark: executors call the same functions as the local engine."""
