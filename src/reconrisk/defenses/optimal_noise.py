"""Optimal noise of chen2025, with the largest error bound for its cost in utility, and equal noise at the same cost.

A :class:`NoiseBudget` states the amount of noise by its cost; a :class:`TargetBound` by the error bound to reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.defenses.clipping import NoiseScales, clip
from reconrisk.defenses.noise import LaplaceNoise, NoisyRelease, ParameterNoise
from reconrisk.releases.sensitivity.moments import ReferenceMoments

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.families import Reference


@dataclass(frozen=True)
class TargetBound:
    r"""Lower bound on the mean squared error to reach, for a record with a known prior information.

    .. math:: \mathrm{mse} = \frac d{\mathrm{tr}\, E I / B^2 + d P}

    Here I is the Fisher information in the gradient of one record, E the mean over records; the attributes name d, P
    and B.

    Attributes:
        mse: Requested lower bound on the mean squared error per coordinate.
        prior_information: Largest eigenvalue P of the Fisher information of the prior.
        dimension: Number of coordinates d of a record.
        batch_size: Number B of records whose gradients are averaged in the release.

    Guarantee: none, because the moments are estimates. The bound is
    :func:`reconrisk.bounds.bayesian_mse_lower_bound` with an upper limit of the trace.
    Reference: Theorem 3.2, chen2025.

    >>> TargetBound(mse=0.02, prior_information=30.0, dimension=100).trace
    2000.0
    """

    mse: float
    prior_information: float
    dimension: int
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_positive("mse", self.mse)
        check_positive("prior_information", self.prior_information)
        check_whole("dimension", self.dimension)
        check_whole("batch_size", self.batch_size)
        if self.mse * self.prior_information >= 1:  # the bound never exceeds 1/P, that of the prior alone
            most = 1 / self.prior_information
            # the bound of the prior alone is reached only by infinite noise; 99 % of it is a practical suggestion
            remedy = f"Pass at most {0.99 * most:.4g}."
            raise invalid_input(
                "mse", self.mse, f"< {most:.4g}, which is 1 / prior_information, the bound without any release", remedy
            )

    @property
    def trace(self) -> float:
        """Largest expected trace of the Fisher information in one record's gradient that satisfies the bound."""
        # solves the equation of the bound for tr E I
        return self.batch_size**2 * self.dimension * (1 / self.mse - self.prior_information)

    def __str__(self) -> str:
        """Return the error and the prior information."""
        return f"mse {self.mse:g} at prior information {self.prior_information:g}"


@dataclass(frozen=True)
class NoiseBudget:
    """Amount of noise, stated by exactly one of five quantities.

    Attributes:
        utility_loss: Expected second-order decrease of utility, minus U2 of :func:`optimal_noise`.
        noise_norm: Frobenius norm of the noise covariance.
        like: Standard deviation of the equal noise with the same U2.
        unit: Square root of the harmonic mean of the noise variances.
        target: Lower bound on the mean squared error to reach.
    """

    utility_loss: float | None = None
    noise_norm: float | None = None
    like: float | None = None
    unit: float | None = None
    target: TargetBound | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            passed = " and ".join(given) or "nothing"
            raise InvalidInput(
                f"Expected exactly one of {', '.join(field.name for field in fields(self))}, got {passed}. Pass "
                "one of them."
            )
        if self.target is None:
            check_positive(given[0], getattr(self, given[0]))

    def factor(
        self, shape: Mapping[str, Tensor], square: Mapping[str, Tensor], sensitivity: Mapping[str, Tensor]
    ) -> float:
        """Return the factor that scales variances of a known shape to the budget.

        Args:
            shape: Variances up to a common factor, by name.
            square: Mean squared gradients E g^2, by name.
            sensitivity: Mean squared derivatives of the gradients by the record, by name.

        Returns:
            Positive factor; variances ``factor * shape`` use exactly the budget.
        """
        # each quantity is proportional, or inversely proportional, to the factor: one division solves for it
        cost = sum(float((shape[name] * square[name]).sum()) for name in shape)
        if self.utility_loss is not None:
            return self.utility_loss / cost
        if self.like is not None:
            # U2 of equal noise with this standard deviation
            return self.like**2 * sum(float(value.sum()) for value in square.values()) / cost
        if self.noise_norm is not None:
            return self.noise_norm / math.sqrt(sum(float(value.square().sum()) for value in shape.values()))
        if self.unit is not None:
            # harmonic mean of the variances
            count = sum(value.numel() for value in shape.values())
            return self.unit**2 * sum(float((1 / value).sum()) for value in shape.values()) / count
        trace = sum(float((sensitivity[name] / shape[name]).sum()) for name in shape)
        return trace / self.target.trace if self.target is not None else math.nan

    def __str__(self) -> str:
        """Return the setting as it is written in code."""
        if self.target is not None:
            return f"target={self.target}"
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name}={value:g}" for name, value in settings.items() if value is not None)


SMALLEST_GRADIENT = 1e-6
"""Constant c of chen2025, appendix B: smaller root mean squares of a gradient count as this value."""

_SENSITIVITY_FLOOR = 1e-12  # times the mean sensitivity: also a value that no record influences gets some noise


def optimal_noise(
    moments: ReferenceMoments,
    *,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    like: float | None = None,
    unit: float | None = None,
    target: TargetBound | None = None,
    smallest_gradient: float = SMALLEST_GRADIENT,
) -> ParameterNoise:
    r"""Independent noise with the largest bound on the reconstruction error for its cost in utility.

    .. math:: \Sigma_{ii} = \lambda \sqrt{\frac{E|\nabla_x g_i|^2}{E g_i^2}}, \qquad
              -U_2 = \sum_i \Sigma_{ii} E g_i^2

    Here :math:`\Sigma_{ii}` is the variance of the noise on value i of the gradient g, x is a record, and E is the mean
    over public records. The factor :math:`\lambda` scales the noise to the budget.

    Pass exactly one of ``utility_loss``, ``noise_norm``, ``like``, ``unit`` and ``target``.

    Args:
        moments: Moments of gradients over public records, from ``rr.sensitivity.reference_moments``.
        utility_loss: Expected second-order decrease of utility, :math:`-U_2`.
        noise_norm: Frobenius norm of the covariance, the noise scale of the paper.
        like: Standard deviation of the equal noise with the same :math:`U_2`.
        unit: Square root of the harmonic mean of the variances. After ``clip(C)`` it is the noise multiplier times C.
        target: Lower bound on the mean squared error to reach.
        smallest_gradient: Smaller root mean squares of a gradient are replaced by this value, which limits the noise
            (appendix B).

    Returns:
        The configured defense. Its ``mechanism`` is None; ``clip(C) >> optimal_noise(...)`` is a Gaussian mechanism.

    Raises:
        InvalidInput: If not exactly one budget is given, a number is not above zero, or no gradient depends on
            a record.

    Assumes: ``moments`` of public or reference records. Then the scales carry no information about private ones.
    Guarantee: among all independent noises of equal U2 it has the smallest expected trace of the Fisher information, on
    which the bound depends.
    Edge cases: values that do not depend on the record get almost no noise.
    Reference: Theorem 3.5, chen2025; its Algorithm 1 squares the numerator only, which is worse.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(4.0, 1.0), mean(0.0, 0.0), mean(1.0, 1.0), records=1, probes=1)
    >>> optimal_noise(moments, utility_loss=3.0).scales.stds["w"].square().round(decimals=4)
    tensor([2., 1.])
    """
    budget = NoiseBudget(utility_loss, noise_norm, like, unit, target)
    stds = optimal_stds(moments, budget, smallest_gradient)
    return ParameterNoise(NoiseScales(stds), f"optimal_noise({budget})")


def optimal_stds(
    moments: ReferenceMoments, budget: NoiseBudget, smallest_gradient: float = SMALLEST_GRADIENT
) -> dict[str, Tensor]:
    """Return the standard deviations of the optimal noise.

    Args:
        moments: Moments of gradients over the reference records.
        budget: Amount of noise.
        smallest_gradient: Smaller root mean squares of a gradient are replaced by this value.

    Returns:
        Standard deviations by parameter name, in the precision of the moments.

    Raises:
        InvalidInput: If ``smallest_gradient`` is not above zero, or no gradient depends on the records.
    """
    floor = check_positive("smallest_gradient", smallest_gradient) ** 2
    square = {name: value.double().clamp_min(floor) for name, value in moments.square.items()}
    sensitivity = _apply_floor(moments.sensitivity)
    # variances of Theorem 3.5 up to lambda, which the budget determines
    shape = {name: (sensitivity[name] / square[name]).sqrt() for name in square}
    factor = budget.factor(shape, square, sensitivity)
    return {name: (factor * value).sqrt().to(moments.square[name]) for name, value in shape.items()}


def equal_noise(
    moments: ReferenceMoments,
    *,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    target: TargetBound | None = None,
    law: Literal["gaussian", "laplace"] = "gaussian",
) -> NoisyRelease | LaplaceNoise:
    r"""Noise of one standard deviation, scaled to a budget, for comparison with :func:`optimal_noise`.

    .. math:: -U_2 = \sigma^2 \sum_i E g_i^2, \qquad \mathrm{tr}\, E I = \frac c{\sigma^2} \sum_i E|\nabla_x g_i|^2

    Here :math:`\sigma` is the standard deviation of the noise, g the gradient, x a record, I the Fisher information and
    E the mean over public records. The factor c is 1 for Gaussian and 2 for Laplacian noise. Pass exactly one of
    ``utility_loss``, ``noise_norm`` and ``target``.

    Args:
        moments: Moments of gradients over public records, from ``rr.sensitivity.reference_moments``.
        utility_loss: Expected second-order decrease of utility, :math:`-U_2`.
        noise_norm: Frobenius norm of the covariance.
        target: Lower bound on the mean squared error to reach.
        law: Distribution of the noise, ``"gaussian"`` or ``"laplace"``.

    Returns:
        The configured defense.

    Raises:
        InvalidInput: If not exactly one budget is given, ``law`` is unknown, or no gradient depends on the records.

    Assumes: the same as :func:`optimal_noise`.
    Reference: Section 3.2, chen2025; Table 7, meng2025, for Laplacian noise.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(4.0, 1.0), mean(0.0, 0.0), mean(1.0, 1.0), records=1, probes=1)
    >>> print(equal_noise(moments, utility_loss=3.0))
    gaussian_noise(std=1.22474)
    """
    budget = NoiseBudget(utility_loss, noise_norm, target=target)
    if law not in ("gaussian", "laplace"):
        raise invalid_input("law", law, 'to be "gaussian" or "laplace"')
    square = {name: value.double() for name, value in moments.square.items()}
    # Fisher information of location at variance 1: 1 for a normal variable, 2 for a Laplacian one
    information = 2 if law == "laplace" else 1
    sensitivity = {name: information * value for name, value in _apply_floor(moments.sensitivity).items()}
    std = budget.factor({name: torch.ones_like(value) for name, value in square.items()}, square, sensitivity) ** 0.5
    return LaplaceNoise(std) if law == "laplace" else NoisyRelease(std)


def _apply_floor(sensitivity: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return sensitivities in double precision, all above zero, so that every value gets some noise."""
    count = sum(value.numel() for value in sensitivity.values())
    mean = sum(float(value.double().sum()) for value in sensitivity.values()) / count
    if not mean > 0:
        raise InvalidInput("Expected gradients that depend on the records, found none. Check the model and its loss.")
    return {name: value.double().clamp_min(_SENSITIVITY_FLOOR * mean) for name, value in sensitivity.items()}


def optimal_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the optimal noise of a level.

    Args:
        reference: Public records, whose moments shape the noise.
        level: Standard deviation of the equal noise with the same utility U2.

    Returns:
        The defense and the call that makes it.
    """
    return optimal_noise(reference.moments, like=level), f"rr.defenses.optimal_noise(moments, like={level:g})"


def clip_and_optimal_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the optimal noise of a level after a clip in the matching norm.

    Args:
        reference: Public records, whose moments shape the noise and whose updates set the clip norm.
        level: Standard deviation of the equal noise with the same utility U2.

    Returns:
        The defense and the call that makes it.
    """
    norm = reference.matching_clip_norm
    code = f"rr.defenses.clip({norm:g}) >> rr.defenses.optimal_noise(moments, like={level:g})"
    return clip(norm) >> optimal_noise(reference.moments, like=level), code
