"""Estimates of a record from the gradient of a layer that reads it, with their assumptions and treatment of noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reconrisk.attacks.first_layer import LayerGradient, fit_record
from reconrisk.core.observation import Observation
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_all_finite, check_finite, check_nonnegative, check_positive, invalid_input


class LayerEstimate(ABC):
    """Estimator of a record from the gradient of a layer.

    Attributes:
        knows: Side information that the estimator needs.
        uses_scales: True if the estimator averages the rows divided by their scales; the scales must then be known.
    """

    knows: ClassVar[frozenset[Knows]] = frozenset()
    uses_scales: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""


@dataclass(frozen=True)
class LeastSquares(LayerEstimate):
    """Estimate configured by :func:`least_squares`."""

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        return layer.weighted_mean(layer.require_bias())[0]


@dataclass(frozen=True)
class Ratio(LayerEstimate):
    """Estimate configured by :func:`ratio`."""

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        bias = layer.require_bias()
        # Signal-to-noise ratio of each bias.
        clearness = bias.abs() if layer.bias_precision is None else bias.abs() * layer.bias_precision.sqrt()
        clearest = int(clearness.argmax())
        return layer.weight[clearest] / bias[clearest]


@dataclass(frozen=True)
class TotalLeastSquares(LayerEstimate):
    """Estimate configured by :func:`total_least_squares`."""

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        return fit_record(layer)


@dataclass(frozen=True)
class KnownScale(LayerEstimate):
    """Estimate configured by :func:`known_scale`."""

    uses_scales = True

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        return _scaled_mean(layer)[0]


@dataclass(frozen=True)
class JamesStein(LayerEstimate):
    """Estimate configured by :func:`james_stein`."""

    toward: float = 0.0
    knows = frozenset({Knows.DEFENSE})
    uses_scales = True

    def __post_init__(self) -> None:
        check_finite("toward", self.toward)

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        mean, variance = _scaled_mean(layer)
        held = variance.isfinite()
        apart = torch.where(held, mean - self.toward, 0.0)
        noise = torch.where(held & (variance > 0), apart.square() / variance, 0.0).sum()
        dimensions = int(held.sum())
        if dimensions <= 2 or not layer.noisy:  # shrinkage helps from three dimensions on (Stein 1956)
            return self.toward + apart
        # Positive-part James-Stein factor, in whitened coordinates.
        kept = (1 - (dimensions - 2) / noise.clamp_min(torch.finfo(noise.dtype).tiny)).clamp_min(0.0)
        return self.toward + kept * apart


@dataclass(frozen=True)
class KnownNorm(LayerEstimate):
    """Estimate configured by :func:`known_norm`."""

    success_mse: float | None = None
    knows = frozenset({Knows.RECORD_NORM})

    def __post_init__(self) -> None:
        if self.success_mse is not None:
            check_nonnegative("success_mse", self.success_mse)

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        if observation.record_norms is None:
            raise invalid_input("record_norms", None, "to be known", "Add Knows.RECORD_NORM to the threat model.")
        along = layer.direction(observation.data_range)
        allowed = len(along) * (self.success_mse or 0.0)
        # rho^2 = d * eta; the clamp covers rho >= r, where the zero vector already succeeds.
        length = (observation.record_norms.double().square() - allowed).clamp_min(0.0).sqrt()
        return length * along


@dataclass(frozen=True, eq=False)
class PosteriorMean(LayerEstimate):
    """Estimate configured by :func:`posterior_mean`."""

    mean: float | Tensor
    std: float | Tensor
    knows = frozenset({Knows.DEFENSE, Knows.PRIOR})
    uses_scales = True

    def __post_init__(self) -> None:
        if isinstance(self.mean, Tensor):
            check_all_finite("mean", self.mean)
        else:
            check_finite("mean", self.mean)
        if not isinstance(self.std, Tensor):
            check_positive("std", self.std, "Pass the standard deviation of public records.")
            return
        check_all_finite("std", self.std)
        if not bool((self.std > 0).all()):
            raise invalid_input(
                "std.min()", float(self.std.min()), "> 0", "Pass the standard deviation of public records."
            )

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """Return the estimated record as a flat vector."""
        seen, variance = _scaled_mean(layer)
        mean, std = (_flat(name, getattr(self, name), observation) for name in ("mean", "std"))
        # Kalman gain t^2 / (t^2 + v); 0 for values that were not sent, which keep the prior mean.
        trust = torch.where(variance.isfinite(), std.square() / (std.square() + variance), 0.0)
        return mean + trust * (seen - mean)

    def __repr__(self) -> str:
        """Return the call with every setting; tensors are shown by shape."""
        mean, std = (
            f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"
            for value in (self.mean, self.std)
        )
        return f"PosteriorMean(mean={mean}, std={std})"


def least_squares() -> LeastSquares:
    r"""Configure least squares over the neurons, with the gradient of the bias taken as exact.

    .. math:: \hat x = \sum_j b_j w_j \Big/ \sum_j b_j^2

    Here :math:`w_j` and :math:`b_j` are the released gradients of the weights and of the bias of neuron j.

    Returns:
        The configured estimate.

    Guarantee: exact without noise whenever one neuron is active.
    Edge cases: noise on the bias shrinks the estimate toward zero, by a factor of about :math:`1 + M \tau^2 / |s|^2`
    for M neurons with scales s and noise of standard deviation :math:`\tau`.
    Reference: Proposition 3.1, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.

    >>> least_squares()
    LeastSquares()
    """
    return LeastSquares()


def ratio() -> Ratio:
    r"""Configure the ratio of a row to the gradient of its bias, for the neuron with the clearest bias.

    .. math:: \hat x = w_j / b_j, \quad j = \arg\max |b_j| / \tau_j

    Here :math:`w_j` and :math:`b_j` are the released gradients of the weights and of the bias of neuron j, and
    :math:`\tau_j` is the standard deviation of the noise on :math:`b_j`.

    Returns:
        The configured estimate.

    Guarantee: exact without noise whenever one neuron is active. Under noise each value is a ratio of two normal
    variables: it has no mean, and is Cauchy only if both have mean zero.
    Edge cases: riess2025 does not state which of several neurons to use; all neurons but this one are noisier.
    Reference: equations 5 and 13, riess2025.

    >>> ratio()
    Ratio()
    """
    return Ratio()


def total_least_squares() -> TotalLeastSquares:
    r"""Configure the best fit to rows and bias when both are noisy and the scales are unknown.

    .. math:: \hat x = \arg\min_x \min_s \sum_j |w_j - s_j x|^2/\tau_w^2 + (b_j - s_j)^2/\tau_b^2

    Here :math:`w_j` and :math:`b_j` are the released gradients of neuron j, :math:`s_j` is its unknown scale, and
    :math:`\tau_w` and :math:`\tau_b` are the standard deviations of the noise on weights and bias.

    Returns:
        The configured estimate.

    Guarantee: exact without noise; maximum likelihood under Gaussian noise. If the noise is equal everywhere, its level
    need not be known: the estimate is the leading right singular vector of (weight, bias), divided by its last entry.
    Edge cases: with one neuron it equals the ratio. Where the bias is pure noise the fit is unbounded, and the estimate
    is clipped to the data range.
    Reference: `Golub and Van Loan (1980) <https://doi.org/10.1137/0717073>`_; the likelihood of equations 11 and 12,
    riess2025.

    >>> total_least_squares()
    TotalLeastSquares()
    """
    return TotalLeastSquares()


def known_scale() -> KnownScale:
    r"""Configure the mean of the rows divided by their scales, weighted by the squared scales.

    .. math:: \hat x = \sum_j s_j w_j \Big/ \sum_j s_j^2 \sim N\bigl(x, \tau^2 / |s|^2\, I\bigr)

    Here :math:`w_j` is the released gradient of the weights of neuron j, :math:`s_j` its scale, and :math:`\tau` the
    standard deviation of the noise.

    Returns:
        The configured estimate.

    Assumes: the scales are correct: stated to the attack, or replayed by it through the known release.
    Guarantee: unbiased, with the least variance of all unbiased estimates. The squared error, divided by
    :math:`\tau^2 / |s|^2`, has a chi-square distribution.
    Edge cases: equation 14 of riess2025 uses the unweighted mean, which is the same for equal scales only.
    Reference: equations 14 and 17, riess2025, corrected.

    >>> known_scale()
    KnownScale()
    """
    return KnownScale()


def james_stein(*, toward: float = 0.0) -> JamesStein:
    r"""Configure the estimate of :func:`known_scale`, shrunk by an amount that its noise determines.

    .. math:: \hat x = c + \Bigl(1 - \frac{(d-2)\, v}{|y - c|^2}\Bigr)_+ (y - c), \quad y \sim N(x, v I)

    Here y is the estimate of :func:`known_scale`, v its variance in each of d values, and :math:`(a)_+` is the larger
    of a and 0.

    Args:
        toward: Centre c of the shrinkage, a public guess for every value, such as the middle of the data range.

    Returns:
        The configured estimate.

    Raises:
        InvalidInput: If ``toward`` is not finite.

    Guarantee: a smaller expected error than :func:`known_scale` for every record, from three dimensions on.
    Edge cases: with unequal noise it is applied after division by the standard deviations. Nothing is shrunk without
    noise, or in one or two dimensions.
    Reference: `James and Stein (1961) <https://projecteuclid.org/euclid.bsmsp/1200512173>`_, positive part.

    >>> james_stein(toward=0.5)
    JamesStein(toward=0.5)
    """
    return JamesStein(toward)


def known_norm(success_mse: float | None = None) -> KnownNorm:
    r"""Configure the direction of the rows, at the best length for the known norm of the record.

    .. math:: \hat x = \sqrt{r^2 - \rho^2}\; y/|y|, \quad \rho^2 = d \, \eta

    Here r is the known norm of the record, d its number of values, and y the mean of the rows, of which only the
    direction counts.

    Args:
        success_mse: Mean squared error :math:`\eta` below which the attack counts as a success. None uses the full norm
            r.

    Returns:
        The configured estimate.

    Raises:
        InvalidInput: If ``success_mse`` is negative.

    Guarantee: for a planted layer, no attack that knows only the norm succeeds more often, neither on average over all
    directions of the record nor for the worst direction. Neither scales nor noise need be known.
    Edge cases: where :math:`\rho \ge r` the estimate is zero, which always succeeds.
    Reference: ours; attains :func:`reconrisk.bounds.known_norm.from_scratch_success`.

    >>> known_norm(success_mse=0.01)
    KnownNorm(success_mse=0.01)
    """
    return KnownNorm(success_mse)


def posterior_mean(*, mean: float | Tensor, std: float | Tensor) -> PosteriorMean:
    r"""Configure the posterior mean of the record under a Gaussian prior on every value.

    .. math:: \hat x = m + \frac{t^2}{t^2 + v} (y - m), \quad x \sim N(m, t^2 I), \; y \sim N(x, v I)

    Here y is the estimate of :func:`known_scale` and v its variance in each value.

    Args:
        mean: Prior mean m, one number or a tensor of the record's shape.
        std: Prior standard deviation t, one number or a tensor of the record's shape.

    Returns:
        The configured estimate.

    Raises:
        InvalidInput: If ``mean`` is not finite or ``std`` is not positive.

    Assumes: the prior is correct, and the scales do not depend on the record, as without clipping.
    Guarantee: the least expected error and the highest success probability of all attacks.
    Edge cases: values that were not sent get the prior mean. Without noise the prior has no effect.
    Reference: ours; attains :func:`reconrisk.bounds.gaussian_prior.gaussian_prior_success`.

    >>> posterior_mean(mean=0.5, std=0.1)
    PosteriorMean(mean=0.5, std=0.1)
    """
    return PosteriorMean(mean, std)


def _scaled_mean(layer: LayerGradient) -> tuple[Tensor, Tensor]:
    if layer.scales is None:
        raise invalid_input("scales", None, "to be known", "Pass scales, or add Knows.DEFENSE to the threat model.")
    return layer.weighted_mean(layer.scales)


def _flat(name: str, value: float | Tensor, observation: Observation) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=torch.float64)
    if tuple(value.shape) not in ((), observation.input_shape):
        raise invalid_input(
            f"{name}.shape",
            tuple(value.shape),
            f"to be {observation.input_shape}, the shape of a record",
            "Pass a number or such a tensor.",
        )
    return value.detach().double().flatten()


_BY_NAME: Mapping[str, Callable[[], LayerEstimate]] = {
    build.__name__: build for build in (least_squares, ratio, total_least_squares, known_scale, james_stein, known_norm)
}


def estimate_by_name(word: str) -> LayerEstimate | None:
    """Return the estimate of a name with its default settings.

    Args:
        word: Name of an estimate, or ``"none"``.

    Returns:
        The configured estimate; None for ``"none"``.

    Raises:
        InvalidInput: If no estimate has this name.

    >>> estimate_by_name("james_stein")
    JamesStein(toward=0.0)
    """
    if word.lower() == "none":
        return None
    if word not in _BY_NAME:
        raise invalid_input("estimate", word, f"to be one of {', '.join(_BY_NAME)} or none")
    return _BY_NAME[word]()
