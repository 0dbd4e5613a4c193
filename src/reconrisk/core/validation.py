"""Checks of arguments. All error messages have the form ``Expected {name}={value} {condition}. {remedy}``.

Checks of single numbers return the number; callers use them inside expressions.
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
    """Return the error for an argument outside its domain.

    Args:
        name: Name of the argument.
        value: Its value; the message contains its ``repr``.
        condition: Condition that it violates, such as ``"> 0"`` or ``"to be finite"``.
        remedy: What to do, as a sentence; empty if the condition says it.

    Returns:
        The error, to be raised by the caller.

    >>> raise invalid_input("clip_norm", -1.0, "> 0", "Pass the norm used in training.")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected clip_norm=-1.0 > 0. Pass the norm used in training.
    """
    return InvalidInput(f"Expected {name}={value!r} {condition}. {remedy}".rstrip())


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the question "Did you mean ...?" with the most similar name.

    Args:
        name: A misspelt name.
        known: The names that exist.

    Returns:
        The question after a space; empty if no name is similar.

    >>> did_you_mean("trails", ["trials", "seed"]), did_you_mean("x", ["trials"])
    (' Did you mean trials?', '')
    """
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def check_settings(
    name: str, known: Mapping[str, inspect.Parameter], given: Mapping[str, object], remedy: str = ""
) -> None:
    """Check settings against the parameters of the function that takes them.

    Args:
        name: Name of the function, for error messages.
        known: Parameters of the function by name.
        given: Values of the settings by name.
        remedy: What to do if a required setting is missing, as a sentence.

    Raises:
        InvalidInput: If a setting is not a parameter, or a parameter without default is missing.

    >>> check_settings("prune", inspect.signature(lambda share: None).parameters, {"shre": 0.9})
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected shre=0.9 to be left out for prune. It takes share. Did you mean share?
    """
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
    """Check that a value is a real number and not NaN; infinities are accepted.

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        remedy: What to do otherwise, as a sentence.

    Returns:
        The value as a float.

    Raises:
        InvalidInput: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):  # True is an int in Python
        raise invalid_input(name, value, "to be a number", remedy)
    if math.isnan(value):
        raise invalid_input(name, float(value), "to be a number, not NaN", remedy)
    return float(value)


def check_finite(name: str, value: Any, remedy: str = "") -> float:
    """Check that a value is a finite real number.

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        remedy: What to do otherwise, as a sentence.

    Returns:
        The value as a float.

    Raises:
        InvalidInput: If it is not.
    """
    number = check_real(name, value, remedy)
    if math.isinf(number):
        raise invalid_input(name, number, "to be finite", remedy)
    return number


def check_positive(name: str, value: Any, remedy: str = "") -> float:
    """Check that a value is a finite number above zero.

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        remedy: What to do otherwise, as a sentence.

    Returns:
        The value as a float.

    Raises:
        InvalidInput: If it is not.
    """
    number = check_finite(name, value, remedy)
    if number <= 0:
        raise invalid_input(name, number, "> 0", remedy)
    return number


def check_nonnegative(name: str, value: Any, remedy: str = "") -> float:
    """Check that a value is a finite number of at least zero.

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        remedy: What to do otherwise, as a sentence.

    Returns:
        The value as a float.

    Raises:
        InvalidInput: If it is not.
    """
    number = check_finite(name, value, remedy)
    if number < 0:
        raise invalid_input(name, number, ">= 0", remedy)
    return number


def check_probability(name: str, value: Any, remedy: str = "") -> float:
    """Check that a value is a number in [0, 1].

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        remedy: What to do otherwise, as a sentence.

    Returns:
        The value as a float.

    Raises:
        InvalidInput: If it is not.
    """
    number = check_real(name, value, remedy)
    if not 0 <= number <= 1:
        raise invalid_input(name, number, "in [0, 1]", remedy)
    return number


def check_whole(name: str, value: Any, minimum: int = 1, remedy: str = "") -> int:
    """Check that a value is a whole number of at least ``minimum``.

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        minimum: Smallest accepted number.
        remedy: What to do otherwise, as a sentence.

    Returns:
        The value as an int.

    Raises:
        InvalidInput: If it is not.

    Edge cases: ``3.0`` is accepted; ``3.5``, ``True`` and ``10**400`` are not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid_input(name, value, "to be a whole number", remedy)
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidInput(f"Expected {name} < 1e308. {remedy}".rstrip()) from error
    if not number.is_integer():
        raise invalid_input(name, value, "to be a whole number", remedy)
    whole = int(value) if isinstance(value, Integral) else int(number)  # through a float, digits beyond 2^53 are lost
    if whole < minimum:
        raise invalid_input(name, whole, f">= {minimum}", remedy)
    return whole


def check_callable(name: str, value: object, remedy: str = "") -> None:
    """Check that a value can be called.

    Args:
        name: Name of the argument, for error messages.
        value: The value.
        remedy: What to do otherwise, as a sentence.

    Raises:
        InvalidInput: If it cannot.
    """
    if not callable(value):
        raise invalid_input(name, value, "to be callable", remedy)


def check_same_shape(name: str, value: Tensor, other_name: str, other: Tensor, remedy: str = "") -> None:
    """Check that two tensors have the same shape.

    Args:
        name: Name of the first argument, for error messages.
        value: The first tensor.
        other_name: Name of the second argument.
        other: The second tensor.
        remedy: What to do otherwise, as a sentence.

    Raises:
        InvalidInput: If the shapes differ.
    """
    if tuple(value.shape) != tuple(other.shape):
        raise invalid_input(
            f"{name}.shape", tuple(value.shape), f"to equal {other_name}.shape={tuple(other.shape)}", remedy
        )


def check_not_empty(name: str, value: Sequence[Any] | Tensor, remedy: str = "") -> None:
    """Check that a sequence or tensor has at least one element.

    Args:
        name: Name of the argument, for error messages.
        value: The sequence or tensor.
        remedy: What to do otherwise, as a sentence.

    Raises:
        InvalidInput: If it is empty.
    """
    if len(value) == 0:
        raise InvalidInput(f"Expected {name} with at least one element, it is empty. {remedy}".rstrip())


def check_all_finite(name: str, value: Tensor, remedy: str = "") -> None:
    """Check that a tensor contains neither NaN nor infinities.

    Args:
        name: Name of the argument, for error messages.
        value: The tensor.
        remedy: What to do otherwise, as a sentence.

    Raises:
        InvalidInput: If it does; the message contains the number of such values and the index of the first.
    """
    _check_none(name, value, ~value.isfinite(), "to be finite", remedy)


def check_all_numbers(name: str, value: Tensor, remedy: str = "") -> None:
    """Check that a tensor contains no NaN; infinities are accepted.

    Args:
        name: Name of the argument, for error messages.
        value: The tensor.
        remedy: What to do otherwise, as a sentence.

    Raises:
        InvalidInput: If it does; the message contains the number of such values and the index of the first.
    """
    _check_none(name, value, value.isnan(), "to be numbers", remedy)


def check_all_within(
    name: str, value: Tensor, data_range: tuple[float, float], remedy: str = "", *, slack: float = 0.0
) -> None:
    """Check that the values of a tensor lie within a range, at the precision of the tensor.

    Args:
        name: Name of the argument, for error messages.
        value: The tensor.
        data_range: Smallest and largest accepted value.
        remedy: What to do otherwise, as a sentence.
        slack: Accepted excess beyond either end.

    Raises:
        InvalidInput: If a value lies outside, or is NaN.

    Guarantee: the message counts the values on each side and shows none of them, because it may be logged.
    """
    low, high = data_range[0] - slack, data_range[1] + slack  # torch rounds these to the precision of the tensor
    sides = {"below": value < low, "above": value > high, "not a number": value.isnan()}
    counts = {side: int(where.sum()) for side, where in sides.items()}
    if any(counts.values()):
        found = " and ".join(f"{count} {side}" for side, count in counts.items() if count)
        problem = f"found {found} of {value.numel()} values"
        raise InvalidInput(f"Expected {name} within data_range={tuple(data_range)}, {problem}. {remedy}".rstrip())


def _check_none(name: str, value: Tensor, bad: Tensor, condition: str, remedy: str) -> None:
    """Raise an error with the number of values marked by ``bad`` and the index of the first, if there are any."""
    count = int(bad.sum())
    if count:
        first = tuple(int(i) for i in bad.nonzero()[0])
        problem = f"{count} of {value.numel()} values are not, first at index {first}"
        raise InvalidInput(f"Expected {name} {condition}, {problem}. {remedy}".rstrip())
