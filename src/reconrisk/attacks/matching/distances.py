"""How far the release of candidates is from the observed one: what an attack makes small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reconrisk.core.validation import check_callable, check_positive

Released = Mapping[str, Tensor]

_ROUNDING = 100  # units of precision of the whole update that rounding may leave in one of its tensors


class Distance(Protocol):
    """From a candidate release and the observed one, whitened and masked alike, to one number."""

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Zero where the two agree."""
        ...


def check_distance(distance: object) -> None:
    """Refuse a name in place of a distance."""
    check_callable("distance", distance, "Pass one of reconrisk.attacks.matching.distances, such as Cosine().")


@dataclass(frozen=True)
class SquaredError:
    r"""Squared difference over all released values, relative to the size of the observation.

    .. math:: |f - y|^2 / |y|^2

    Reference: equation 5, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_, who leave the scale as it is.

    >>> float(SquaredError()({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([1.0, 2.0])}))
    0.20000000298023224
    """

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """The relative squared error."""
        size = squares(observed).clamp_min(torch.finfo(next(iter(observed.values())).dtype).tiny)
        return _total((candidate[name] - value).square().sum() for name, value in observed.items()) / size


@dataclass(frozen=True)
class Cosine:
    r"""One minus the cosine between all released values as one vector: blind to the scale of the update.

    .. math:: 1 - \langle f, y \rangle / (|f| \, |y|) = \tfrac{1}{2} \big| f / |f| - y / |y| \big|^2

    Edge cases: one half where the candidate's release vanishes.
    Reference: equation 4, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.

    >>> round(float(Cosine()({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([0.0, 2.0])})), 4)
    0.2929
    """

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Half the squared distance of the two directions, which keeps its digits where the cosine is almost one."""
        tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
        size, other = (squares(values).clamp_min(tiny).sqrt() for values in (candidate, observed))
        return _total((candidate[name] / size - value / other).square().sum() for name, value in observed.items()) / 2


@dataclass(frozen=True)
class LayerwiseCosine:
    r"""Mean over the released tensors of one minus their cosine: early layers count as much as large ones.

    .. math:: \sum_l w_l \Big(1 - \frac{\langle f_l, y_l \rangle}{|f_l| \, |y_l|}\Big) \Big/ \sum_l w_l, \quad
              w_l = \rho^{\,l}

    ``ratio`` is rho: below 1 the first layers, which see the record, weigh more.

    Edge cases: tensors that are zero in the observation up to rounding do not enter, such as the gradient of a bias
    before batch norm in train mode, which is rounding alone.

    >>> one, other = {"a": torch.tensor([1.0, 0.0])}, {"a": torch.tensor([0.0, 1.0])}
    >>> float(LayerwiseCosine()(one, other))
    1.0
    """

    ratio: float = 1.0

    def __post_init__(self) -> None:
        check_positive("ratio", self.ratio)

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """The weighted mean over tensors."""
        total = squares(observed)
        least = (_ROUNDING * torch.finfo(total.dtype).eps) ** 2 * total
        weights, terms = [], []
        for place, (name, value) in enumerate(observed.items()):
            weights.append(self.ratio**place * (value.square().sum() > least).to(total.dtype))
            terms.append(weights[-1] * Cosine()({name: candidate[name]}, {name: value}))
        return _total(terms) / _total(weights)


@dataclass(frozen=True)
class GaussianLikelihood:
    r"""Negative log-likelihood under the known noise, per coordinate of the records, up to a constant.

    .. math:: \tfrac{1}{2 d} (y - f)^T \Sigma^{-1} (y - f)

    Assumes: both sides are divided by the standard deviation of the noise already.

    >>> float(GaussianLikelihood(2)({"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])}))
    1.0
    """

    dimension: int

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Half the squared residual over the dimension."""
        residual = _total((candidate[name] - value).square().sum() for name, value in observed.items())
        return residual / (2 * self.dimension)


@dataclass(frozen=True)
class LaplaceLikelihood:
    r"""Negative log-likelihood under known Laplacian noise, per coordinate of the records, up to a constant.

    .. math:: \tfrac{\sqrt2}{d} \sum_i \sqrt{(y - f)_i^2 / \sigma_i^2 + \epsilon^2}

    The small epsilon makes it differentiable where a value fits exactly.

    Assumes: both sides are divided by the standard deviation of the noise already.

    >>> round(float(LaplaceLikelihood(2)({"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])})), 3)
    1.414
    """

    dimension: int
    smooth: float = 0.02

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """The sum of absolute residuals over the dimension, smoothed."""
        terms = ((candidate[name] - value).square() + self.smooth**2 for name, value in observed.items())
        return 2**0.5 * _total(term.sqrt().sum() for term in terms) / self.dimension


def squares(released: Released) -> Tensor:
    """Sum of the squares of all values."""
    return _total(value.square().sum() for value in released.values())


def _total(terms: object) -> Tensor:
    return torch.stack(list(terms)).sum()  # type: ignore[call-overload]  # any iterable of scalars
