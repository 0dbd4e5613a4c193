r"""Gaussian and Laplace noise whose floating-point values have the law that guarantees assume.

Noise that is added in the precision of a tensor is not Gaussian: for a wrong candidate some released values are
impossible, which identifies the record. Here the release is the exactly rounded real sum

.. math:: M(g) = D\, \mathrm{round}\big((g + s Z)/D\big), \qquad D = 2^{\lfloor\log_2 s\rfloor - 10},

where g is the clipped value, s the standard deviation, Z a real standard normal (or Laplace) variable and D a public
power of two. Rounding after a real sum is post-processing, so every bound for the Gaussian mechanism holds unchanged.

The leading bits decide almost every rounding. Where they do not, :func:`_decide` draws more bits and evaluates with
320 bits. The proof needs independent uniform bits, and float64 ``log``, ``sin`` and ``cos`` with an error of at most
4 units in the last place (:func:`largest_function_error` measures it on the machine). ``docs/finite_precision.md`` has
the complete proof.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import torch
from torch import Tensor

from reconrisk.core.validation import invalid_input

_HALF_UNIT = 2.0**-53  # u = h: half the spacing of float64 below 1, and half the spacing of the leading uniforms
_LEADING_BITS = 52  # bits of a uniform that the float64 evaluation uses
_MORE_BITS = 192  # bits that are drawn where the leading ones leave the rounding open
_PRECISION = 320  # bits of the evaluation that decides an open rounding
_STEPS_PER_STD = 10  # 2^10 <= std / D < 2^11: rounding adds at most 8e-8 of the variance
_LARGEST_RATIO = 2.0**11  # above every std / D
SMALLEST_STD, LARGEST_STD = 2.0**-400, 2.0**400  # outside, squares underflow or quotients overflow
_CHUNK = 2**16  # values per block: the work arrays stay in the cache


class SystemGenerator(torch.Generator):
    """Generator for everything that protects real data: exact noise takes its bits from the operating system.

    torch's own generators have 32 seed bits, which an adversary can try one by one. Code that draws with torch itself,
    such as a defense of another package, gets numbers of a generator that the operating system seeded.

    Edge cases: a copy, also in another process, is a new generator of the same kind. torch would copy it to one with
    32 seed bits.
    """

    def __init__(self) -> None:
        self.manual_seed(secrets.randbits(63))

    def __reduce__(self) -> Any:
        """Let copies and pickles be system generators too, with a seed of their own."""
        return SystemGenerator, ()

    def clone_state(self) -> SystemGenerator:
        """Return a new system generator: there is no state to clone."""
        return SystemGenerator()


_SEEDED = (
    "The noise is drawn from a seeded generator: whoever knows or finds the seed (torch uses 32 bits of it) can remove "
    "the noise. Pass no generator and no seed where data must be protected."
)


def protecting_generator(rng: torch.Generator | None) -> torch.Generator:
    """Return the generator for a mechanism that protects real data, and warn about one that a user seeded.

    Args:
        rng: Generator of the user, or None for the bits of the operating system.

    Returns:
        The generator.

    Raises:
        InvalidInput: If ``rng`` is something else.

    >>> type(protecting_generator(None)).__name__
    'SystemGenerator'
    """
    if rng is None:
        return SystemGenerator()
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator or None", "Pass None where data must be protected.")
    if not isinstance(rng, SystemGenerator):
        warnings.warn(_SEEDED, stacklevel=3)
    return rng


class _SystemBits:
    """Uniform bits of the operating system."""

    def words(self, count: int) -> Tensor:
        """Return uniform int64 words in [0, 2^63)."""
        raw = torch.frombuffer(bytearray(secrets.token_bytes(8 * count)), dtype=torch.int64)
        return raw.bitwise_and_(2**63 - 1)

    def more(self) -> int:
        """Return 192 fresh bits as an integer."""
        return secrets.randbits(_MORE_BITS)


class _SeededBits:
    """Uniform bits of a seeded generator, for audits and simulations: whoever knows the seed knows the noise."""

    def __init__(self, rng: torch.Generator) -> None:
        self._rng = rng
        self._drawn = 0

    def words(self, count: int) -> Tensor:
        """Return uniform int64 words in [0, 2^63)."""
        return torch.empty(count, dtype=torch.int64, device=self._rng.device).random_(generator=self._rng).cpu()

    def more(self) -> int:
        """Return 192 bits as an integer, from a stream of their own.

        Their number depends on the data, so drawing them must not shift the generator's later numbers.
        """
        self._drawn += 1
        state = self._rng.get_state().numpy().tobytes() + self._drawn.to_bytes(8, "big")
        return int.from_bytes(hashlib.sha256(state).digest(), "big") >> (256 - _MORE_BITS)


_Bits = _SystemBits | _SeededBits

ALLOWED_FUNCTION_ERROR = 4.0
"""Error of ``log``, ``sin`` and ``cos``, in units in the last place, that the proof of the noise allows."""

WORD_BITS = 63
"""Uniform bits of a word that the noise draws from a generator."""


def largest_function_error(count: int = 20_001) -> float:
    """Measure the errors of torch's float64 ``log``, ``sin`` and ``cos`` at arguments of the noise.

    Half of the arguments are uniform. The others crowd at the ends of the range and where a function is zero. All are
    evaluated in one call, as the noise does, and compared with 160-bit values.

    Args:
        count: Number of arguments of each function.

    Returns:
        The largest error, in units in the last place of the exact value; infinite if a value is not finite.

    Guarantee: the noise is covered by its proof only if the error is at most :data:`ALLOWED_FUNCTION_ERROR`. The
    converse is not proved: other arguments may have larger errors.

    >>> largest_function_error(1001) < ALLOWED_FUNCTION_ERROR
    True
    """
    words = _SeededBits(torch.Generator().manual_seed(0)).words(count)
    place, halving = torch.arange(count), torch.arange(count) % WORD_BITS
    words = torch.where(place % 2 == 1, words >> halving, words)  # half of them with a uniform logarithm
    words = torch.where(place % 4 == 1, 2**WORD_BITS - 1 - words, words)  # near 1 as near 0
    uniform = _centers(words)
    quarters = ((place % 8 == 3) * 0.25 + (place % 8 == 7) * 0.5).double()  # near every zero of the waves
    angle = (uniform + quarters).remainder_(1.0).mul_(2 * math.pi)
    return max(
        _largest_error(uniform, uniform.log(), mpmath.log),
        _largest_error(angle, angle.cos(), mpmath.cos),
        _largest_error(angle, angle.sin(), mpmath.sin),
    )


def _largest_error(arguments: Tensor, found: Tensor, function: Callable[[float], mpmath.mpf]) -> float:
    """Return the largest error of one function, in units in the last place."""
    with mpmath.workprec(160):
        exact = [function(value) for value in arguments.tolist()]
        leading = torch.tensor([float(value) for value in exact], dtype=torch.float64)
        rest = [float(value - lead) for value, lead in zip(exact, leading.tolist(), strict=True)]
    unit = torch.nextafter(leading.abs(), torch.tensor(torch.inf, dtype=torch.float64)) - leading.abs()
    error = ((found - leading) - torch.tensor(rest, dtype=torch.float64)).abs() / unit
    return float(error.nan_to_num(math.inf).max())


def count_random_bits(draws: int = 4096) -> int:
    """Count the bits of torch's ``random_`` for int64 that take both values: the noise needs 63.

    Args:
        draws: Number of words to draw.

    Returns:
        The number of bits; 0 if a word is negative.

    >>> count_random_bits()
    63
    """
    words = _SeededBits(torch.Generator().manual_seed(0)).words(draws)
    bits = (words[:, None] >> torch.arange(WORD_BITS)) & 1
    return 0 if bool((words < 0).any()) else int((bits.any(0) & ~bits.all(0)).sum())


def lattice_step(std: Tensor) -> Tensor:
    """Spacing of the released values, a power of two that depends on the public scale alone.

    Args:
        std: Standard deviations of the noise, positive.

    Returns:
        The spacing for each value, between ``std / 2048`` and ``std / 1024``.

    >>> [float(step) for step in lattice_step(torch.tensor([1.0, 0.3, 3.0]))]
    [0.0009765625, 0.000244140625, 0.001953125]
    """
    _, exponent = torch.frexp(std.double())  # std = m 2^exponent with 1/2 <= m < 1
    return torch.ldexp(torch.ones_like(std, dtype=torch.float64), exponent - 1 - _STEPS_PER_STD)


def add_noise(values: Tensor, std: Tensor | float, rng: torch.Generator, *, law: str = "gaussian") -> Tensor:
    r"""Add noise and round to a public lattice, with the exact law of the rounded real sum.

    Args:
        values: Clipped values in float64.
        std: Standard deviation of the noise: one number, or one per value. It must be public.
        rng: Source of the bits: :class:`SystemGenerator` to protect data, a seeded generator for simulations.
        law: ``gaussian`` or ``laplace``.

    Returns:
        The noisy values in float64; converting them to another type afterwards is post-processing.

    Raises:
        InvalidInput: If ``values`` is not float64 or not finite, or ``std`` is outside [2^-400, 2^400].

    Assumes: independent uniform bits; float64 ``log``, ``sin`` and ``cos`` err by at most 4 units in the last place.
    Guarantee: the total variation distance to the rounded real sum is at most ``2^-225`` per value.

    >>> values = torch.tensor([0.0, 0.25, -0.5, 1.0], dtype=torch.float64)
    >>> (1024 * add_noise(values, 1.0, torch.Generator().manual_seed(0))).tolist()
    [609.0, 1380.0, 1611.0, 1735.0]
    """
    if values.dtype != torch.float64:
        raise invalid_input("values.dtype", values.dtype, "to be float64", "Pass values.double().")
    scale = torch.as_tensor(std, dtype=torch.float64).cpu()
    if not bool(((scale >= SMALLEST_STD) & (scale <= LARGEST_STD)).all()):
        raise invalid_input("std", std, "in [2^-400, 2^400]", "Use another unit for the values.")
    if law not in ("gaussian", "laplace"):
        raise invalid_input("law", law, "to be gaussian or laplace")
    # one scale for all values needs no array of their number
    scale = scale.reshape(1) if scale.numel() == 1 else scale.expand(values.shape).reshape(-1)
    steps = lattice_step(scale)
    draw = _gaussian_chunk if law == "gaussian" else _laplace_chunk
    bits = _SystemBits() if isinstance(rng, SystemGenerator) else _SeededBits(rng)
    flat = values.detach().reshape(-1).cpu()
    noisy = torch.empty_like(flat)
    for start in range(0, len(flat), _CHUNK):
        block = slice(start, start + _CHUNK)
        own = block if len(scale) > 1 else slice(None)
        lattice = flat[block] / steps[own]  # exact: the step is a power of two
        whole = lattice.round()
        fraction = lattice.sub_(whole)  # exact; the error of the noisy sum does not grow with the value
        # a sum beyond 2^53 is rounded to even: a function of the exact sum, so post-processing
        torch.mul(draw(fraction, scale[own] / steps[own], bits).add_(whole), steps[own], out=noisy[block])
    return noisy.reshape(values.shape).to(values.device)


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU if its device has no float64.

    Args:
        tensor: Tensor of a floating-point type.

    Returns:
        The same values in float64.

    >>> to_float64(torch.ones(1, dtype=torch.bfloat16))
    tensor([1.], dtype=torch.float64)
    """
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def add_noise_by_name(
    values: Mapping[str, Tensor],
    std: Mapping[str, Tensor] | float,
    rng: torch.Generator,
    *,
    law: str = "gaussian",
) -> dict[str, Tensor]:
    """Add noise to several tensors with one draw, see :func:`add_noise`.

    Args:
        values: Clipped values in float64, by name.
        std: Standard deviation of the noise: one number, or tensors by name with the shapes of the values.
        rng: Source of the bits.
        law: ``gaussian`` or ``laplace``.

    Returns:
        The noisy values in float64, by name.

    >>> sent = add_noise_by_name({"a": torch.zeros(2, dtype=torch.float64)}, 1.0, torch.Generator().manual_seed(0))
    >>> (1024 * sent["a"]).tolist()
    [-2001.0, 936.0]
    """
    flat = torch.cat([value.detach().reshape(-1).cpu() for value in values.values()])
    scale = torch.cat([std[name].double().reshape(-1).cpu() for name in values]) if isinstance(std, Mapping) else std
    pieces = add_noise(flat, scale, rng, law=law).split([value.numel() for value in values.values()])
    return {
        name: piece.reshape(value.shape).to(value.device)
        for (name, value), piece in zip(values.items(), pieces, strict=True)
    }


def clip_limit(norm: float, size: int, *, records: int = 1) -> float:
    r"""Return the norm to clip to in float64, slightly below ``norm``, so that no rounding error exceeds ``norm``.

    .. math:: C (1 - \eta), \qquad \eta = 2 (p + 16) u + 2 B^2 u, \quad u = 2^{-53}

    A sum of p squares in any order errs by p u, root, quotient and products by a few u more. A float64 sum of B clipped
    records has a sensitivity of at most ``C (1 + 2 B (B - 1) u)``.

    Args:
        norm: Norm C that the real values must not exceed.
        size: Number p of values of one record.
        records: Bound B on the number of records that are added, fixed beforehand. It must not be the realised size
            of a random batch: one record more would change the clipping of all others.

    Returns:
        The limit.

    Raises:
        InvalidInput: If the margin exceeds 1 %, or ``norm`` is outside [2^-400, 2^400].

    Reference: for sums of floats, `Casacuberta et al. (2022) <https://arxiv.org/abs/2207.10635>`_.

    >>> 1 - clip_limit(1.0, 10**6) < 3e-10
    True
    """
    if not SMALLEST_STD <= norm <= LARGEST_STD:
        raise invalid_input("norm", norm, "in [2^-400, 2^400]", "Use another unit for the values.")
    margin = 2 * (size + 16) * _HALF_UNIT + 2 * records**2 * _HALF_UNIT
    if margin > 0.01:
        raise invalid_input("records", records, "to lose at most 1 % of the norm to rounding", "Use smaller batches.")
    return norm * (1 - margin)


def clip_rows(rows: Tensor, norm: float, *, records: int) -> Tensor:
    """Clip the gradients of single records in float64, and replace gradients that are not finite by zero.

    Args:
        rows: Gradients (records, values).
        norm: Largest norm of a clipped gradient.
        records: Bound on the number of records in one sum, see :func:`clip_limit`.

    Returns:
        Clipped gradients in float64. No exact norm exceeds ``norm``.

    Edge cases: a record with NaN or infinity contributes nothing, since a release with NaN would identify it.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [torch.nan, 0.0]]), 1.0, records=2)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    wide = rows.double()
    norms = wide.square().sum(1).sqrt()
    limit = clip_limit(norm, wide.shape[1], records=records)
    wide = wide.where(norms.isfinite()[:, None], 0.0)
    return wide * torch.where(norms > limit, limit / norms, 1.0)[:, None]


def _gaussian_chunk(fraction: Tensor, ratio: Tensor, bits: _Bits) -> Tensor:
    """Return ``round(fraction + ratio Z)`` by the method of Box and Muller: cosines in the first half, then sines."""
    pairs = -(-len(fraction) // 2)
    first, second = bits.words(pairs), bits.words(pairs)
    radial = _centers(first)
    radius = radial.log().mul_(-2).sqrt_()
    angle = _centers(second).mul_(2 * math.pi)
    noise = torch.cat((angle.cos().mul_(radius), angle.sin_().mul_(radius)))[: len(fraction)]
    # 2h/(v r) + 64 h r bounds the error of the normal value, 8u(ratio r + 1) the rounding of the sum
    error = radial.mul_(radius).reciprocal_().mul_(2 * _LARGEST_RATIO * _HALF_UNIT)
    error.add_(radius, alpha=72 * _LARGEST_RATIO * _HALF_UNIT).add_(8 * _HALF_UNIT)
    rounded, is_open = _round(fraction, ratio, noise, torch.cat((error, error))[: len(fraction)])
    decided: dict[int, tuple[mpmath.mpf, mpmath.mpf]] = {}
    for place in is_open:
        is_sine, pair = divmod(place, pairs)
        if pair not in decided:  # both values of a pair must use the same bits
            decided[pair] = _extend(first[pair], bits), _extend(second[pair], bits)
        with mpmath.workprec(_PRECISION):
            one, two = decided[pair]
            wave = mpmath.sin(2 * mpmath.pi * two) if is_sine else mpmath.cos(2 * mpmath.pi * two)
            rounded[place] = _decide(fraction, ratio, place, mpmath.sqrt(-2 * mpmath.log(one)) * wave)
    return rounded


def _laplace_chunk(fraction: Tensor, ratio: Tensor, bits: _Bits) -> Tensor:
    """Return ``round(fraction + ratio Z)`` for Laplacian Z of variance 1: a sign and the logarithm of a uniform."""
    words = bits.words(len(fraction))
    sign = (words & 1).mul_(2).sub_(1)
    uniform = _centers(words)
    size = uniform.log().mul_(-1 / math.sqrt(2))
    # 2h/v + 64 h |z| bounds the error of the Laplacian value, 8u(ratio |z| + 1) the rounding of the sum
    error = uniform.reciprocal_().mul_(2 * _LARGEST_RATIO * _HALF_UNIT)
    error.add_(size, alpha=72 * _LARGEST_RATIO * _HALF_UNIT).add_(8 * _HALF_UNIT)
    rounded, is_open = _round(fraction, ratio, size.mul_(sign), error)
    for place in is_open:
        with mpmath.workprec(_PRECISION):
            exact = -mpmath.log(_extend(words[place], bits)) / mpmath.sqrt(2)
            rounded[place] = _decide(fraction, ratio, place, int(sign[place]) * exact)
    return rounded


def _centers(words: Tensor) -> Tensor:
    """Return the centers ``(2a + 1) 2^-53`` of the cells that the leading 52 bits a of each word select, exactly."""
    return (words >> (62 - _LEADING_BITS)).bitwise_or_(1).double().mul_(_HALF_UNIT)


def _extend(word: Tensor, bits: _Bits) -> mpmath.mpf:
    """Return the uniform number with the 52 leading bits of a word and 192 more."""
    leading = int(word) >> (63 - _LEADING_BITS)
    with mpmath.workprec(_PRECISION):
        return mpmath.ldexp(leading << _MORE_BITS | bits.more(), -_LEADING_BITS - _MORE_BITS)


def _round(fraction: Tensor, ratio: Tensor, noise: Tensor, error: Tensor) -> tuple[Tensor, list[int]]:
    """Return the rounded sums, and the places where ``error`` leaves the rounding open."""
    sums = noise.mul_(ratio).add_(fraction)
    rounded = sums.round()
    distance = sums.sub_(rounded).abs_().add_(error)
    if bool(distance.max() < 0.5):  # NaN fails the comparison
        return rounded, []
    return rounded, distance.lt(0.5).logical_not_().nonzero().flatten().tolist()


def _decide(fraction: Tensor, ratio: Tensor, place: int, noise: mpmath.mpf) -> float:
    """Return the rounded sum of one value by an evaluation with 320 bits."""
    value, scale = float(fraction[place]), float(ratio[place if len(ratio) > 1 else 0])
    if not math.isfinite(value):  # here, and not before the draw: only open places need the check
        raise invalid_input("values", "NaN or infinity", "to be finite", "Make such values zero before the noise.")
    return float(mpmath.floor(mpmath.mpf(scale) * noise + mpmath.mpf(value) + mpmath.mpf(0.5)))
