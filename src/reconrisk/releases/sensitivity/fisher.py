r"""Fisher information of a noisy release about each record: trace, coordinates, matrix.

With Jacobian J and noise covariance :math:`\Sigma` the information about record i, the others known, is
:math:`I_i = J_i^T \Sigma^{-1} J_i`. Its trace is guo2022's dFIL times the dimension d of the record, meng2025's squared
vulnerability, and the quantity that chen2025's defenses minimise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import track
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input
from reconrisk.releases.release import (
    Linearized,
    NoiseStd,
    Release,
    directions_rng,
    noise_stds,
    standard_normal_weights,
    whiten_by_noise,
)

PILOT = 16
"""Probes before the first look at their spread, which is then known to about a fifth."""

GROWTH = 1.5
"""Factor between successive numbers of probes; the numbers are fixed, and only the last one reached is random."""

LARGEST_MATRIX = 8192
"""Largest number of coordinates of a full matrix: half a gigabyte in double precision."""

LARGEST_JACOBIAN = 2**27
"""Largest number of Jacobian entries in memory: half a gigabyte in single precision."""

_PUSHES = 32
"""Directions that are pushed at once; more are not faster on few cores."""


@dataclass(frozen=True, eq=False)
class FisherTrace:
    """Traces of the Fisher information, one per record, exact or estimated from random directions.

    The values depend on private records and are private themselves (guo2022, footnote 2).

    Attributes:
        values: Trace of each record, (n,).
        standard_errors: Standard error of each trace; 0 if exact.
        probes: Number of random directions; 0 if exact.
        dimension: Number of coordinates of a record.
        relative_error: Relative standard error at which sampling stopped; 0 if the number of probes was fixed.
    """

    values: Tensor
    standard_errors: Tensor
    probes: int
    dimension: int
    relative_error: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if every coordinate was used instead of random directions."""
        return self.probes == 0

    @property
    def dfil(self) -> Tensor:
        """Diagonal Fisher information loss (dFIL, a privacy loss): the trace divided by the dimension of a record.

        Its inverse is a lower bound on the mean squared error of unbiased estimates.
        """
        return self.values / self.dimension

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return limits of each trace that hold with probability ``confidence``, up to a percent or two.

        The estimate is treated as a scaled chi-square variable of the same mean and variance, with fewer degrees of
        freedom for few probes, as in Student's t. Sampling stops when the spread looks small, which biases it. So the
        spread counts as at least the requested one, or the spread of a single direction if that is less.

        Args:
            confidence: Probability that the interval of one record holds its trace.

        Returns:
            Lower and upper limits, one each per record.
        """
        tail = _tail(confidence) / 2
        if self.is_exact:
            return self.values, self.values
        # Ratio of Student's to normal quantiles, by which an estimated standard error widens the interval.
        student = stats.t.ppf(1 - tail, self.probes - 1) / stats.norm.ppf(1 - tail)
        relative = self.standard_errors / self.values.clamp_min(torch.finfo(self.values.dtype).tiny)
        # If J has rank one, samples are chi-square with one degree of freedom: relative error sqrt(2 / probes).
        relative = relative.clamp_min(min(self.relative_error, math.sqrt(2 / self.probes)))
        # c chi2_f has relative variance 2 / f, so f = 2 / relative^2; 1e-12 keeps a zero spread finite.
        freedom = (2 / (relative * student).square().clamp_min(1e-12)).double().numpy()
        low, high = (torch.as_tensor(freedom / stats.chi2.ppf(level, freedom)) for level in (1 - tail, tail))
        return self.values * low.to(self.values), self.values * high.to(self.values)

    def upper_limit(self, confidence: float = 0.95) -> Tensor:
        r"""Return limits that each trace exceeds with probability at most ``1 - confidence``, for every spectrum.

        .. math:: P\bigl(\hat t \le t (1 - 2\sqrt{\log(1/\alpha)/k})\bigr) \le \alpha

        Here t is the trace, :math:`\hat t` its estimate and :math:`\alpha` is ``1 - confidence``. The number of probes
        k is chosen after looking at some, so alpha is divided among the possible numbers: :math:`\alpha/((j+1)(j+2))`
        for the j-th.
        Edge cases: infinite below about four log(1/alpha) probes; exact traces are returned unchanged.
        Reference: Lemma 1, `Laurent and Massart (2000) <https://doi.org/10.1214/aos/1015957395>`_.
        """
        alpha = _tail(confidence)
        if self.is_exact:
            return self.values
        # Index j of the number of probes in the sequence PILOT * GROWTH^j; sum of 1/((j+1)(j+2)) over j is 1.
        level = max(0, round(math.log(self.probes / PILOT) / math.log(GROWTH)))
        share = 1 - 2 * math.sqrt(math.log((level + 1) * (level + 2) / alpha) / self.probes)
        return self.values / share if share > 0 else torch.full_like(self.values, math.inf)

    def __float__(self) -> float:
        """Return the trace of the only record."""
        if len(self.values) != 1:
            raise InvalidInput(
                f"Expected the trace of one record, got {len(self.values)} records. Read .values, one trace per record."
            )
        return float(self.values)


def fisher_trace(
    release: Release,
    *,
    noise_std: NoiseStd = None,
    relative_error: float | None = None,
    rng: torch.Generator | None = None,
) -> FisherTrace:
    r"""Return the trace of the Fisher information of a noisy release about each record, given the others.

    .. math:: \mathrm{tr}\, I_i = \mathrm{tr}(J_i^T \Sigma^{-1} J_i) = E_u |(J^T u)_i|^2, \quad u \sim N(0, \Sigma^{-1})

    Args:
        release: Private records with their forward map.
        noise_std: Standard deviation of the Gaussian noise: one number, one per parameter name, or None for the
            Jacobian alone, which equals noise of standard deviation 1.
        relative_error: Draw random directions until the standard error of every trace is below this share of the trace;
            by default every coordinate is used, which is exact.
        rng: Generator of the directions; by default the same are drawn each time.

    Returns:
        One trace per record, with standard errors.

    Raises:
        InvalidInput: If the noise or another setting is invalid, or a derivative is not finite.

    Assumes: Gaussian noise, independent between released values.
    Guarantee: unbiased; proportional to the inverse square of the noise; traces of independent releases add up.
    Edge cases: without ``rng`` the same directions are drawn each time; a record that is not used has trace zero. One
    backward pass serves all records.
    Reference: equation 5, guo2022; Hutchinson's estimator from the side of the parameters.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> release = ForwardRelease(lambda inputs, labels: {"y": 3 * inputs[0]}, torch.ones(1, 2), torch.zeros(1))
    >>> float(fisher_trace(release, noise_std=0.5))
    72.0
    """
    if relative_error is None:
        diagonal = fisher_diagonal(release, noise_std=noise_std)
        values = diagonal.reshape(len(diagonal), -1).sum(1)
        return FisherTrace(values, torch.zeros_like(values), 0, release.inputs[0].numel())
    target = check_positive("relative_error", relative_error)
    generator = directions_rng(rng)
    template = release.template()
    noise_stds(template, noise_std)
    parts = [_probe_until(target, block, template, noise_std, generator) for block in release.blocks()]
    means = torch.cat([part.mean(0) for part in parts])
    errors = torch.cat([part.std(0) / math.sqrt(len(part)) for part in parts])
    return FisherTrace(means, errors, min(len(part) for part in parts), release.inputs[0].numel(), target)


def fisher_diagonal(release: Release, *, noise_std: NoiseStd = None) -> Tensor:
    r"""Return the exact Fisher information about each coordinate of each record, in the shape of the records.

    .. math:: (I_i)_{jj} = |\Sigma^{-1/2} J_i e_j|^2

    Here :math:`J_i` is the derivative with respect to record i, :math:`e_j` the unit vector of coordinate j, and
    :math:`\Sigma` the covariance of the noise. The cost is one product with J for each coordinate of each record.

    Args:
        release: Private records with their forward map.
        noise_std: Standard deviation of the Gaussian noise, as for :func:`fisher_trace`.

    Returns:
        Information per coordinate, ``(n, *shape)``.

    Raises:
        InvalidInput: If the noise is invalid, or a derivative is not finite.

    Assumes: as :func:`fisher_trace`.
    Reference: equation 5, guo2022.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> forward = lambda inputs, labels: {"y": inputs[0] * torch.tensor([1.0, 2.0])}
    >>> fisher_diagonal(ForwardRelease(forward, torch.ones(1, 2), torch.zeros(1)))
    tensor([[1., 4.]])
    """
    template = release.template()
    noise_stds(template, noise_std)
    blocks = track(release.blocks(size=1), "Fisher diagonal", total=len(release.inputs))
    squares = [
        columns.square().sum(1)
        for block in blocks
        for columns in _columns(block, template, noise_std, torch.arange(block.records.numel()))
    ]
    return _check_finite(torch.cat(squares)).reshape(release.inputs.shape)


def fisher_matrix(release: Release, *, noise_std: NoiseStd = None, record: int | None = None) -> Tensor:
    r"""Return the Fisher information matrix of a noisy release about all records, or about one of them.

    .. math:: I = J^T \Sigma^{-1} J

    Here J is the derivative of the released values with respect to the records, and :math:`\Sigma` the covariance of
    the noise.

    Args:
        release: Private records with their forward map.
        noise_std: Standard deviation of the Gaussian noise, as for :func:`fisher_trace`.
        record: Row of the only record of interest; by default all records jointly.

    Returns:
        Square matrix over the flattened coordinates.

    Raises:
        InvalidInput: If there are too many coordinates, or ``record`` or the noise is invalid.

    Assumes: as :func:`fisher_trace`.
    Edge cases: for several records the matrix is joint; block i on the diagonal is the information about record i given
    the others. More than 8192 coordinates are refused.
    Reference: equation 1, guo2022, with the noise's standard deviation instead of its multiplier.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> release = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(1)}, torch.ones(1, 2), torch.zeros(1))
    >>> fisher_matrix(release, noise_std=0.5)
    tensor([[4., 4.],
            [4., 4.]])
    """
    linear, coordinates = _select_block(release, record)
    if len(coordinates) > LARGEST_MATRIX:
        remedy = "Pass record=0, for instance, or use fisher_trace or top_directions."
        raise invalid_input("number of coordinates", len(coordinates), f"<= {LARGEST_MATRIX}", remedy)
    template = release.template()
    # Columns of J in memory need one push per coordinate; otherwise also one pull each.
    if len(coordinates) * sum(tensor.numel() for tensor in template.values()) <= LARGEST_JACOBIAN:
        columns = torch.cat(list(_columns(linear, template, noise_std, coordinates)))
        return columns @ columns.T
    rows = []
    for coordinate in track(coordinates, "Fisher matrix"):
        change = linear.push(_basis(coordinate[None], linear.records)[0])
        rows.append(linear.pull(whiten_by_noise(whiten_by_noise(change, noise_std), noise_std)).flatten()[coordinates])
    matrix = torch.stack(rows)
    return (matrix + matrix.T) / 2  # symmetric up to rounding before


def jacobian(release: Release, *, noise_std: NoiseStd = None, record: int | None = None) -> Tensor:
    r"""Return the Jacobian of the released values with respect to all records, or one: (released values, coordinates).

    .. math:: \Sigma^{-1/2} J, \qquad J = \partial f / \partial x

    Here f are the released values, x the records, and :math:`\Sigma` the covariance of the noise.

    Args:
        release: Private records with their forward map.
        noise_std: Standard deviation of the Gaussian noise, by which rows are divided; by default they are not.
        record: Row of the only record of interest; by default all records.

    Returns:
        The matrix; rows are in the order of the released names, flattened.

    Raises:
        InvalidInput: If the matrix is too large, or ``record`` or the noise is invalid.

    Assumes: as :func:`fisher_trace`.
    Edge cases: more than 2^27 entries are refused.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> jacobian(ForwardRelease(lambda inputs, labels: {"y": inputs.sum(1)}, torch.ones(1, 2), torch.zeros(1)))
    tensor([[1., 1.]])
    """
    linear, coordinates = _select_block(release, record)
    template = release.template()
    size = len(coordinates) * sum(tensor.numel() for tensor in template.values())
    if size > LARGEST_JACOBIAN:
        raise invalid_input(
            "number of entries of the Jacobian",
            size,
            f"<= {LARGEST_JACOBIAN}",
            "Pass record=0, for instance, or use release.linearize().",
        )
    return torch.cat(list(_columns(linear, template, noise_std, coordinates))).T


def _select_block(release: Release, record: int | None) -> tuple[Linearized, Tensor]:
    """Return the derivative, or the smallest group of records with ``record``, and the coordinates of interest."""
    count, width = len(release.inputs), release.inputs[0].numel()
    if record is not None and not 0 <= check_whole("record", record, minimum=0) < count:
        raise invalid_input("record", record, f"< {count}, the number of records")
    if record is None:
        return release.linearize(), torch.arange(release.inputs.numel())
    for block in release.blocks(size=1):
        if record < len(block.records):
            break
        record -= len(block.records)
    return block, torch.arange(record * width, (record + 1) * width)


def _tail(confidence: float) -> float:
    """Return ``1 - confidence`` for a confidence strictly between 0 and 1."""
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)")
    return 1 - confidence


def _columns(
    linear: Linearized, template: Mapping[str, Tensor], noise_std: NoiseStd, coordinates: Tensor
) -> Iterator[Tensor]:
    """Yield columns of the whitened Jacobian as rows of matrices, for some coordinates at a time."""
    size, stds = sum(tensor.numel() for tensor in template.values()), noise_stds(template, noise_std)
    # A batched push holds several copies of its outputs: a quarter of the limit leaves room for them.
    together = max(1, min(_PUSHES, LARGEST_JACOBIAN // (4 * size)))
    for part in coordinates.split(together):
        moved = _push_batch(linear, _basis(part, linear.records))
        yield torch.cat([(moved[name] / stds[name]).reshape(len(part), -1) for name in template], dim=1)


def _push_batch(linear: Linearized, tangents: Tensor) -> dict[str, Tensor]:
    """Return products with several directions at once; in a loop if a layer has no batched derivative."""
    try:
        moved: dict[str, Tensor] = torch.func.vmap(linear.push)(tangents)
    except RuntimeError:
        single = [linear.push(tangent) for tangent in tangents]
        moved = {name: torch.stack([change[name] for change in single]) for name in single[0]}
    return moved


def _probe_until(
    target: float, linear: Linearized, template: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator
) -> Tensor:
    """Return squared norms of ``J^T u`` for random u, with enough draws for a relative standard error of ``target``."""
    squares = _draw_probes(linear, template, noise_std, rng, PILOT)
    level = 0
    while True:
        errors = squares.std(0) / math.sqrt(len(squares))
        relative = torch.where(errors > 0, errors / squares.mean(0), 0.0)  # an unused record has 0 / 0
        if not float(relative.max()) > target:  # NaN ends the loop too
            return squares
        level += 1
        count = math.ceil(PILOT * GROWTH**level) - len(squares)
        squares = torch.cat([squares, _draw_probes(linear, template, noise_std, rng, count)])


def _draw_probes(
    linear: Linearized, template: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator, count: int
) -> Tensor:
    """Return squared norms of ``J^T u`` for each record, one row for each of ``count`` draws of u."""
    pulled = (linear.pull(standard_normal_weights(template, noise_std, rng)) for _ in range(count))
    squares = torch.stack(
        [change.reshape(len(change), -1).square().sum(1) for change in track(pulled, "Probes", total=count)]
    )
    return _check_finite(squares)


def _check_finite(squares: Tensor) -> Tensor:
    if not bool(squares.isfinite().all()):
        raise InvalidInput(
            "Expected a release with finite derivatives at the records. "
            "Check the model for roots, logarithms or norms at zero, or pass inputs.double()."
        )
    return squares


def _basis(coordinates: Tensor, inputs: Tensor) -> Tensor:
    """Return unit changes of single coordinates, in the shape of all records."""
    tangents = inputs.new_zeros(len(coordinates), inputs.numel())
    tangents[torch.arange(len(coordinates)), coordinates] = 1
    return tangents.reshape(-1, *inputs.shape)
