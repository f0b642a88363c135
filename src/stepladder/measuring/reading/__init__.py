"""Measure reading: disk, network link, decoding, validations."""
