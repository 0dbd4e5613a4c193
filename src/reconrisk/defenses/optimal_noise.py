"""Noise that protects most at a given cost in utility, and equal noise at the same cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, refuse
from reconrisk.defenses.budget import NoiseBudget, TargetBound
from reconrisk.defenses.noise import LaplaceNoise, NoisyRelease
from reconrisk.defenses.parameter_noise import ParameterNoise
from reconrisk.defenses.scales import NoiseScales
from reconrisk.releases.reference_moments import ReferenceMoments

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
        raise refuse("law", law, 'to be "gaussian" or "laplace"')
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
