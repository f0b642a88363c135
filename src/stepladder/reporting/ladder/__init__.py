"""The sections of a climb in a report: table, charts and trials."""
