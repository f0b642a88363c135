"""Access to remote data: object stores, requests and the file cache."""
