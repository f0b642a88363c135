"""The same eyes on a script that knows nothing of us."""
