"""Noise that protects most at a given cost in utility, and equal noise at the same cost (chen2025).

A :class:`NoiseBudget` or :class:`TargetBound` says how much noise: by its cost, or by what it must achieve.
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
    r"""A mean squared error that no estimate may stay below, for a record with a prior of this information.

    .. math:: \mathrm{mse} = \frac d{\mathrm{tr}\, E I / B^2 + d P}

    ``prior_information`` P is the largest eigenvalue of the prior's information, ``dimension`` d that of a record,
    ``batch_size`` B the number of records whose gradients are averaged in what is released.

    Guarantee: none by itself: the moments are estimates. :func:`reconrisk.bounds.bayesian_mse_lower_bound` with an upper limit
    of the trace is the bound.
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
        if self.mse * self.prior_information >= 1:
            most = 1 / self.prior_information
            remedy = f"Without any release the bound is {most:.4g}; noise comes as near to it as {0.99 * most:.4g}."
            raise invalid_input("mse", self.mse, "to be below 1 / prior_information", remedy)

    @property
    def trace(self) -> float:
        """The largest expected trace of the information of one record's gradient that leaves the bound."""
        return self.batch_size**2 * self.dimension * (1 / self.mse - self.prior_information)

    def __str__(self) -> str:
        """The error and the prior."""
        return f"mse {self.mse:g} at prior information {self.prior_information:g}"


@dataclass(frozen=True)
class NoiseBudget:
    """What noise is scaled to: exactly one of its second-order cost, its norm, equal noise, its unit, or a bound."""

    utility_loss: float | None = None
    noise_norm: float | None = None
    like: float | None = None
    unit: float | None = None
    target: TargetBound | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            stated = " and ".join(given) or "nothing"
            raise invalid_input(
                "budget", stated, f"to be exactly one of {', '.join(field.name for field in fields(self))}"
            )
        if self.target is None:
            check_positive(given[0], getattr(self, given[0]))

    def factor(
        self, shape: Mapping[str, Tensor], square: Mapping[str, Tensor], sensitivity: Mapping[str, Tensor]
    ) -> float:
        """What variances, known up to a factor as ``shape``, are to be multiplied by."""
        cost = sum(float((shape[name] * square[name]).sum()) for name in shape)
        if self.utility_loss is not None:
            return self.utility_loss / cost
        if self.like is not None:
            return self.like**2 * sum(float(value.sum()) for value in square.values()) / cost
        if self.noise_norm is not None:
            return self.noise_norm / math.sqrt(sum(float(value.square().sum()) for value in shape.values()))
        if self.unit is not None:
            count = sum(value.numel() for value in shape.values())
            return self.unit**2 * sum(float((1 / value).sum()) for value in shape.values()) / count
        trace = sum(float((sensitivity[name] / shape[name]).sum()) for name in shape)
        return trace / self.target.trace if self.target is not None else math.nan

    def __str__(self) -> str:
        """The setting as it is written."""
        if self.target is not None:
            return f"target={self.target}"
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name}={value:g}" for name, value in stated.items() if value is not None)


SMALLEST_GRADIENT = 1e-6
"""The paper's constant c: gradients below it count as such."""

_LEAST = 1e-12  # of the mean sensitivity: a value that does not depend on the record still gets some noise


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
    r"""The independent noise with the largest bound on reconstruction error for its cost in utility.

    .. math:: \Sigma_{ii} = \lambda \sqrt{\frac{E|\nabla_x g_i|^2}{E g_i^2}}, \qquad
              -U_2 = \sum_i \Sigma_{ii} E g_i^2

    State one of ``utility_loss`` (minus the second-order utility U2), ``noise_norm`` (the Frobenius norm of the
    covariance, the paper's noise scale), ``like`` (the U2 of equal noise of this standard deviation),
    ``unit`` (the root of the harmonic mean of the variances: after ``clip(C)`` the noise multiplier times C) or
    ``target`` (the Bayesian bound to reach).

    Assumes: ``moments`` of public or reference records: then the scales tell nothing of private ones.
    Guarantee: of all independent noises of equal U2 it has the smallest expected trace of the Fisher information, which
    is what the bound depends on. ``mechanism`` is None; ``clip(C) >> optimal_noise(...)`` is a Gaussian mechanism.
    Edge cases: gradients below ``smallest_gradient`` count as such, which caps the noise (appendix B). Values that do
    not depend on the record get almost none.
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
    """The standard deviations of the optimal noise, by name."""
    floor = check_positive("smallest_gradient", smallest_gradient) ** 2
    square = {name: value.double().clamp_min(floor) for name, value in moments.square.items()}
    sensitivity = _floored(moments.sensitivity)
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
    r"""Noise of one standard deviation, scaled to a budget: what :func:`optimal_noise` is compared with.

    .. math:: -U_2 = \sigma^2 \sum_i E g_i^2, \qquad \mathrm{tr}\, E I = \frac c{\sigma^2} \sum_i E|\nabla_x g_i|^2

    with c = 1 for Gaussian and 2 for Laplacian noise, which tells more at equal variance.

    Assumes: as :func:`optimal_noise`.
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
    information = 2 if law == "laplace" else 1
    sensitivity = {name: information * value for name, value in _floored(moments.sensitivity).items()}
    std = budget.factor({name: torch.ones_like(value) for name, value in square.items()}, square, sensitivity) ** 0.5
    return LaplaceNoise(std) if law == "laplace" else NoisyRelease(std)


def _floored(sensitivity: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sensitivities in double precision, none quite zero: no value may be sent without noise."""
    count = sum(value.numel() for value in sensitivity.values())
    mean = sum(float(value.double().sum()) for value in sensitivity.values()) / count
    if not mean > 0:
        raise InvalidInput("Expected gradients that depend on the records, none does. Check the model and its loss.")
    return {name: value.double().clamp_min(_LEAST * mean) for name, value in sensitivity.items()}


def optimal_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build shaped noise with the utility U2 of equal noise of deviation ``level``, and the call that makes it."""
    return optimal_noise(reference.moments, like=level), f"rr.defenses.optimal_noise(moments, like={level:g})"


def clip_and_optimal_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the same after a clip in the norm that matches the noise, and the call that makes it."""
    norm = reference.matching_clip_norm
    code = f"rr.defenses.clip({norm:g}) >> rr.defenses.optimal_noise(moments, like={level:g})"
    return clip(norm) >> optimal_noise(reference.moments, like=level), code
