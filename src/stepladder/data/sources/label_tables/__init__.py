"""Read tables that name a picture and its label in each row: CSV, JSON, JSON lines."""
