"""Estimates of a record from the gradient of a layer that reads it: what each assumes and how it treats noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reconrisk.attacks.first_layer import LayerGradient, fitted
from reconrisk.core.observation import Observation
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_all_finite, check_finite, check_nonnegative, check_positive, invalid_input


class LayerEstimate(ABC):
    """One way to estimate a record from the gradient of a layer; ``knows`` is the side information it needs.

    ``uses_scales`` says that it works on the mean of the rows over their scales, which must then be known.
    """

    knows: ClassVar[frozenset[Knows]] = frozenset()
    uses_scales: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""


@dataclass(frozen=True)
class LeastSquares(LayerEstimate):
    """The configured estimate that :func:`least_squares` returns."""

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        return layer.weighted_mean(layer.known_bias())[0]


@dataclass(frozen=True)
class Ratio(LayerEstimate):
    """The configured estimate that :func:`ratio` returns."""

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        bias = layer.known_bias()
        clearness = bias.abs() if layer.bias_precision is None else bias.abs() * layer.bias_precision.sqrt()
        clearest = int(clearness.argmax())
        return layer.weight[clearest] / bias[clearest]


@dataclass(frozen=True)
class TotalLeastSquares(LayerEstimate):
    """The configured estimate that :func:`total_least_squares` returns."""

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        return fitted(layer)


@dataclass(frozen=True)
class KnownScale(LayerEstimate):
    """The configured estimate that :func:`known_scale` returns."""

    uses_scales = True

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        return _scaled_mean(layer)[0]


@dataclass(frozen=True)
class JamesStein(LayerEstimate):
    """The configured estimate that :func:`james_stein` returns."""

    toward: float = 0.0
    knows = frozenset({Knows.DEFENSE})
    uses_scales = True

    def __post_init__(self) -> None:
        check_finite("toward", self.toward)

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        mean, variance = _scaled_mean(layer)
        held = variance.isfinite()
        apart = torch.where(held, mean - self.toward, 0.0)
        noise = torch.where(held & (variance > 0), apart.square() / variance, 0.0).sum()
        dimensions = int(held.sum())
        if dimensions <= 2 or not layer.noisy:
            return self.toward + apart
        kept = (1 - (dimensions - 2) / noise.clamp_min(torch.finfo(noise.dtype).tiny)).clamp_min(0.0)
        return self.toward + kept * apart


@dataclass(frozen=True)
class KnownNorm(LayerEstimate):
    """The configured estimate that :func:`known_norm` returns."""

    success_mse: float | None = None
    knows = frozenset({Knows.RECORD_NORM})

    def __post_init__(self) -> None:
        if self.success_mse is not None:
            check_nonnegative("success_mse", self.success_mse)

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        if observation.record_norms is None:
            raise invalid_input(
                "record_norms", None, "to be known", "Observe with a threat that has Knows.RECORD_NORM."
            )
        along = layer.direction(observation.data_range)
        allowed = len(along) * (self.success_mse or 0.0)
        length = (observation.record_norms.double().square() - allowed).clamp_min(0.0).sqrt()
        return length * along


@dataclass(frozen=True, eq=False)
class PosteriorMean(LayerEstimate):
    """The configured estimate that :func:`posterior_mean` returns."""

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
            check_positive("std", self.std, "Without spread the record is known beforehand.")
            return
        check_all_finite("std", self.std)
        if not bool((self.std > 0).all()):
            raise invalid_input(
                "std.min()", float(self.std.min()), "> 0", "Without spread a value is known beforehand."
            )

    def __call__(self, layer: LayerGradient, observation: Observation) -> Tensor:
        """The record as one row of numbers."""
        seen, variance = _scaled_mean(layer)
        mean, std = (_flat(name, getattr(self, name), observation) for name in ("mean", "std"))
        trust = torch.where(variance.isfinite(), std.square() / (std.square() + variance), 0.0)
        return mean + trust * (seen - mean)

    def __repr__(self) -> str:
        """Shapes instead of values where mean and deviation are tensors."""
        mean, std = (
            f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"
            for value in (self.mean, self.std)
        )
        return f"PosteriorMean(mean={mean}, std={std})"


def least_squares() -> LeastSquares:
    r"""Least squares over the neurons, with the gradient of the bias taken as exact.

    .. math:: \hat x = \sum_j b_j w_j \Big/ \sum_j b_j^2

    Guarantee: exact without noise whenever one neuron is active.
    Edge cases: noise on the bias draws it to zero, by about :math:`1 + M \tau^2 / |s|^2` for M neurons.
    Reference: Proposition 3.1, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.

    >>> least_squares()
    LeastSquares()
    """
    return LeastSquares()


def ratio() -> Ratio:
    r"""The row of the clearest neuron over the gradient of its bias.

    .. math:: \hat x = w_j / b_j, \quad j = \arg\max |b_j| / \tau_j

    Guarantee: exact without noise whenever one neuron is active. Under noise each value is a ratio of two normal
    variables: it has no mean, and is Cauchy only if both have mean zero.
    Edge cases: riess2025 does not say which of several neurons to take; the others are noisier.
    Reference: equations 5 and 13, riess2025.

    >>> ratio()
    Ratio()
    """
    return Ratio()


def total_least_squares() -> TotalLeastSquares:
    r"""The record that fits rows and bias best when both are noisy and every scale is unknown.

    .. math:: \hat x = \arg\min_x \min_s \sum_j |w_j - s_j x|^2/\tau_w^2 + (b_j - s_j)^2/\tau_b^2

    Guarantee: exact without noise; the maximum likelihood under Gaussian noise. For equal noise its level need not be
    known: the answer is the leading right singular vector of (weight, bias), divided by its last entry.
    Edge cases: with one neuron it is the ratio; a record has no finite limit where the bias is all noise, and is then
    cut to the data range.
    Reference: `Golub and Van Loan (1980) <https://doi.org/10.1137/0717073>`_; the likelihood of equations 11 and 12,
    riess2025.

    >>> total_least_squares()
    TotalLeastSquares()
    """
    return TotalLeastSquares()


def known_scale() -> KnownScale:
    r"""The mean of the rows over their scales, each weighted by its squared scale.

    .. math:: \hat x = \sum_j s_j w_j \Big/ \sum_j s_j^2 \sim N\bigl(x, \tau^2 / |s|^2\, I\bigr)

    Assumes: the scales are right: stated to the attack, or replayed by it from the known release.
    Guarantee: unbiased, and the least variance of all unbiased estimates; the error follows the chi-square law.
    Edge cases: equation 14 of riess2025 averages the rows over their scales plainly, which is right for equal ones.
    Reference: equations 14 and 17, riess2025, corrected.

    >>> known_scale()
    KnownScale()
    """
    return KnownScale()


def james_stein(*, toward: float = 0.0) -> JamesStein:
    r"""The mean of the rows over their scales, shrunk by as much as its noise suggests.

    .. math:: \hat x = c + \Bigl(1 - \frac{(d-2)\, v}{|y - c|^2}\Bigr)_+ (y - c), \quad y \sim N(x, v I)

    Notation: ``toward`` c, a public guess for every value, such as the middle of the data range.
    Guarantee: a smaller expected error than :func:`known_scale`, whatever the record, from three dimensions on.
    Edge cases: with unequal noise it is applied after division by its deviations; up to two dimensions and without
    noise nothing is shrunk.
    Reference: `James and Stein (1961) <https://projecteuclid.org/euclid.bsmsp/1200512173>`_, positive part.

    >>> james_stein(toward=0.5)
    JamesStein(toward=0.5)
    """
    return JamesStein(toward)


def known_norm(success_mse: float | None = None) -> KnownNorm:
    r"""The direction of the rows, at the length that serves best for the known norm of the record.

    .. math:: \hat x = \sqrt{r^2 - \rho^2}\; y/|y|, \quad \rho^2 = d \, \eta

    Notation: ``success_mse`` eta is the error below which the attack counts as a success; None gives length r.
    Guarantee: for a planted layer no attack that knows the norm alone succeeds more often, on average over directions
    and for the worst one. Neither scales nor noise need be known.
    Edge cases: where :math:`\rho \ge r` the estimate is zero, which always succeeds.
    Reference: ours; attains :func:`reconrisk.bounds.known_norm.from_scratch_success`.

    >>> known_norm(success_mse=0.01)
    KnownNorm(success_mse=0.01)
    """
    return KnownNorm(success_mse)


def posterior_mean(*, mean: float | Tensor, std: float | Tensor) -> PosteriorMean:
    r"""The mean of the record given the rows, for an adversary with a Gaussian prior on every value.

    .. math:: \hat x = m + \frac{t^2}{t^2 + v} (y - m), \quad x \sim N(m, t^2 I), \; y \sim N(x, v I)

    Notation: ``mean`` m and ``std`` t, one number or a tensor of the record's shape.
    Assumes: the prior holds and the scales do not depend on the record, as without clipping.
    Guarantee: the least expected error and the most frequent success of all attacks.
    Edge cases: values that were not sent are the prior's mean; without noise the prior does not matter.
    Reference: ours; attains :func:`reconrisk.bounds.gaussian_prior.gaussian_prior_success`.

    >>> posterior_mean(mean=0.5, std=0.1)
    PosteriorMean(mean=0.5, std=0.1)
    """
    return PosteriorMean(mean, std)


def _scaled_mean(layer: LayerGradient) -> tuple[Tensor, Tensor]:
    if layer.scales is None:
        raise invalid_input(
            "scales", None, "to be known", "State scales, or observe with a threat that has Knows.DEFENSE."
        )
    return layer.weighted_mean(layer.scales)


def _flat(name: str, value: float | Tensor, observation: Observation) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=torch.float64)
    if tuple(value.shape) not in ((), observation.input_shape):
        raise invalid_input(f"{name}.shape", tuple(value.shape), f"to be {observation.input_shape}, that of a record")
    return value.detach().double().flatten()


_BY_NAME: Mapping[str, Callable[[], LayerEstimate]] = {
    build.__name__: build for build in (least_squares, ratio, total_least_squares, known_scale, james_stein, known_norm)
}


def estimate_by_name(word: str) -> LayerEstimate | None:
    """Return the estimate of this name with its default settings; None for ``"none"``.

    >>> estimate_by_name("james_stein")
    JamesStein(toward=0.0)
    """
    if word.lower() == "none":
        return None
    if word not in _BY_NAME:
        raise invalid_input("estimate", word, f"to be one of {', '.join(_BY_NAME)} or none")
    return _BY_NAME[word]()
