"""Other libraries' interfaces over ours, so that what was written for them runs."""
