"""Values that noise added in floating point cannot produce: the trace that such noise leaves in a release.

:func:`can_be_sum` decides for ``y = fl(g + n)``, :func:`has_preimage` for any chain of monotone operations on n, and
:func:`count_infeasible` counts over a whole release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from reconrisk.core.validation import invalid_input

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""Precisions in which noise can be added, by name."""

_WORDS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}
_WORDS[torch.bfloat16] = torch.int16  # integers of the same width, whose order is that of positive floats


def check_precision(name: str, value: object) -> torch.dtype:
    """Return the precision of this name.

    Args:
        name: Name of the argument, for the error message.
        value: Name of a precision.

    Returns:
        The torch type.

    Raises:
        InvalidInput: If the name is unknown.
    """
    if not isinstance(value, str) or value not in PRECISIONS:
        raise invalid_input(name, value, f"to be one of {', '.join(PRECISIONS)}")
    return PRECISIONS[value]


def can_be_sum(noiseless: Tensor, released: Tensor) -> Tensor:
    r"""Decide for each coordinate whether some float n satisfies fl(g + n) = y, in the precision of the tensors.

    Only the two floats around y - g are tried. If a float :math:`n \le y - g` gives y, so does the largest such float
    m: rounding is monotone, so :math:`y = fl(g + n) \le fl(g + m) \le fl(y) = y`. The same holds on the other side. The
    rounded difference is one of the two, and its neighbours include the other.

    Args:
        noiseless: Values g before the noise.
        released: Values y after the noise, of the same precision; shapes are broadcast.

    Returns:
        True where such a float exists.

    Assumes: sums are rounded to nearest, as IEEE 754 hardware does, and small values are not flushed to zero.
    Guarantee: exact, also for subnormal values and where differences overflow.
    Edge cases: False where a value is not finite.

    >>> y, g = torch.tensor([1.0, 1e-8]), torch.tensor([0.25, 0.3])
    >>> can_be_sum(g, y)
    tensor([ True, False])
    """
    middle = released - noiseless
    far = torch.full_like(middle, torch.inf)
    noises = (middle, _next_float(middle, -far), _next_float(middle, far))
    found = torch.stack([noiseless + noise == released for noise in noises])
    return found.any(0) & released.isfinite()


def has_preimage(chain: Callable[[Tensor], Tensor], released: Tensor) -> Tensor:
    """Decide for each coordinate whether some float n satisfies chain(n) = y.

    Bisection over all floats finds the smallest n with chain(n) >= y. The chain never falls, so y is reached if and
    only if that n reaches it.

    Args:
        chain: Function of a tensor of noise values that acts on each coordinate and never falls as its value grows,
            such as the steps of an optimizer. It computes in the precision of ``released``.
        released: Values y at the end of the chain.

    Returns:
        True where such a float exists.

    Guarantee: exact for every chain of correctly rounded additions, and multiplications with positive numbers.
    Edge cases: infinite noise is not tried.

    >>> step = lambda noise: torch.tensor(0.3) + (torch.tensor(0.1) + noise) / 8
    >>> has_preimage(step, torch.tensor([0.5, 0.3 + 2**-24]))
    tensor([True, True])
    >>> has_preimage(lambda noise: torch.tensor(0.3) + noise, torch.tensor([1e-8]))
    tensor([False])
    """
    most = _to_order(torch.tensor(torch.finfo(released.dtype).max, dtype=released.dtype))
    high = torch.full(released.shape, int(most), dtype=torch.int64, device=released.device)
    low = -high
    for _ in range(torch.finfo(released.dtype).bits):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # without overflow, rounded down
        reaches = chain(_from_order(middle, released.dtype)) >= released
        high = torch.where(reaches, middle, high)
        low = torch.where(reaches, low, torch.minimum(middle + 1, high))
    return chain(_from_order(high, released.dtype)) == released


def count_infeasible(
    noiseless: Mapping[str, Tensor],
    released: Mapping[str, Tensor],
    *,
    precision: torch.dtype | None = None,
    kept: Mapping[str, Tensor] | None = None,
) -> int:
    """Count the released values that no float noise can make from the values before the noise.

    Args:
        noiseless: Values before the noise, by name.
        released: Values after the noise, by name.
        precision: Precision in which the noise was added; by default that of each released tensor.
        kept: Masks that are False for values that do not count, such as values that were not sent.

    Returns:
        The number of values.

    Guarantee: 0 for the values to which the noise was added in this precision.

    >>> count_infeasible({"w": torch.tensor([0.25, 0.3])}, {"w": torch.tensor([1.0, 1e-8])})
    1
    """
    count = 0
    for name, value in released.items():
        dtype = value.dtype if precision is None else precision
        rounded = value.to(dtype)
        possible = can_be_sum(noiseless[name].to(dtype), rounded) & (rounded.to(value.dtype) == value)
        if kept is not None:
            possible = possible | ~kept[name]
        count += int((~possible).sum())
    return count


def _next_float(values: Tensor, towards: Tensor) -> Tensor:
    """Return the next float of the same precision; torch has no such function for half precisions."""
    if values.dtype in (torch.float32, torch.float64):
        return torch.nextafter(values, towards)
    most = _to_order(torch.full_like(values, torch.inf))
    step = torch.where(towards > values, 1, -1)
    return _from_order((_to_order(values) + step).clamp(-most, most), values.dtype)


def _to_order(values: Tensor) -> Tensor:
    """Return the position of floats among all floats: whole numbers in the same order, 0 for both zeros."""
    word = _WORDS[values.dtype]
    bits = values.contiguous().view(word).long()
    sign = 1 << (torch.finfo(values.dtype).bits - 1)  # weight of the sign bit
    return torch.where(bits < 0, -(bits & (sign - 1)), bits)


def _from_order(places: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the floats at these positions; the inverse of :func:`_to_order`."""
    bits = places.abs().to(_WORDS[dtype]).view(dtype)
    return torch.where(places < 0, -bits, bits)
