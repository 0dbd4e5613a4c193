"""Sensitivity of each released value to the private records: the squared row norms of the Jacobian."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor

from reconrisk.core.progress import track
from reconrisk.core.validation import check_positive, check_real, check_whole, invalid_input
from reconrisk.releases.release import Linearized, Release, directions_rng, standard_normal


@dataclass(frozen=True, eq=False)
class ParameterSensitivity:
    """The squared norm of each released value's gradient with respect to the records.

    It depends on the private records: noise or masks that are chosen by it leak about them.

    Attributes:
        values: Squared norms, in the shapes of the release.
        probes: Number of products with J that were used.
        exact: True if the values are exact; ``low`` and ``high`` then equal them.
        confidence: Probability with which ``low`` and ``high`` hold, for each coordinate by itself.
    """

    values: Mapping[str, Tensor]
    probes: int
    exact: bool
    confidence: float

    @property
    def low(self) -> dict[str, Tensor]:
        """Lower end of the interval per coordinate."""
        return self._interval_end((1 + self.confidence) / 2)

    @property
    def high(self) -> dict[str, Tensor]:
        """Upper end of the interval per coordinate: the conservative one if sensitivity is a risk."""
        return self._interval_end((1 - self.confidence) / 2)

    def _interval_end(self, quantile: float) -> dict[str, Tensor]:
        # values = truth chi2_K / K, so truth = values K / chi2_K: the upper quantile gives the lower end.
        factor = 1.0 if self.exact else self.probes / float(chi2.ppf(quantile, self.probes))
        return {name: value * factor for name, value in self.values.items()}


def parameter_sensitivity(
    release: Release,
    *,
    probes: int = 10,
    exact: bool = False,
    confidence: float = 0.95,
    rng: torch.Generator | None = None,
) -> ParameterSensitivity:
    r"""Estimate the squared norm of every released value's gradient with respect to all records jointly.

    .. math:: |\nabla_x g_k|^2 = E (J v)_k^2 \approx \frac1K \sum_{j=1}^K (J v_j)_k^2, \qquad v_j \sim N(0, I)

    Here :math:`g_k` is released value k, x are the records, and J is the derivative of the release.

    Args:
        release: Private records with their forward map.
        probes: Number of random directions K.
        exact: True to compute the exact norms, with one product per record value or per released value, whichever are
            fewer.
        confidence: Probability of the interval of each coordinate.
        rng: Generator of the directions; by default the same are drawn each time.

    Returns:
        The squared norms, with intervals.

    Raises:
        InvalidInput: If a setting is out of range.

    Assumes: the release can be differentiated at the records.
    Guarantee: unbiased. K times the estimate divided by the true value is exactly chi-square with K = ``probes``
    degrees of freedom, so the interval of each coordinate has probability ``confidence``, for any model.
    Edge cases: any release with at most ``probes`` record values or released values is computed exactly. A coordinate
    that does not depend on the records is 0 with interval [0, 0].
    Reference: Lemma 3.8, chen2025; the confidence as printed in chen2025 is
    :func:`chen2025_failure_probability`.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> rows = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    >>> release = ForwardRelease(lambda inputs, labels: {"y": rows @ inputs[0]}, torch.ones(1, 2), torch.zeros(1))
    >>> parameter_sensitivity(release, exact=True).values
    {'y': tensor([25.,  1.,  0.])}
    """
    probes = check_whole("probes", probes)
    confidence = check_real("confidence", confidence)
    if not 0 < confidence < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)")
    released, linear = release.value(), release.linearize()
    rows, columns = sum(tensor.numel() for tensor in released.values()), release.inputs.numel()
    if exact or min(rows, columns) <= probes:  # exact products cost no more than the probes
        if rows < columns:  # pull each released value instead of pushing each record value
            squares = _squared_rows(linear, released)
        else:
            squares = _summed_squares(linear, _basis(release.inputs), released, columns)
        return ParameterSensitivity(squares, min(rows, columns), True, confidence)
    generator = directions_rng(rng)
    directions = (standard_normal(release.inputs, generator) for _ in range(probes))
    sums = _summed_squares(linear, directions, released, probes)
    return ParameterSensitivity({name: value / probes for name, value in sums.items()}, probes, False, confidence)


def failure_probability(probes: int, relative_error: float) -> float:
    r"""Return the probability that the estimate of a squared row norm has more than a given relative error.

    .. math:: P(|\chi^2_K / K - 1| > \epsilon)

    Args:
        probes: Number K of random directions.
        relative_error: Largest accepted relative error :math:`\epsilon`.

    Returns:
        The probability of a larger error.

    Raises:
        InvalidInput: If ``probes`` is below 1 or ``relative_error`` is not positive.

    Guarantee: exact for every differentiable release; decreasing in ``relative_error``.
    Reference: the law behind Lemma 3.8, chen2025.

    >>> round(failure_probability(10, 0.447), 3)
    0.3
    """
    probes, relative_error = check_whole("probes", probes), check_positive("relative_error", relative_error)
    return float(chi2.sf(probes * (1 + relative_error), probes) + chi2.cdf(probes * (1 - relative_error), probes))


def chen2025_failure_probability(probes: int, relative_error: float) -> float:
    """Return the bound on :func:`failure_probability` as printed in chen2025, by Chebyshev: 2/(K eps^2), at most 1.

    Args:
        probes: Number K of random directions.
        relative_error: Largest accepted relative error (eps).

    Returns:
        The bound on the probability of a larger error.

    Raises:
        InvalidInput: If ``probes`` is below 1 or ``relative_error`` is not positive.

    Edge cases: trivial (1) at the paper's 10 probes for relative errors below 0.447.
    Reference: Lemma 3.8, chen2025.

    >>> chen2025_failure_probability(10, 0.4), round(chen2025_failure_probability(10, 1.0), 3)
    (1.0, 0.2)
    """
    probes, relative_error = check_whole("probes", probes), check_positive("relative_error", relative_error)
    return min(1.0, 2 / (probes * relative_error**2))


def _summed_squares(
    linear: Linearized, directions: Iterator[Tensor], released: Mapping[str, Tensor], total: int
) -> dict[str, Tensor]:
    """Return the sum over directions of the squared products with J."""
    sums = {name: torch.zeros_like(tensor) for name, tensor in released.items()}
    for direction in track(directions, "pushes", total=total):
        for name, change in linear.push(direction).items():
            sums[name] += change.square()
    return sums


def _squared_rows(linear: Linearized, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the squared row norms of J, with one backward pass per released value."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in released.items()}
    squares = {name: torch.zeros_like(tensor) for name, tensor in released.items()}
    for name, tensor in released.items():
        flat = squares[name].view(-1)
        for index, weight in enumerate(track(_basis(tensor), "pulls", total=tensor.numel())):
            flat[index] = linear.pull({**zeros, name: weight}).square().sum()
    return squares


def _basis(like: Tensor) -> Iterator[Tensor]:
    """Yield the unit vectors in the shape of a tensor."""
    for index in range(math.prod(like.shape)):
        unit = torch.zeros_like(like).view(-1)
        unit[index] = 1
        yield unit.view(like.shape)
