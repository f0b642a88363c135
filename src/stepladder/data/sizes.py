"""Human-readable sizes."""

from __future__ import annotations

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_ROUNDED_UP = 0.9995  # from here on three digits round to the next unit


def say_size(num_bytes: int) -> str:
    """Format a size in a suitable unit: `824 bytes`, `1.5 kB`, `37 MB`, `8.24 GB`."""
    for size, unit in _UNITS:
        if num_bytes >= _ROUNDED_UP * size:
            value = num_bytes / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes} bytes"
