"""The end of a climb: both ends timed, the final training, the text."""
