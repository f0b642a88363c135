"""Start the processes of a run: on this machine, on Spark, or on Ray."""
