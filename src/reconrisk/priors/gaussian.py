"""Gaussian priors: records that are jointly normal, so that the posterior has a closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import (
    check_all_finite,
    check_all_within,
    check_nonnegative,
    check_not_empty,
    invalid_input,
)
from reconrisk.priors.diffusion import DiffusionPrior, NoiseSchedule, check_schedule, linear_schedule
from reconrisk.priors.network import as_tensor, check_range, rescale_range
from reconrisk.priors.prior import BasePrior
from reconrisk.priors.registry import GAUSSIAN

LARGEST_COVARIANCE = 4096
"""Largest number of values of a record whose covariance is fitted: it takes 128 MB and half a minute."""

_ROUNDING = 1e-9  # of the largest variance: rounding may leave an eigenvalue this far below 0


@dataclass(frozen=True, eq=False)
class GaussianPrior(BasePrior):
    """Records distributed as :math:`N(m, S)`, in the units of the data.

    Attributes:
        mean: Mean m, in the shape of a record.
        directions: Orthonormal directions (d, k); records do not vary along any other.
        variances: Variances (k,) along these directions, in squared units of the data.
        data_range: Range of the values of records.
        schedule: Noise at each time, for the same prior as a denoiser.
        name: Name in reports.
    """

    kind: ClassVar[str] = GAUSSIAN

    mean: Tensor = field(repr=False)
    directions: Tensor = field(repr=False)
    variances: Tensor = field(repr=False)
    data_range: tuple[float, float] = (0.0, 1.0)
    schedule: NoiseSchedule = field(default_factory=linear_schedule, repr=False)
    name: str = "gaussian"

    def __post_init__(self) -> None:
        check_range("data_range", self.data_range)
        check_schedule(self.schedule)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a record."""
        return tuple(self.mean.shape)

    @property
    def fingerprint(self) -> str:
        """Digest of its denoiser: attacks use either form, and the distribution is the same."""
        return self.diffusion.fingerprint

    @cached_property
    def root(self) -> Tensor:
        """Matrix L (d, k) with L L^T = S: a record is the mean plus L times standard normal values."""
        scaled: Tensor = self.directions * self.variances.sqrt()
        return scaled

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw ``count`` records."""
        drawn = torch.randn(count, len(self.variances), generator=rng, dtype=torch.float64, device=rng.device)
        records: Tensor = self.mean + (drawn.to(self.root) @ self.root.T).unflatten(1, self.shape)
        return records

    def time_pass(self) -> float:
        """Measure the seconds of one pass of its denoiser, derivative included."""
        return self.diffusion.time_pass()

    def scaled_to(self, data_range: tuple[float, float]) -> GaussianPrior:
        """Return the same prior for records in another range."""
        check_range("data_range", data_range)
        scale = (data_range[1] - data_range[0]) / (self.data_range[1] - self.data_range[0])
        mean = rescale_range(self.mean, self.data_range, data_range)
        return replace(self, mean=mean, variances=self.variances * scale**2, data_range=data_range)

    @cached_property
    def diffusion(self) -> DiffusionPrior:
        r"""The same prior as a denoiser, which is linear and exact.

        .. math:: E[x_0 \mid x_t] = m + \sqrt{\bar\alpha} S (\bar\alpha S + (1 - \bar\alpha) I)^{-1}
            (x_t - \sqrt{\bar\alpha} m)
        """
        low, high = self.data_range
        scale = 2 / (high - low)  # the denoiser works in units of -1 to 1
        mean = (scale * (self.mean - low) - 1).flatten()
        variances = self.variances * scale**2

        def predict_noise(noisy: Tensor, times: Tensor) -> Tensor:
            share = self.schedule.shares(times, noisy.flatten(1))
            vectors, centre, spread = self.directions.to(noisy), mean.to(noisy), variances.to(noisy)
            left = noisy.flatten(1) - share.sqrt() * centre
            # Wiener filter along the principal directions; all other directions have no variance
            gain = share.sqrt() * spread / (share * spread + 1 - share)
            clean = centre + (gain * (left @ vectors)) @ vectors.T
            noise: Tensor = ((noisy.flatten(1) - share.sqrt() * clean) / (1 - share).sqrt()).unflatten(1, self.shape)
            return noise

        return DiffusionPrior(self.name, self.shape, predict_noise, self.schedule, self.data_range, mean=self.mean)


def gaussian(
    mean: Tensor,
    covariance: Tensor,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    schedule: NoiseSchedule | None = None,
    name: str = "gaussian",
) -> GaussianPrior:
    r"""Build the prior of jointly normal records.

    .. math:: x \sim N(m, S)

    Here m is the mean and S the covariance of a record x. ``prior.draw(count, rng)`` draws records.

    Args:
        mean: Mean in the shape of a record and the units of the data, as a tensor or a NumPy array.
        covariance: Covariance (d, d).
        data_range: Range of the values of records.
        schedule: Noise at each time, by default :func:`linear_schedule`.
        name: Name in reports.

    Returns:
        The prior.

    Raises:
        InvalidInput: If the covariance has another shape than (d, d), is not symmetric, or has a negative eigenvalue.

    Guarantee: a covariance that is not symmetric, or has a negative variance beyond rounding, is refused.
    Reference: the linear case in which the posterior of a Gaussian release is known, chapter 2.3, Bishop (2006).

    >>> gaussian(torch.zeros(2), torch.eye(2)).draw(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """
    mean, covariance = as_tensor("mean", mean), as_tensor("covariance", covariance)
    check_all_finite("mean", mean)
    check_all_finite("covariance", covariance)
    check_not_empty("mean", mean)
    size = mean.numel()
    if tuple(covariance.shape) != (size, size):
        raise invalid_input(
            "covariance.shape", tuple(covariance.shape), f"to be {(size, size)}, since the mean has {size} values"
        )
    matrix = covariance.double()
    if not torch.allclose(matrix, matrix.T, atol=_ROUNDING * float(matrix.abs().max())):
        raise InvalidInput("Expected covariance to be symmetric. Pass (covariance + covariance.T) / 2.")
    variances, directions = torch.linalg.eigh(matrix)
    if float(variances[0]) < -_ROUNDING * max(float(variances[-1]), math.ulp(0.0)):
        least = f"an eigenvalue of {float(variances[0]):.3g}"
        raise InvalidInput(
            f"Expected covariance to be positive semidefinite, it has {least}. Pass the covariance of records."
        )
    known = linear_schedule() if schedule is None else schedule
    return GaussianPrior(mean.double(), directions, variances.clamp_min(0), data_range, known, name)


def fit_gaussian(
    records: Tensor,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    floor: float = 1e-3,
    schedule: NoiseSchedule | None = None,
    name: str = "gaussian",
) -> GaussianPrior:
    r"""Fit a normal distribution to records.

    .. math:: m = \bar x, \qquad S = \tfrac{1}{n} \sum_i (x_i - m)(x_i - m)^T + (f w)^2 I

    Here :math:`x_i` is record i of n, and :math:`\bar x` the mean of all records.

    Args:
        records: Public records (n, \*shape), as a tensor or a NumPy array; the prior is on their device.
        data_range: Range of the values of records.
        floor: Standard deviation f that is added to every direction, as a share of the width w of the data range. It
            keeps directions possible that the sample does not show.
        schedule: Noise at each time, by default :func:`linear_schedule`.
        name: Name in reports.

    Returns:
        The prior with the mean and covariance of the records.

    Raises:
        InvalidInput: If there are no records, they are outside ``data_range``, or ``floor`` is negative.

    Assumes: the records are public. A prior fitted to private records releases their mean and covariance.
    Reference: chapter 2.3, Bishop (2006).

    >>> prior = fit_gaussian(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> prior.mean.tolist(), [round(v, 4) for v in prior.variances.tolist()]
    ([0.5, 0.5], [0.0, 0.5])
    """
    check_range("data_range", data_range)
    records = as_tensor("records", records)
    check_not_empty("records", records)
    check_all_within("records", records, data_range, "Pass the public range of the values as data_range.")
    check_nonnegative("floor", floor)
    if records.ndim < 2:
        raise invalid_input(
            "records.shape", tuple(records.shape), "to be (records, *shape of a record)", "Pass one record per row."
        )
    flat = records.double().flatten(1)
    mean = flat.mean(0)
    centred = flat - mean
    # variance of the floor, in the units of the data
    least = (floor * (data_range[1] - data_range[0])) ** 2
    covariance = centred.T @ centred / len(flat) + least * torch.eye(flat.shape[1]).to(flat)
    return gaussian(mean.reshape(records.shape[1:]), covariance, data_range=data_range, schedule=schedule, name=name)
