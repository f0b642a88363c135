"""The climb in a report: its table, charts and trials."""
