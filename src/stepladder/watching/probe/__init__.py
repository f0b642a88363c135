"""Steps replayed on a copy after the last step of the script."""
