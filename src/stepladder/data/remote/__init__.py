"""Bytes that lie elsewhere: object stores, the requests that fetch them, the cache of files."""
