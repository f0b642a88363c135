"""What reading costs: disk, link, decoding, validations."""
