"""Numbers for reading, rounded to the safe side."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never below ``value``: for success probabilities and needed noise.

    >>> rounded_up(11.72935, 6), rounded_up(0.1), rounded_up(1e-7 / 3), rounded_up(math.inf)
    ('11.7294', '0.1', '3.334e-08', 'inf')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never above ``value``: for errors and allowed settings.

    >>> rounded_down(0.42303378, 5), rounded_down(0.05)
    ('0.42303', '0.05')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(repr(value))  # the shortest decimal that reads back as this float: 0.1 stays 0.1
    return f"{float(Context(prec=digits, rounding=direction).plus(exact)):.{digits}g}"
