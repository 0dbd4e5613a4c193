"""Distances between the release of candidates and the observed one, which attacks minimise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reconrisk.core.validation import check_callable, check_positive

Released = Mapping[str, Tensor]

_ROUNDING = 100  # rounding that one tensor may hold, in units of the precision of the whole update


class Distance(Protocol):
    """Protocol of a distance between a candidate release and the observed one, whitened and masked alike."""

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Return the distance as a scalar; 0 where the two agree."""
        ...


def check_distance(distance: object) -> None:
    """Check that a distance is callable, rather than a name.

    Args:
        distance: The value to check.

    Raises:
        InvalidInput: If it is not callable.
    """
    check_callable("distance", distance, "Pass one of reconrisk.attacks.matching.distances, such as Cosine().")


@dataclass(frozen=True)
class SquaredError:
    """Squared difference of all released values, relative to the squared norm of the observation.

    .. math:: |f - y|^2 / |y|^2

    Here f is the release of the candidate and y the observed release.

    Reference: equation 5, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_, without the normalisation.

    >>> float(SquaredError()({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([1.0, 2.0])}))
    0.20000000298023224
    """

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Return the relative squared error."""
        size = sum_of_squares(observed).clamp_min(torch.finfo(next(iter(observed.values())).dtype).tiny)
        return _total((candidate[name] - value).square().sum() for name, value in observed.items()) / size


@dataclass(frozen=True)
class Cosine:
    r"""One minus the cosine of all released values as one vector; independent of the scale of the update.

    .. math:: 1 - \langle f, y \rangle / (|f| \, |y|) = \tfrac{1}{2} \big| f / |f| - y / |y| \big|^2

    Here f is the release of the candidate and y the observed release.

    Edge cases: one half where the release of the candidate vanishes.
    Reference: equation 4, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.

    >>> round(float(Cosine()({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([0.0, 2.0])})), 4)
    0.2929
    """

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Return half the squared distance of the directions, which keeps its digits where the cosine is near 1."""
        # Clamped before the root, whose derivative at zero is infinite.
        tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
        size, other = (sum_of_squares(values).clamp_min(tiny).sqrt() for values in (candidate, observed))
        return _total((candidate[name] / size - value / other).square().sum() for name, value in observed.items()) / 2


@dataclass(frozen=True)
class LayerwiseCosine:
    r"""Mean over the released tensors of one minus their cosine, so that early layers count as much as large ones.

    .. math:: \sum_l w_l \Big(1 - \frac{\langle f_l, y_l \rangle}{|f_l| \, |y_l|}\Big) \Big/ \sum_l w_l, \quad
              w_l = \rho^{\,l}

    Here :math:`f_l` and :math:`y_l` are tensor l of the candidate's release and of the observed release, numbered from
    0.

    Attributes:
        ratio: :math:`\rho`; below 1 the first layers, which are closest to the record, weigh more.

    Edge cases: tensors that are zero in the observation up to rounding are left out, such as the gradient of a bias
    before batch norm in train mode.

    >>> one, other = {"a": torch.tensor([1.0, 0.0])}, {"a": torch.tensor([0.0, 1.0])}
    >>> float(LayerwiseCosine()(one, other))
    1.0
    """

    ratio: float = 1.0

    def __post_init__(self) -> None:
        check_positive("ratio", self.ratio)

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Return the weighted mean over tensors."""
        total = sum_of_squares(observed)
        # Tensors below rounding relative to the whole update are noise and get weight zero.
        least = (_ROUNDING * torch.finfo(total.dtype).eps) ** 2 * total
        weights, terms = [], []
        for place, (name, value) in enumerate(observed.items()):
            weights.append(self.ratio**place * (value.square().sum() > least).to(total.dtype))
            terms.append(weights[-1] * Cosine()({name: candidate[name]}, {name: value}))
        return _total(terms) / _total(weights)


@dataclass(frozen=True)
class GaussianLikelihood:
    r"""Negative log-likelihood under known Gaussian noise, per coordinate of the records, up to a constant.

    .. math:: \tfrac{1}{2 d} (y - f)^T \Sigma^{-1} (y - f)

    Here f is the release of the candidate, y the observed release, and :math:`\Sigma` the covariance of the noise.

    Attributes:
        dimension: Number d of coordinates of all records.

    Assumes: ``candidate`` and ``observed`` are already divided by the standard deviation of the noise.

    >>> float(GaussianLikelihood(2)({"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])}))
    1.0
    """

    dimension: int

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Return half the squared residual divided by the dimension."""
        residual = _total((candidate[name] - value).square().sum() for name, value in observed.items())
        return residual / (2 * self.dimension)


@dataclass(frozen=True)
class LaplaceLikelihood:
    r"""Negative log-likelihood under known Laplacian noise, per coordinate of the records, up to a constant.

    .. math:: \tfrac{\sqrt2}{d} \sum_i \sqrt{(y - f)_i^2 / \sigma_i^2 + \epsilon^2}

    Here f is the release of the candidate, y the observed release, and :math:`\sigma_i` the standard deviation of the
    noise on value i.

    Attributes:
        dimension: Number d of coordinates of all records.
        smooth: The small :math:`\epsilon` that makes the distance differentiable where a value fits exactly.

    Assumes: ``candidate`` and ``observed`` are already divided by the standard deviation of the noise.

    >>> round(float(LaplaceLikelihood(2)({"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])})), 3)
    1.414
    """

    dimension: int
    smooth: float = 0.02

    def __call__(self, candidate: Released, observed: Released) -> Tensor:
        """Return the smoothed sum of absolute residuals divided by the dimension."""
        terms = ((candidate[name] - value).square() + self.smooth**2 for name, value in observed.items())
        return 2**0.5 * _total(term.sqrt().sum() for term in terms) / self.dimension


def sum_of_squares(released: Released) -> Tensor:
    """Return the sum of the squares of all values.

    Args:
        released: Tensors by name.

    Returns:
        The sum as a scalar.
    """
    return _total(value.square().sum() for value in released.values())


def _total(terms: object) -> Tensor:
    return torch.stack(list(terms)).sum()  # type: ignore[call-overload]  # any iterable of scalars
