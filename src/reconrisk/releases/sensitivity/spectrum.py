"""The largest eigenvalues of the information about a record, and the directions that leak most, by block Lanczos.

Lanczos is written out because its certificate needs all of one Krylov space from a random start. Restarted libraries
(ARPACK) discard it, and a single start vector misses the copies of a multiple eigenvalue, which linear models have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy.special import betaincinv
from torch import Tensor

from reconrisk.core.progress import track
from reconrisk.core.validation import check_positive, check_real, check_whole, invalid_input
from reconrisk.releases.release import Linearized, NoiseStd, Release, directions_rng, noise_stds, whiten_by_noise

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest eigenvalues of the information about each record, in descending order, with their directions.

    Attributes:
        records: Rows of the records.
        values: Lower limits of the eigenvalues, (records, count). In a bound on the error they give a result that is
            too high.
        directions: Unit vectors, (records, count, *shape).
        residuals: Distance from each value within which an eigenvalue is certain to lie, absolute, (records, count).
        upper_limit: Upper limit of the largest eigenvalue of each record, (records,). Use this one in bounds.
        confidence: Probability of ``upper_limit`` over the random start, for each record by itself.
    """

    records: tuple[int, ...]
    values: Tensor
    directions: Tensor
    residuals: Tensor
    upper_limit: Tensor
    confidence: float


def spectral_norm(
    release: Release,
    *,
    noise_std: NoiseStd = None,
    relative_error: float = 0.05,
    confidence: float = 0.999,
    records: Sequence[int] | None = None,
    rng: torch.Generator | None = None,
) -> Spectrum:
    r"""Return the largest eigenvalue of the information about each record, between a lower and a certified upper limit.

    .. math:: \theta \le \lambda_{\max}(J_i^T \Sigma^{-1} J_i) \le \theta / (1 - \epsilon)

    Here :math:`J_i` is the derivative with respect to record i, :math:`\Sigma` the noise covariance, :math:`\theta` is
    ``values``, the right side is ``upper_limit``, and :math:`\epsilon` is ``relative_error``. One step is a product
    with J and one with its transpose. About log(sqrt(size of a record)/(1 - confidence))/(2 sqrt(epsilon)) steps are
    needed per record.

    Args:
        release: Private records with their forward map.
        noise_std: Standard deviation of the Gaussian noise, as for :func:`fisher_trace`; None for standard deviation 1.
        relative_error: Largest relative gap between the two limits (:math:`\epsilon`).
        confidence: Probability of the upper limit, for each record by itself.
        records: Rows of the records of interest; by default all.
        rng: Generator of the random start; by default the same start is drawn each time.

    Returns:
        One eigenvalue per record, with its direction and upper limit.

    Raises:
        InvalidInput: If a setting is out of range.

    Assumes: the other records are known; Gaussian noise of standard deviation ``noise_std``; exact products (rounding
    adds its own relative error: use double inputs if it matters).
    Guarantee: a lower bound on the error that uses ``upper_limit`` holds with probability ``confidence``; one that uses
    ``values`` may be too high.
    Edge cases: an information of zero gives 0 and 0.
    Reference: after Kuczynski and Wozniakowski (SIAM J. Matrix Anal. Appl. 13, 1992), with the exact law of
    the random start instead of a bound on it.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> scale = ForwardRelease(lambda inputs, labels: {"y": 3 * inputs}, torch.ones(1, 4).double(), torch.zeros(1))
    >>> round(float(spectral_norm(scale).values), 6)
    9.0
    """
    relative_error = check_positive("relative_error", relative_error)
    if relative_error >= 1:
        raise invalid_input("relative_error", relative_error, "< 1")
    size = release.inputs[0].numel()
    angle = _start_angle(size, 1, _check_confidence(confidence))
    # Solves cosh^2(angle / (2k - 1)) <= 1 / (1 - epsilon) for the number of steps k; see _start_angle.
    steps = math.ceil((angle / math.atanh(math.sqrt(relative_error)) + 1) / 2)
    return _spectrum(release, noise_std, _LanczosPlan(1, steps, steps, 0.0, confidence), records, rng)


def top_directions(
    release: Release,
    count: int = 1,
    *,
    noise_std: NoiseStd = None,
    tolerance: float = 1e-3,
    max_steps: int = 50,
    confidence: float = 0.999,
    records: Sequence[int] | None = None,
    rng: torch.Generator | None = None,
) -> Spectrum:
    """Return the directions of each record about which the release carries most information.

    Args:
        release: Private records with their forward map.
        count: Number of directions per record.
        noise_std: Standard deviation of the Gaussian noise, as for :func:`fisher_trace`; None for standard deviation 1.
        tolerance: Stop when every residual is at most this share of the largest eigenvalue.
        max_steps: Largest number of steps, each of ``count`` products with J and its transpose. If it is reached, check
            ``residuals``.
        confidence: Probability of the upper limit, for each record by itself.
        records: Rows of the records of interest; by default all.
        rng: Generator of the random start; by default the same start is drawn each time.

    Returns:
        The largest eigenvalues of each record's information, with their directions.

    Raises:
        InvalidInput: If a setting is out of range.

    Assumes: as :func:`spectral_norm`.
    Guarantee: the directions of a record are orthonormal; eigenvalues up to ``count``-fold are found with their copies.
    Edge cases: an information of rank below ``count`` gives zeros and arbitrary directions for the rest.

    >>> from reconrisk.releases.release import ForwardRelease
    >>> weights = torch.tensor([1.0, 5.0, 2.0]).double()
    >>> forward = lambda inputs, labels: {"y": inputs * weights}
    >>> release = ForwardRelease(forward, torch.ones(1, 3).double(), torch.zeros(1))
    >>> found = top_directions(release, 2, noise_std=0.5)
    >>> found.values.round(decimals=4), found.directions[0, 0].abs().argmax()
    (tensor([[100.,  16.]], dtype=torch.float64), tensor(1))
    """
    size = release.inputs[0].numel()
    count = check_whole("count", count)
    if count > size:
        raise invalid_input("count", count, f"<= {size}, the size of a record")
    tolerance = check_positive("tolerance", tolerance)
    plan = _LanczosPlan(count, 1, check_whole("max_steps", max_steps), tolerance, _check_confidence(confidence))
    return _spectrum(release, noise_std, plan, records, rng)


@dataclass(frozen=True)
class _LanczosPlan:
    """Block size, numbers of steps and stopping rule of one block Lanczos run."""

    count: int
    min_steps: int
    max_steps: int
    tolerance: float
    confidence: float


@dataclass(frozen=True, eq=False)
class _KrylovSpace:
    """Ritz pairs of one Krylov space; ``complete`` if it is invariant, so that its largest eigenvalue is exact."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    steps: int
    complete: bool

    def headroom(self, angle: float) -> float:
        """Return the largest possible ratio of the largest eigenvalue to the largest Ritz value."""
        return 1.0 if self.complete else math.cosh(angle / (2 * self.steps - 1)) ** 2


def _spectrum(
    release: Release,
    noise_std: NoiseStd,
    plan: _LanczosPlan,
    records: Sequence[int] | None,
    rng: torch.Generator | None,
) -> Spectrum:
    """Run block Lanczos for each chosen record and collect the results."""
    generator, count = directions_rng(rng), len(release.inputs)
    if records is None:
        records = range(count)
    chosen = tuple(check_whole("records", record, minimum=0) for record in records)
    if not chosen or max(chosen) >= count:
        raise invalid_input(
            "records", list(records), f"to be indices from 0 to {count - 1}, the records of the release"
        )
    noise_stds(release.template(), noise_std)
    found: dict[int, _KrylovSpace] = {}
    for record, product in track(_products(release, noise_std), "spectrum", total=count):
        if record in chosen:
            found[record] = _block_lanczos(product, release.inputs, plan, generator)
    angle = _start_angle(release.inputs[0].numel(), plan.count, plan.confidence)
    spaces = [found[record] for record in chosen]
    return Spectrum(
        chosen,
        torch.stack([space.values for space in spaces]),
        torch.stack([space.vectors.T for space in spaces]).reshape(-1, plan.count, *release.inputs.shape[1:]),
        torch.stack([space.residuals for space in spaces]),
        torch.stack([space.values[0] * space.headroom(angle) for space in spaces]),
        plan.confidence,
    )


def _products(release: Release, noise_std: NoiseStd) -> Iterator[tuple[int, Product]]:
    """Yield each record's row with its map from v to J_i^T Sigma^-1 J_i v, where Sigma is the noise covariance."""
    record = 0
    for block in release.blocks(size=1):
        for row in range(len(block.records)):
            yield record, partial(_product, block, row, noise_std)
            record += 1


def _product(linear: Linearized, row: int, noise_std: NoiseStd, vector: Tensor) -> Tensor:
    """Return J_i^T Sigma^-1 J_i v for the record in ``row`` of a group of records."""
    tangents = torch.zeros_like(linear.records)
    tangents[row] = vector.reshape(tangents.shape[1:]).to(tangents.dtype)
    # Whitening twice applies Sigma^-1 between J and J^T.
    pushed = whiten_by_noise(whiten_by_noise(linear.push(tangents), noise_std), noise_std)
    return linear.pull(pushed)[row].flatten().double()


def _block_lanczos(product: Product, like: Tensor, plan: _LanczosPlan, rng: torch.Generator) -> _KrylovSpace:
    """Run Rayleigh-Ritz on span{V, AV, A^2 V, ...} for a random normal matrix V, where A is the information."""
    size, rounding = like[0].numel(), torch.finfo(like.dtype).eps
    start = torch.randn((size, plan.count), generator=rng, dtype=torch.float64, device=rng.device).to(like.device)
    basis, images = like.new_zeros((size, 0), dtype=torch.float64), like.new_zeros((size, 0), dtype=torch.float64)
    block, steps = torch.linalg.qr(start)[0], 0
    while True:
        image = torch.stack([product(vector) for vector in block.T], dim=1)
        basis, images, steps = torch.cat([basis, block], 1), torch.cat([images, image], 1), steps + 1
        projected = basis.T @ images  # the full projection is stable, a three-term recurrence is not
        values, mix = torch.linalg.eigh((projected + projected.T) / 2)
        top = mix.flip(1)[:, : plan.count]
        residuals = torch.linalg.vector_norm(images @ top - basis @ top * values.flip(0)[: plan.count], dim=0)
        scale = float(values[-1])
        # Directions shorter than the rounding of a product of this size are noise, and the space is invariant.
        block = _new_directions(image, basis, rounding * math.sqrt(size) * scale)
        settled = steps >= plan.min_steps and bool((residuals <= plan.tolerance * scale).all())
        if block.shape[1] == 0 or settled or steps >= plan.max_steps:
            clipped = values.flip(0)[: plan.count].clamp(min=0)  # rounding may make a zero eigenvalue negative
            return _KrylovSpace(clipped, basis @ top, residuals, steps, block.shape[1] == 0)


def _new_directions(image: Tensor, basis: Tensor, threshold: float) -> Tensor:
    """Return an orthonormal basis of the part of ``image`` outside ``basis``; empty if that is rounding."""
    for _ in range(2):  # once loses orthogonality, twice is enough (Parlett, The Symmetric Eigenvalue Problem, 6.9)
        image = image - basis @ (basis.T @ image)
    left, sizes, _ = torch.linalg.svd(image, full_matrices=False)
    room = basis.shape[0] - basis.shape[1]
    fresh = left[:, sizes > threshold][:, :room]
    # Once more: left singular vectors of small singular values may have lost orthogonality to the basis.
    orthonormal: Tensor = torch.linalg.qr(fresh - basis @ (basis.T @ fresh))[0]
    return orthonormal


def _start_angle(size: int, starts: int, confidence: float) -> float:
    """Return angle = arccosh(1/sqrt(s)); the largest eigenvalue is at most theta cosh^2(angle/(2k - 1)) after k steps.

    Here theta is the largest Ritz value, lambda the largest eigenvalue. With probability ``confidence``, the best of
    ``starts`` random vectors has a squared cosine above s with the top eigenvector. With p^2(x) (1 - t)/2 = sin^2((k -
    1/2) arccos t), t = 2x/((1 - eps) lambda) - 1, the Ritz value is at least (1 - eps) lambda unless the squared cosine
    s of the start is below 1/cosh^2((2k - 1) artanh sqrt(eps)).
    """
    # The squared cosine of a uniform direction is Beta(1/2, (size - 1)/2); each of the independent starts is below s
    # with probability (1 - confidence)^(1/starts).
    overlap = 1.0 if size == 1 else float(betaincinv(0.5, (size - 1) / 2, (1 - confidence) ** (1 / starts)))
    return math.acosh(1 / math.sqrt(overlap))


def _check_confidence(confidence: float) -> float:
    confidence = check_real("confidence", confidence)
    if not 0 < confidence < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)")
    return confidence
