"""Spark as an engine: the same functions as in threads of one process, called by executors."""
