"""Times as the product writes them: UTC and ISO for machines, words for people."""

from datetime import datetime, timezone


def now() -> str:
    """The current time, UTC, ISO, to the second: `2026-11-30T02:10:11Z`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def spoken(seconds: float) -> str:
    """A duration for people: `0.4 s`, `34 s`, `2 min 14 s`, `1 h 3 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def sized(size_bytes: float) -> str:
    """A size for people, in powers of 1000 as vendors write them: `4.33 GB`."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    for unit, value in (("kB", size_bytes / 1e3), ("MB", size_bytes / 1e6)):
        # What would be written 1000.0 belongs to the next unit.
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{size_bytes / 1e9:.2f} GB"
