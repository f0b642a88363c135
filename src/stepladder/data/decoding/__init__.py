"""Decode pictures to RGB pixels."""
