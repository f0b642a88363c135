"""Where a watched step's time goes."""
