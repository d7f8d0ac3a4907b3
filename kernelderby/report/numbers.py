"""The form of times, ratios and shares, the same in every table. None becomes model.NOTHING.

Measured times carry noise of a percent, so three digits; floors are exact and go down to nanoseconds, so four.
"""

from __future__ import annotations

from collections.abc import Sequence


def microseconds(value: float) -> str:
    """A measured time in us: 2.29, 50.0, 14107."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def us_of_ns(nanoseconds: float) -> str:
    """The same for nanoseconds."""
    return microseconds(nanoseconds / 1e3)


def floor_us(value: float) -> str:
    """A floor in us, or a time beside one: 0.005121, 9.182, 1514. Four digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def milliseconds(nanoseconds: float, fine_below: float = 10.0) -> str:
    """A sum in ms: three decimals below `fine_below` ms, then one."""
    value = nanoseconds / 1e6
    return f"{value:.3f}" if value < fine_below else f"{value:.1f}"


def factor(value: float, digits: int = 2) -> str:
    """A ratio with `digits` decimals below 10, fewer above: 1.31, 12.3, 190."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.{digits}f}"


def percent(share: float) -> str:
    """34.0%, 0.7%, 0.03%, 0.004%: one decimal, and more for small values."""
    return f"{share:.1%}" if abs(share) >= 0.001 or share == 0 else f"{100 * share:.1g}%"


def short_percent(share: float) -> str:
    """75%, 6.5%, 0.1%: for a column of shares beside times."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def intensity(value: float) -> str:
    """flop per byte: 0.0625, 103, 15396."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def amount(value: float) -> str:
    """GFLOP and MB: three digits, or whole."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def few(names: Sequence[str], most: int = 3) -> str:
    """rms_norm, gemm_bf16, softmax and 4 more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
