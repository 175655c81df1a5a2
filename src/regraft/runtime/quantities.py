"""Counts, shares and durations as people read them: one style for pages, files and terminals."""


def counted(number: float, noun: str) -> str:
    """`1 seed`, `1,024 texts`, `0.5 seconds`."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 min 05 s`, `1 h 02 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def in_percent(share: float, *, digits: int = 1) -> str:
    """`82.0 %`."""
    return f"{100 * share:.{digits}f} %"


def in_points(difference: float) -> str:
    """A difference of shares in points, with its sign: `+1.2`, or with a true minus."""
    # Adding zero turns minus zero into zero.
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "\N{MINUS SIGN}")


def in_percent_with_ends(mean: float, low: float, high: float) -> str:
    """A share with its interval: `82.0 % (79.1 to 84.6)`."""
    return f"{in_percent(mean)} ({100 * low:.1f} to {100 * high:.1f})"
