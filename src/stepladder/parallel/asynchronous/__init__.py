"""Workers that train one model without waiting for each other at every step."""
