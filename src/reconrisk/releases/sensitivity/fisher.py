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
    whitened,
)

PILOT = 16
"""Probes before their spread is looked at, so that it is known to about a fifth."""

GROWTH = 1.5
"""Factor from one number of probes to the next: the numbers are fixed, only which is the last depends on chance."""

LARGEST_MATRIX = 8192
"""Coordinates up to which a full matrix is computed: half a gigabyte in double precision."""

LARGEST_JACOBIAN = 2**27
"""Entries of a Jacobian that are held at once: half a gigabyte in single precision."""

_PUSHES = 32
"""Directions that are pushed at once: more do not run faster on few cores."""


@dataclass(frozen=True, eq=False)
class FisherTrace:
    """Traces of the Fisher information, one per record, exact or estimated from ``probes`` random directions.

    ``relative_error`` is that at which no more directions were drawn: 0 where their number was fixed beforehand.

    The values depend on private records and are private themselves (guo2022, footnote 2).
    """

    values: Tensor
    standard_errors: Tensor
    probes: int
    dimension: int
    relative_error: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether every coordinate was used instead of random directions."""
        return self.probes == 0

    @property
    def dfil(self) -> Tensor:
        """Diagonal Fisher information loss: trace divided by the dimension of a record. Its inverse bounds the MSE."""
        return self.values / self.dimension

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Limits of the trace of each record that hold with probability ``confidence``, up to a percent or two.

        The estimate is taken as a multiple of a chi-square variable of the same mean and variance, with fewer degrees
        of freedom for few probes, as Student's t has. Probes end when their spread looks small, so the spread counts
        as at least the one asked for, or that of a single direction if this is less.
        """
        tail = _tail(confidence) / 2
        if self.is_exact:
            return self.values, self.values
        student = stats.t.ppf(1 - tail, self.probes - 1) / stats.norm.ppf(1 - tail)
        relative = self.standard_errors / self.values.clamp_min(torch.finfo(self.values.dtype).tiny)
        relative = relative.clamp_min(min(self.relative_error, math.sqrt(2 / self.probes)))
        freedom = (2 / (relative * student).square().clamp_min(1e-12)).double().numpy()
        low, high = (torch.as_tensor(freedom / stats.chi2.ppf(level, freedom)) for level in (1 - tail, tail))
        return self.values * low.to(self.values), self.values * high.to(self.values)

    def upper_limit(self, confidence: float = 0.95) -> Tensor:
        r"""Traces that are exceeded with probability at most ``1 - confidence``, proved for every spectrum.

        .. math:: P\bigl(\hat t \le t (1 - 2\sqrt{\log(1/\alpha)/k})\bigr) \le \alpha

        The number of probes k is chosen after looking at some, so alpha is shared out over the numbers it could have
        been: :math:`\alpha/((j+1)(j+2))` for the j-th.
        Edge cases: infinite below about four log(1/alpha) probes; exact traces are returned as they are.
        Reference: Lemma 1, `Laurent and Massart (2000) <https://doi.org/10.1214/aos/1015957395>`_.
        """
        alpha = _tail(confidence)
        if self.is_exact:
            return self.values
        # How often the spread was looked at before these probes were enough, less one.
        level = max(0, round(math.log(self.probes / PILOT) / math.log(GROWTH)))
        share = 1 - 2 * math.sqrt(math.log((level + 1) * (level + 2) / alpha) / self.probes)
        return self.values / share if share > 0 else torch.full_like(self.values, math.inf)

    def __float__(self) -> float:
        """The trace of the only record."""
        if len(self.values) != 1:
            raise invalid_input("records", len(self.values), "to be 1", "Use .values, which has one trace per record.")
        return float(self.values)


def fisher_trace(
    release: Release,
    *,
    noise_std: NoiseStd = None,
    relative_error: float | None = None,
    rng: torch.Generator | None = None,
) -> FisherTrace:
    r"""Trace of the Fisher information of a noisy release about each record, the others known.

    .. math:: \mathrm{tr}\, I_i = \mathrm{tr}(J_i^T \Sigma^{-1} J_i) = E_u |(J^T u)_i|^2, \quad u \sim N(0, \Sigma^{-1})

    Assumes: Gaussian noise of standard deviation ``noise_std``: one number, one per parameter, or None for the
    Jacobian alone.
    Notation: with ``relative_error`` random directions are drawn until the standard error of every record's trace is
    below that part of it; one backward pass serves all records. Without it every coordinate is used: exact.
    Guarantee: unbiased; scales with the inverse square of the noise; adds over independent releases.
    Edge cases: without ``rng`` the same directions are drawn each time; a record that is not used has trace zero.
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
    r"""Fisher information about each coordinate of each record, exactly: which pixels leak, shaped as the records.

    .. math:: (I_i)_{jj} = |\Sigma^{-1/2} J_i e_j|^2

    Assumes: as :func:`fisher_trace`. Cost: one product with J for each coordinate of each record.
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
    return _finite(torch.cat(squares)).reshape(release.inputs.shape)


def fisher_matrix(release: Release, *, noise_std: NoiseStd = None, record: int | None = None) -> Tensor:
    r"""The Fisher information matrix of a noisy release about its records, or about one ``record``.

    .. math:: I = J^T \Sigma^{-1} J

    Assumes: as :func:`fisher_trace`.
    Edge cases: for several records it is that of all of them together, block i on the diagonal that of record i with
    the others known; more than 8192 coordinates are refused.
    Reference: equation 1, guo2022, with the noise's standard deviation instead of its multiplier.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> release = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(1)}, torch.ones(1, 2), torch.zeros(1))
    >>> fisher_matrix(release, noise_std=0.5)
    tensor([[4., 4.],
            [4., 4.]])
    """
    linear, coordinates = _about(release, record)
    if len(coordinates) > LARGEST_MATRIX:
        remedy = "Choose a record, or use fisher_trace or top_directions."
        raise invalid_input("coordinates", len(coordinates), f"<= {LARGEST_MATRIX}", remedy)
    template = release.template()
    if len(coordinates) * sum(tensor.numel() for tensor in template.values()) <= LARGEST_JACOBIAN:
        columns = torch.cat(list(_columns(linear, template, noise_std, coordinates)))
        return columns @ columns.T
    rows = []
    for coordinate in track(coordinates, "Fisher matrix"):
        change = linear.push(_basis(coordinate[None], linear.records)[0])
        rows.append(linear.pull(whitened(whitened(change, noise_std), noise_std)).flatten()[coordinates])
    matrix = torch.stack(rows)
    return (matrix + matrix.T) / 2


def jacobian(release: Release, *, noise_std: NoiseStd = None, record: int | None = None) -> Tensor:
    r"""The Jacobian of what is released by all records, or by one ``record``: released values x coordinates.

    .. math:: \Sigma^{-1/2} J, \qquad J = \partial f / \partial x

    Assumes: as :func:`fisher_trace`; rows in the order of the released names, flattened.
    Edge cases: more than 2^27 entries are refused.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> jacobian(ForwardRelease(lambda inputs, labels: {"y": inputs.sum(1)}, torch.ones(1, 2), torch.zeros(1)))
    tensor([[1., 1.]])
    """
    linear, coordinates = _about(release, record)
    template = release.template()
    size = len(coordinates) * sum(tensor.numel() for tensor in template.values())
    if size > LARGEST_JACOBIAN:
        raise invalid_input("entries", size, f"<= {LARGEST_JACOBIAN}", "Choose a record, or use release.linearized().")
    return torch.cat(list(_columns(linear, template, noise_std, coordinates))).T


def _about(release: Release, record: int | None) -> tuple[Linearized, Tensor]:
    """The derivative, or its smallest part that holds ``record``, and the coordinates of interest in it."""
    count, width = len(release.inputs), release.inputs[0].numel()
    if record is not None and not 0 <= check_whole("record", record, minimum=0) < count:
        raise invalid_input("record", record, f"< {count}, the number of records")
    if record is None:
        return release.linearized(), torch.arange(release.inputs.numel())
    for block in release.blocks(size=1):
        if record < len(block.records):
            break
        record -= len(block.records)
    return block, torch.arange(record * width, (record + 1) * width)


def _tail(confidence: float) -> float:
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)")
    return 1 - confidence


def _columns(
    linear: Linearized, template: Mapping[str, Tensor], noise_std: NoiseStd, coordinates: Tensor
) -> Iterator[Tensor]:
    """Columns of the whitened Jacobian as rows of matrices, for some coordinates of the flat records at a time."""
    size, stds = sum(tensor.numel() for tensor in template.values()), noise_stds(template, noise_std)
    together = max(1, min(_PUSHES, LARGEST_JACOBIAN // (4 * size)))
    for part in coordinates.split(together):
        moved = _pushed(linear, _basis(part, linear.records))
        yield torch.cat([(moved[name] / stds[name]).reshape(len(part), -1) for name in template], dim=1)


def _pushed(linear: Linearized, tangents: Tensor) -> dict[str, Tensor]:
    """Products with several directions at once; one after the other where a layer has no batched derivative."""
    try:
        moved: dict[str, Tensor] = torch.func.vmap(linear.push)(tangents)
    except RuntimeError:
        single = [linear.push(tangent) for tangent in tangents]
        moved = {name: torch.stack([change[name] for change in single]) for name in single[0]}
    return moved


def _probe_until(
    target: float, linear: Linearized, template: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator
) -> Tensor:
    """Squared norms of ``J^T u``, from as many draws as bring each record's relative standard error to ``target``."""
    squares = _probe(linear, template, noise_std, rng, PILOT)
    level = 0
    while True:
        errors = squares.std(0) / math.sqrt(len(squares))
        relative = torch.where(errors > 0, errors / squares.mean(0), 0.0)  # zero where everything is zero
        if not float(relative.max()) > target:
            return squares
        level += 1
        count = math.ceil(PILOT * GROWTH**level) - len(squares)
        squares = torch.cat([squares, _probe(linear, template, noise_std, rng, count)])


def _probe(
    linear: Linearized, template: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator, count: int
) -> Tensor:
    """Squared norms of ``J^T u`` for each record, one row for each of ``count`` draws of u."""
    pulled = (linear.pull(standard_normal_weights(template, noise_std, rng)) for _ in range(count))
    squares = torch.stack(
        [change.reshape(len(change), -1).square().sum(1) for change in track(pulled, "Probes", total=count)]
    )
    return _finite(squares)


def _finite(squares: Tensor) -> Tensor:
    if not bool(squares.isfinite().all()):
        raise InvalidInput(
            "Expected a release with finite derivatives at the records. "
            "Check the model for roots, logarithms or norms at zero, or pass inputs.double()."
        )
    return squares


def _basis(coordinates: Tensor, inputs: Tensor) -> Tensor:
    """Unit changes of single coordinates of all records together."""
    tangents = inputs.new_zeros(len(coordinates), inputs.numel())
    tangents[torch.arange(len(coordinates)), coordinates] = 1
    return tangents.reshape(-1, *inputs.shape)
