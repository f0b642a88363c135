"""Asynchronous training: a server that combines what its workers send."""
