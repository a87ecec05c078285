"""Format numbers for the text and the tables of a page."""

MISSING = "–"
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_score(value: float | None, percent: bool) -> str:
    """Return a score in percent with one decimal, or with four significant digits."""
    if value is None or value != value:
        return MISSING
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def format_error(value: float, percent: bool) -> str:
    """Return a standard error like a score, with a second decimal where the first would be zero."""
    return f"{100 * value:.2f}" if percent and value < 0.00095 else format_score(value, percent)


def format_difference(value: float, percent: bool) -> str:
    """Return a difference of scores with its sign."""
    if value != value:
        return MISSING
    return (f"{100 * value:+.1f}" if percent else f"{value:+.3g}").replace("-", "−")


def format_bytes(num_bytes: float | None) -> str:
    """Return a number of bytes with three significant digits and a unit."""
    if num_bytes is None:
        return MISSING
    value, unit = float(num_bytes), 0
    while value >= 999.5 and unit < len(BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return "0" if value == 0 else f"{value:.3g} {BYTE_UNITS[unit]}"


def format_duration(seconds: float | None) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 90 else f"{minutes / 60:.3g} h"
