"""A reconstructor in closed form: for each class, the record is nearly linear in the direction the model moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.core.progress import track

RIDGES = tuple(10.0**power for power in range(-5, 3))
_ROWS_AT_ONCE = 1024
_TRIED = 2000  # shadow models that choose among the forms
_POOLED = 4000  # shadow models of a map without classes at most: its cost grows with their cube
_FEWEST = 2  # members of a class with a map of its own


@dataclass(frozen=True, eq=False)
class ClassMap:
    r"""Ridge regression of records on directions :math:`u`, in its dual form, among the members of one class.

    .. math:: \hat x(u) = \bar x + k(u)^T (K + \lambda s I)^{-1} (X - \bar x), \qquad
        k_i(u) = (u - m) \cdot (u_i - m) + s

    Notation: ``mean`` is :math:`m`, ``members`` the :math:`u_i - m`, ``scale`` :math:`s`, their mean square, ``offset``
    :math:`\bar x`, ``weights`` the inverse times the records.
    """

    mean: Tensor
    members: Tensor
    scale: float
    inverse: Tensor
    weights: Tensor
    offset: Tensor

    def __call__(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates (n, values), and how far each direction lies from those of the class: what they leave of it."""
        centred = directions - self.mean
        kernel = (centred @ self.members.T).double() + self.scale
        explained = ((kernel @ self.inverse) * kernel).sum(1)
        left = centred.double().square().sum(1) + self.scale - explained
        return (kernel @ self.weights + self.offset).float(), left


@dataclass(frozen=True, eq=False)
class LinearReconstruction:
    r"""Maps of all classes, and the choice among them by which class explains a model best.

    ``labels`` name the classes, None for one map of all records. ``ridge`` is :math:`\lambda`. ``by_direction``
    says whether models are read by the direction alone in which they lie from ``origin``.
    """

    origin: Tensor
    by_direction: bool
    maps: tuple[ClassMap, ...]
    labels: tuple[int, ...] | None
    ridge: float

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates (n, values) of models (n, parameters), and the index of the map that made each."""
        parts = [self._some(moved_from(self.origin, some, self.by_direction)) for some in rows.split(_ROWS_AT_ONCE)]
        return torch.cat([estimates for estimates, _ in parts]), torch.cat([chosen for _, chosen in parts])

    def _some(self, moved: Tensor) -> tuple[Tensor, Tensor]:
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
    """A closed form and what it makes of each shadow model that it has not seen: ``left_out`` (n, values)."""

    linear: LinearReconstruction
    left_out: Tensor
    chosen: Tensor
    error: float


@dataclass(frozen=True, eq=False)
class _Member:
    """One class while it is fitted: its rows, and the eigenvectors of their kernel."""

    index: Tensor
    mean: Tensor
    members: Tensor
    scale: float
    values: Tensor
    vectors: Tensor
    offset: Tensor
    turned: Tensor

    def inverse(self, ridge: float) -> Tensor:
        """(K + ridge s I)^-1."""
        return (self.vectors / (self.values + ridge * self.scale)) @ self.vectors.T

    def weights(self, ridge: float) -> Tensor:
        return self.vectors @ (self.turned / (self.values + ridge * self.scale)[:, None])

    def own(self, ridge: float) -> Tensor:
        """The diagonal of the inverse."""
        return (self.vectors.square() / (self.values + ridge * self.scale)).sum(1)

    def left_out(self, ridge: float) -> Tensor:
        """What each member would be taken for, were it not among them, less its true record."""
        return -self.weights(ridge) / self.own(ridge)[:, None]

    def fitted(self, ridge: float) -> ClassMap:
        weights = self.weights(ridge)
        return ClassMap(self.mean, self.members, self.scale, self.inverse(ridge), weights, self.offset)


def moved_from(origin: Tensor, rows: Tensor, by_direction: bool) -> Tensor:
    """Where each row (n, parameters) lies from ``origin``, or the unit vector there; the origin itself is zero."""
    moved: Tensor = rows.double() - origin
    if by_direction:
        moved = moved / moved.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return moved.float()


def linear_reconstruction(rows: Tensor, targets: Tensor, labels: Tensor, data_range: tuple[float, float]) -> LinearFit:
    r"""Fit of records to models: one ridge regression for each class on the direction from the mean shadow model.

    .. math:: u = (\theta - \bar\theta) / |\theta - \bar\theta|

    To first order a target moves the trained model by a linear map of its gradient, whose size, unlike its direction,
    depends on how surprising the target is; within a class the gradient is nearly linear in the record. The class is
    the one whose members leave least of the direction unexplained. The ridge is chosen by what each shadow model is
    taken for when left out, which has a closed form; so is the difference itself in place of its direction, and one map
    of all classes, where these err less.

    Assumes: ``labels`` are classes; floating point ones are ignored.
    Guarantee: nothing is chosen by a model that is attacked.
    """
    origin = sum((part.double().sum(0) for part in rows.split(_ROWS_AT_ONCE)), torch.zeros(())) / len(rows)
    pairs = _Pairs(rows, targets, labels, data_range, origin)
    chosen = torch.linspace(0, len(rows) - 1, min(len(rows), _TRIED)).round().long()
    some = replace(pairs, rows=rows[chosen], targets=targets[chosen], labels=labels[chosen])
    has_classes = not labels.is_floating_point() and labels.ndim == 1 and len(some.classes()) > 1
    forms = list(itertools.product((True, False), (True, False) if has_classes else (False,)))
    tried = {form: _fitted(some, *form) for form in track(forms, "forms")}
    best = min(forms, key=lambda form: tried[form].error)
    return tried[best] if len(rows) <= _TRIED else _fitted(pairs, *best)


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


def _fitted(pairs: _Pairs, by_direction: bool, by_class: bool) -> LinearFit:
    targets = pairs.targets
    moved = torch.cat([moved_from(pairs.origin, part, by_direction) for part in pairs.rows.split(_ROWS_AT_ONCE)])
    labels = pairs.classes() if by_class else None
    groups = [torch.arange(len(moved))[:_POOLED]]
    if labels is not None:
        groups = [(pairs.labels == label).nonzero().flatten() for label in labels]
    members = [_member(moved[index], targets[index], index) for index in groups]
    ridge = min(RIDGES, key=lambda each: _squares(members, targets, each, pairs.data_range))
    maps = tuple(each.fitted(ridge) for each in members)
    linear = LinearReconstruction(pairs.origin, by_direction, maps, labels, ridge)
    estimates, chosen = _left_out(linear, members, moved, targets)
    error = float((estimates.clamp(*pairs.data_range) - targets).square().mean())
    return LinearFit(linear, estimates, chosen, error)


def _member(moved: Tensor, targets: Tensor, index: Tensor) -> _Member:
    mean = moved.mean(0)
    members = moved - mean
    kernel = (members @ members.T).double()
    scale = max(float(kernel.diagonal().mean()), torch.finfo(torch.float32).tiny)
    values, vectors = torch.linalg.eigh(kernel + scale)
    offset = targets.double().mean(0)
    turned = vectors.T @ (targets.double() - offset)
    return _Member(index, mean, members, scale, values.clamp_min(0.0), vectors, offset, turned)


def _squares(members: Sequence[_Member], targets: Tensor, ridge: float, data_range: tuple[float, float]) -> float:
    total = 0.0
    for each in members:
        truth = targets[each.index].double()
        total += float(((each.left_out(ridge) + truth).clamp(*data_range) - truth).square().sum())
    return total


def _left_out(
    linear: LinearReconstruction, members: Sequence[_Member], moved: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """What each shadow model is taken for by maps that have not seen it, its class inferred without it too."""
    best = torch.full((len(moved),), math.inf, dtype=torch.float64)
    chosen = torch.zeros(len(moved), dtype=torch.int64)
    estimates = torch.zeros_like(targets)
    for number, (one, member) in enumerate(zip(linear.maps, members, strict=True)):
        parts = [one(part) for part in moved.split(_ROWS_AT_ONCE)]
        made, left = (torch.cat([part[place] for part in parts]) for place in (0, 1))
        made[member.index] = (member.left_out(linear.ridge) + targets[member.index].double()).float()
        left[member.index] = 1 / member.own(linear.ridge) - linear.ridge * member.scale
        nearer = left < best
        estimates[nearer], chosen[nearer], best[nearer] = made[nearer], number, left[nearer]
    return estimates, chosen
