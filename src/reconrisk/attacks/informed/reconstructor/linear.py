"""Reconstructor in closed form: for each class, the record is nearly linear in the direction the model moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.core.progress import track

RIDGES = tuple(10.0**power for power in range(-5, 3))
"""Ridge penalties to choose from, in units of the mean square of the directions."""

_ROWS_AT_ONCE = 1024  # models converted to double precision at a time
_TRIED = 2000  # shadow models that choose among the forms: enough for a choice, and the fit costs their cube
_POOLED = 4000  # shadow models of a map without classes at most: its cost grows with their cube
_FEWEST = 2  # members of a class with a map of its own


@dataclass(frozen=True, eq=False)
class ClassMap:
    r"""Ridge regression of records on directions :math:`u` in dual form, within one class.

    .. math:: \hat x(u) = \bar x + k(u)^T (K + \lambda s I)^{-1} (X - \bar x), \qquad
        k_i(u) = (u - m) \cdot (u_i - m) + s

    Here X are the records of the class and :math:`u_i` their directions, K is the matrix with the entries
    :math:`k_j(u_i)`, and :math:`\lambda` the ridge penalty.

    Attributes:
        mean: Mean direction :math:`m`.
        members: Centred directions :math:`u_i - m`.
        scale: Their mean square :math:`s`.
        inverse: :math:`(K + \lambda s I)^{-1}`.
        weights: The inverse times the centred records.
        offset: Mean record :math:`\bar x`.
    """

    mean: Tensor
    members: Tensor
    scale: float
    inverse: Tensor
    weights: Tensor
    offset: Tensor

    def __call__(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Return estimates (n, values), and the squared distance of each direction from the span of the class."""
        centred = directions - self.mean
        kernel = (centred @ self.members.T).double() + self.scale
        explained = ((kernel @ self.inverse) * kernel).sum(1)
        # squared distance to the span of the members in kernel space; the added scale is the kernel's constant term
        left = centred.double().square().sum(1) + self.scale - explained
        return (kernel @ self.weights + self.offset).float(), left


@dataclass(frozen=True, eq=False)
class LinearReconstruction:
    r"""Maps of all classes, and the choice of the class that fits a model best.

    Attributes:
        origin: Mean shadow model.
        by_direction: True if only the direction from ``origin`` is read, not the distance.
        maps: One map per class.
        labels: Names of the classes, None for one map of all records.
        ridge: Ridge penalty :math:`\lambda`.
    """

    origin: Tensor
    by_direction: bool
    maps: tuple[ClassMap, ...]
    labels: tuple[int, ...] | None
    ridge: float

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return estimates (n, values) for models (n, parameters), and the index of the map that produced each."""
        parts = [
            self._estimate_chunk(displacements(self.origin, some, self.by_direction))
            for some in rows.split(_ROWS_AT_ONCE)
        ]
        return torch.cat([estimates for estimates, _ in parts]), torch.cat([chosen for _, chosen in parts])

    def _estimate_chunk(self, moved: Tensor) -> tuple[Tensor, Tensor]:
        best = torch.full((len(moved),), math.inf, dtype=torch.float64)
        chosen = torch.zeros(len(moved), dtype=torch.int64)
        estimates = moved.new_zeros(len(moved), len(self.maps[0].offset))
        for index, one in enumerate(self.maps):
            made, left = one(moved)
            nearer = left < best
            estimates[nearer], chosen[nearer], best[nearer] = made[nearer], index, left[nearer]
        return estimates, chosen


@dataclass(frozen=True, eq=False)
class LinearFit:
    """Closed form with its leave-one-out estimates.

    Attributes:
        linear: The closed form.
        left_out: Estimate for each shadow model by maps that have not seen it, (n, values).
        chosen: Index of the map of each estimate.
        error: Mean squared error of these estimates.
    """

    linear: LinearReconstruction
    left_out: Tensor
    chosen: Tensor
    error: float


@dataclass(frozen=True, eq=False)
class _ClassFit:
    """One class during the fit: its rows, and the eigendecomposition of their kernel."""

    index: Tensor
    mean: Tensor
    members: Tensor
    scale: float
    values: Tensor
    vectors: Tensor
    offset: Tensor
    turned: Tensor

    def inverse(self, ridge: float) -> Tensor:
        """Return ``(K + ridge s I)^-1``."""
        return (self.vectors / (self.values + ridge * self.scale)) @ self.vectors.T

    def weights(self, ridge: float) -> Tensor:
        return self.vectors @ (self.turned / (self.values + ridge * self.scale)[:, None])

    def inverse_diagonal(self, ridge: float) -> Tensor:
        """Return the diagonal of the inverse."""
        return (self.vectors.square() / (self.values + ridge * self.scale)).sum(1)

    def left_out_residuals(self, ridge: float) -> Tensor:
        """Return the leave-one-out estimate of each member minus its true record, in closed form."""
        return -self.weights(ridge) / self.inverse_diagonal(ridge)[:, None]

    def class_map(self, ridge: float) -> ClassMap:
        weights = self.weights(ridge)
        return ClassMap(self.mean, self.members, self.scale, self.inverse(ridge), weights, self.offset)


def displacements(origin: Tensor, rows: Tensor, by_direction: bool) -> Tensor:
    """Return the displacement of models from an origin.

    Args:
        origin: Parameters (parameters,) of the origin.
        rows: Parameters of models (n, parameters).
        by_direction: True to normalise displacements to unit vectors.

    Returns:
        Displacements (n, parameters) in float32; zero for the origin itself.
    """
    moved: Tensor = rows.double() - origin
    if by_direction:
        moved = moved / moved.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return moved.float()


def linear_reconstruction(rows: Tensor, targets: Tensor, labels: Tensor, data_range: tuple[float, float]) -> LinearFit:
    r"""Fit one ridge regression of records per class on the direction from the mean shadow model.

    .. math:: u = (\theta - \bar\theta) / |\theta - \bar\theta|

    Here :math:`\theta` are the parameters of a model and :math:`\bar\theta` the mean parameters of the shadow models.

    To first order a target moves the trained model by a linear map of its gradient. The size of the gradient depends on
    the training loss of the target, its direction much less; within a class the gradient is nearly linear in the
    record. The class is the one whose members span the direction best. Leave-one-out errors, which have a closed form,
    choose the ridge. They also choose between direction and displacement, and between one map per class and one map of
    all classes.

    Args:
        rows: Parameters of shadow models (n, parameters).
        targets: Their target records, flat (n, values).
        labels: Classes of the targets; floating point labels are ignored.
        data_range: Range that estimates are clipped to.

    Returns:
        The closed form with its leave-one-out estimates and their error.

    Assumes: whole numbers in ``labels`` are classes.
    Guarantee: no choice depends on an attacked model.
    """
    origin = sum((part.double().sum(0) for part in rows.split(_ROWS_AT_ONCE)), torch.zeros(())) / len(rows)
    pairs = _Pairs(rows, targets, labels, data_range, origin)
    # an evenly spaced subset chooses the form; the winner is then fitted to all shadow models
    chosen = torch.linspace(0, len(rows) - 1, min(len(rows), _TRIED)).round().long()
    some = replace(pairs, rows=rows[chosen], targets=targets[chosen], labels=labels[chosen])
    has_classes = not labels.is_floating_point() and labels.ndim == 1 and len(some.classes()) > 1
    forms = list(itertools.product((True, False), (True, False) if has_classes else (False,)))
    tried = {form: _fit_form(some, *form) for form in track(forms, "forms")}
    best = min(forms, key=lambda form: tried[form].error)
    return tried[best] if len(rows) <= _TRIED else _fit_form(pairs, *best)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Shadow models and their targets."""

    rows: Tensor
    targets: Tensor
    labels: Tensor
    data_range: tuple[float, float]
    origin: Tensor

    def classes(self) -> tuple[int, ...]:
        return tuple(int(label) for label in self.labels.unique() if int((self.labels == label).sum()) >= _FEWEST)


def _fit_form(pairs: _Pairs, by_direction: bool, by_class: bool) -> LinearFit:
    targets = pairs.targets
    moved = torch.cat([displacements(pairs.origin, part, by_direction) for part in pairs.rows.split(_ROWS_AT_ONCE)])
    labels = pairs.classes() if by_class else None
    groups = [torch.arange(len(moved))[:_POOLED]]
    if labels is not None:
        groups = [(pairs.labels == label).nonzero().flatten() for label in labels]
    members = [_fit_class(moved[index], targets[index], index) for index in groups]
    ridge = min(RIDGES, key=lambda each: _left_out_squares(members, targets, each, pairs.data_range))
    maps = tuple(each.class_map(ridge) for each in members)
    linear = LinearReconstruction(pairs.origin, by_direction, maps, labels, ridge)
    estimates, chosen = _left_out_estimates(linear, members, moved, targets)
    error = float((estimates.clamp(*pairs.data_range) - targets).square().mean())
    return LinearFit(linear, estimates, chosen, error)


def _fit_class(moved: Tensor, targets: Tensor, index: Tensor) -> _ClassFit:
    mean = moved.mean(0)
    members = moved - mean
    kernel = (members @ members.T).double()
    scale = max(float(kernel.diagonal().mean()), torch.finfo(torch.float32).tiny)
    # the constant term plays the part of an intercept; one decomposition serves all ridges
    values, vectors = torch.linalg.eigh(kernel + scale)
    offset = targets.double().mean(0)
    turned = vectors.T @ (targets.double() - offset)
    return _ClassFit(index, mean, members, scale, values.clamp_min(0.0), vectors, offset, turned)


def _left_out_squares(
    members: Sequence[_ClassFit], targets: Tensor, ridge: float, data_range: tuple[float, float]
) -> float:
    total = 0.0
    for each in members:
        truth = targets[each.index].double()
        total += float(((each.left_out_residuals(ridge) + truth).clamp(*data_range) - truth).square().sum())
    return total


def _left_out_estimates(
    linear: LinearReconstruction, members: Sequence[_ClassFit], moved: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Estimate each shadow model by maps that have not seen it; its class is inferred without it too."""
    best = torch.full((len(moved),), math.inf, dtype=torch.float64)
    chosen = torch.zeros(len(moved), dtype=torch.int64)
    estimates = torch.zeros_like(targets)
    for number, (one, member) in enumerate(zip(linear.maps, members, strict=True)):
        parts = [one(part) for part in moved.split(_ROWS_AT_ONCE)]
        made, left = (torch.cat([part[place] for part in parts]) for place in (0, 1))
        made[member.index] = (member.left_out_residuals(linear.ridge) + targets[member.index].double()).float()
        # closed form of the same distance with the member itself left out
        left[member.index] = 1 / member.inverse_diagonal(linear.ridge) - linear.ridge * member.scale
        nearer = left < best
        estimates[nearer], chosen[nearer], best[nearer] = made[nearer], number, left[nearer]
    return estimates, chosen
