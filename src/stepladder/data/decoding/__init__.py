"""From the bytes of a picture to RGB pixels."""
