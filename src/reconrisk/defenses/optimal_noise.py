"""Noise that protects most at a given cost in utility."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, refuse
from reconrisk.defenses.parameter_noise import ParameterNoise
from reconrisk.defenses.scales import NoiseScales
from reconrisk.releases.reference_moments import ReferenceMoments

_SMALLEST_GRADIENT = 1e-6
_LEAST = 1e-12  # of the mean sensitivity: a value that does not depend on the record still gets some noise


def optimal_noise(
    moments: ReferenceMoments,
    *,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    like: float | None = None,
    smallest_gradient: float = _SMALLEST_GRADIENT,
) -> ParameterNoise:
    r"""The independent noise with the largest bound on reconstruction error for its cost in utility.

    .. math:: \Sigma_{ii} = \lambda \sqrt{\frac{E|\nabla_x g_i|^2}{E g_i^2}}, \qquad
              -U_2 = \sum_i \Sigma_{ii} E g_i^2

    State the cost by one of ``utility_loss`` (minus the second-order utility U2), ``noise_norm`` (the Frobenius norm
    of the covariance, the paper's noise scale) or ``like`` (the U2 of equal noise of this standard deviation).

    Assumes: ``moments`` of public or reference records: then the scales tell nothing of private ones.
    Guarantee: of all independent noises of equal U2 it has the smallest expected trace of the Fisher information, which
    is what the bound depends on. ``mechanism`` is None; ``clip(C) >> optimal_noise(...)`` is a Gaussian mechanism.
    Edge cases: gradients below ``smallest_gradient`` count as such, which caps the noise (appendix B). Values that do
    not depend on the record get almost none.
    Reference: Theorem 3.5, chen2025; its Algorithm 1 squares the numerator only, which is worse.

    >>> import torch
    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(4.0, 1.0), mean(0.0, 0.0), mean(1.0, 1.0), records=1, probes=1)
    >>> optimal_noise(moments, utility_loss=3.0).scales.stds["w"].square().round(decimals=4)
    tensor([2., 1.])
    """
    square = {name: value.double().clamp_min(smallest_gradient**2) for name, value in moments.square.items()}
    sensitivity = _floored(moments.sensitivity)
    shape = {name: (sensitivity[name] / square[name]).sqrt() for name in square}
    factor = _factor(shape, square, utility_loss=utility_loss, noise_norm=noise_norm, like=like)
    stds = {name: (factor * value).sqrt().to(moments.square[name]) for name, value in shape.items()}
    stated = {"utility_loss": utility_loss, "noise_norm": noise_norm, "like": like}
    written = ", ".join(f"{key}={value:g}" for key, value in stated.items() if value is not None)
    return ParameterNoise(NoiseScales(stds), f"optimal_noise({written})")


def _floored(sensitivity: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sensitivities in double precision, none quite zero: no value may be sent without noise."""
    count = sum(value.numel() for value in sensitivity.values())
    mean = sum(float(value.double().sum()) for value in sensitivity.values()) / count
    if not mean > 0:
        raise InvalidInput("Expected gradients that depend on the records, none does. Check the model and its loss.")
    return {name: value.double().clamp_min(_LEAST * mean) for name, value in sensitivity.items()}


def _factor(
    shape: Mapping[str, Tensor],
    square: Mapping[str, Tensor],
    *,
    utility_loss: float | None,
    noise_norm: float | None,
    like: float | None,
) -> float:
    """What the variances, known up to a factor, are to be multiplied by."""
    given = {"utility_loss": utility_loss, "noise_norm": noise_norm, "like": like}
    stated = {name: check_positive(name, value) for name, value in given.items() if value is not None}
    if len(stated) != 1:
        raise refuse("(utility_loss, noise_norm, like)", tuple(given.values()), "to hold exactly one value")
    cost = sum(float((shape[name] * square[name]).sum()) for name in shape)
    if utility_loss is not None:
        return utility_loss / cost
    if like is not None:
        return like**2 * sum(float(value.sum()) for value in square.values()) / cost
    return stated["noise_norm"] / math.sqrt(sum(float(value.square().sum()) for value in shape.values()))
