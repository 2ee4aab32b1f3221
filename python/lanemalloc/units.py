"""Numbers as people read them."""

from __future__ import annotations

BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
COUNTS = ("", " k", " M", " G", " T")
BARS = " ▁▂▃▄▅▆▇█"
ASCII_BARS = " .:-=+*#@"


def three_digits(value: float) -> str:
    """At least three significant digits, and no more behind the point than these need."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def size(value: float) -> str:
    """Bytes: 1.50 GiB."""
    unit = 0
    value = float(value)
    while abs(value) >= 1023.5 and unit < len(BYTES) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} B" if unit == 0 else f"{three_digits(value)} {BYTES[unit]}"


def short_size(value: float) -> str:
    """For columns: 1.50G."""
    return size(value).replace("iB", "").replace(" ", "").rstrip("B") or "0"


def count(value: float) -> str:
    """12.3 M; below a thousand as it is."""
    unit = 0
    value = float(value)
    while abs(value) >= 999.5 and unit < len(COUNTS) - 1:
        value /= 1000
        unit += 1
    if unit == 0:
        return f"{value:.0f}" if value == int(value) or value >= 10 else f"{value:.1f}"
    return f"{three_digits(value)}{COUNTS[unit]}"


def short_count(value: float) -> str:
    """For columns: 12.3M."""
    return count(value).replace(" ", "")


def duration(seconds: float) -> str:
    """At most two units: 1.20 s, 3 min 5 s."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 1e-3:
        return f"{three_digits(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{three_digits(seconds * 1e3)} ms"
    if seconds < 60:
        return f"{three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def amount(value: int, unit: str) -> str:
    """A value of a profile, in the unit that pprof's format names."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    if unit == "bytes":
        return sign + size(value)
    return sign + (duration(value / 1e9) if unit == "nanoseconds" else f"{value:,}")


def threads(count: int, own: int) -> str:
    """Of a process, and how many of them are the library's own."""
    return f"{count} thread{'s'[: count != 1]}" + (f" ({own} the library's)" if own else "")


def percent(part: float, whole: float) -> str:
    """Of a whole that may be 0."""
    if whole <= 0:
        return "-"
    share = 100 * part / whole
    return (
        f"{share:.1f} %"
        if 0.05 <= share < 10
        else "< 0.1 %"
        if 0 < share < 0.05
        else f"{share:.0f} %"
    )


def bars(values: list[float], unicode: bool = True) -> str:
    """A row of bars, the highest full; what is not 0 shows."""
    marks = BARS if unicode else ASCII_BARS
    top = max(values, default=0)
    if top <= 0:
        return marks[0] * len(values)
    return "".join(
        marks[0 if v <= 0 else max(1, round(v / top * (len(marks) - 1)))] for v in values
    )
