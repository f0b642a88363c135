"""The script that is watched, from its first line to its report."""
