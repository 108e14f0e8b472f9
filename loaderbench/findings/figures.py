"""Figures as sentences hold them."""

from __future__ import annotations

from typing import cast

from loaderbench.findings.row import Details

KNOWN_WELL = 0.05
"""A rate whose interval is narrower than ± this fraction is given without it."""


def duration(seconds: float) -> str:
    """Return `1.5 s` or `40 ms`."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def size(num_bytes: float) -> str:
    """Return `40 MB`, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def rate(bytes_per_s: float) -> str:
    """Return `250 MB/s`."""
    megabytes = bytes_per_s / 1e6
    return f"{megabytes:,.0f} MB/s" if megabytes >= 10 else f"{megabytes:.1f} MB/s"


def is_wide(value: float, low: float, high: float) -> bool:
    """Whether a rate must be shown with its interval."""
    return max(high - value, value - low) > KNOWN_WELL * value


def between(value: float, low: float, high: float) -> str:
    """Return ` (between 20 MB/s and 26 MB/s)`, or nothing for a rate that is known well."""
    return f" (between {rate(low)} and {rate(high)})" if is_wide(value, low, high) else ""


def number(details: Details, name: str) -> float:
    """Return a figure of a finding; 0 if it is unknown."""
    return float(cast(float, details.get(name) or 0.0))
