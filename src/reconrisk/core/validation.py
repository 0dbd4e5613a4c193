"""One vocabulary for the checks on arguments: ``Expected {name}={value} {condition}. {remedy}``.

Each check returns the value it accepted, so that it can stand inside an expression.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from reconrisk.core.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor


def invalid_input(name: str, value: object, condition: str, remedy: str = "") -> InvalidInput:
    """The error for an argument outside its domain.

    >>> raise invalid_input("clip_norm", -1.0, "> 0", "Pass the norm used in training.")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected clip_norm=-1.0 > 0. Pass the norm used in training.
    """
    return InvalidInput(f"Expected {name}={value!r} {condition}. {remedy}".rstrip())


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question with the known name that is nearest, after a space; empty where none is near.

    >>> did_you_mean("trails", ["trials", "seed"]), did_you_mean("x", ["trials"])
    (' Did you mean trials?', '')
    """
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def check_settings(
    name: str, known: Mapping[str, inspect.Parameter], given: Mapping[str, object], remedy: str = ""
) -> None:
    """Settings that what is called ``name`` takes, none missing that it needs."""
    variadic = [key for key, each in known.items() if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    takes_any = any(known[key].kind is inspect.Parameter.VAR_KEYWORD for key in variadic)
    known = {key: each for key, each in known.items() if key not in variadic}
    for key, value in given.items():
        if key not in known and not takes_any:
            takes = f"It takes {', '.join(known)}." if known else "It takes none."
            raise invalid_input(key, value, f"to be left out for {name}", f"{takes}{did_you_mean(key, known)}")
    missing = [key for key, parameter in known.items() if parameter.default is parameter.empty and key not in given]
    if missing:
        raise InvalidInput(f"Expected {' and '.join(missing)} for {name}. {remedy}".rstrip())


def check_real(name: str, value: Any, remedy: str = "") -> float:
    """A real number, not NaN; infinities pass."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid_input(name, value, "to be a number", remedy)
    if math.isnan(value):
        raise invalid_input(name, float(value), "to be a number, not NaN", remedy)
    return float(value)


def check_finite(name: str, value: Any, remedy: str = "") -> float:
    """A finite real number."""
    number = check_real(name, value, remedy)
    if math.isinf(number):
        raise invalid_input(name, number, "to be finite", remedy)
    return number


def check_positive(name: str, value: Any, remedy: str = "") -> float:
    """A finite number above zero."""
    number = check_finite(name, value, remedy)
    if number <= 0:
        raise invalid_input(name, number, "> 0", remedy)
    return number


def check_nonnegative(name: str, value: Any, remedy: str = "") -> float:
    """A finite number at or above zero."""
    number = check_finite(name, value, remedy)
    if number < 0:
        raise invalid_input(name, number, ">= 0", remedy)
    return number


def check_probability(name: str, value: Any, remedy: str = "") -> float:
    """A number in [0, 1]."""
    number = check_real(name, value, remedy)
    if not 0 <= number <= 1:
        raise invalid_input(name, number, "in [0, 1]", remedy)
    return number


def check_whole(name: str, value: Any, minimum: int = 1, remedy: str = "") -> int:
    """A whole number of at least ``minimum``; ``3.0`` is accepted, ``3.5``, ``True`` and ``10**400`` are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid_input(name, value, "to be a whole number", remedy)
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidInput(f"Expected {name} to be below 1e308. {remedy}".rstrip()) from error
    if not number.is_integer():
        raise invalid_input(name, value, "to be a whole number", remedy)
    whole = int(value) if isinstance(value, Integral) else int(number)  # floats lose digits beyond 2^53
    if whole < minimum:
        raise invalid_input(name, whole, f">= {minimum}", remedy)
    return whole


def check_callable(name: str, value: object, remedy: str = "") -> None:
    """Something that can be called: an attack, a distance."""
    if not callable(value):
        raise invalid_input(name, value, "to be callable", remedy)


def check_same_shape(name: str, value: Tensor, other_name: str, other: Tensor, remedy: str = "") -> None:
    """Two arrays of one shape."""
    if tuple(value.shape) != tuple(other.shape):
        raise invalid_input(
            f"{name}.shape", tuple(value.shape), f"to equal {other_name}.shape={tuple(other.shape)}", remedy
        )


def check_not_empty(name: str, value: Sequence[Any] | Tensor, remedy: str = "") -> None:
    """At least one element."""
    if len(value) == 0:
        raise InvalidInput(f"Expected {name} with at least one element, it is empty. {remedy}".rstrip())


def check_all_finite(name: str, value: Tensor, remedy: str = "") -> None:
    """A tensor without NaN and infinities; the message counts the offenders and names the first."""
    _check_none(name, value, ~value.isfinite(), "to be finite", remedy)


def check_all_numbers(name: str, value: Tensor, remedy: str = "") -> None:
    """A tensor without NaN; infinities pass."""
    _check_none(name, value, value.isnan(), "to be numbers", remedy)


def check_all_within(
    name: str, value: Tensor, data_range: tuple[float, float], remedy: str = "", *, slack: float = 0.0
) -> None:
    """A tensor within a range, at the precision of its values, up to ``slack`` beyond either end.

    Guarantee: the message counts what lies on which side and shows no value, since it may go into a log.
    """
    low, high = data_range[0] - slack, data_range[1] + slack  # tensors compare with numbers at their own precision
    sides = {"below": value < low, "above": value > high, "not a number": value.isnan()}
    counts = {side: int(where.sum()) for side, where in sides.items()}
    if any(counts.values()):
        found = " and ".join(f"{count} {side}" for side, count in counts.items() if count)
        problem = f"found {found} of {value.numel()} values"
        raise InvalidInput(f"Expected {name} within data_range={tuple(data_range)}, {problem}. {remedy}".rstrip())


def _check_none(name: str, value: Tensor, bad: Tensor, condition: str, remedy: str) -> None:
    count = int(bad.sum())
    if count:
        first = tuple(int(i) for i in bad.nonzero()[0])
        problem = f"{count} of {value.numel()} values are not, first at index {first}"
        raise InvalidInput(f"Expected {name} {condition}, {problem}. {remedy}".rstrip())
