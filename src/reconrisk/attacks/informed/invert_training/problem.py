"""Training as a function of one unknown record, for many records at once: values and derivatives.

A :class:`Problem` is a training map that attacks invert. :class:`Defended` follows it with the deterministic part of a
known defense, such as clipping.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.attacks.informed.invert_training.tangents import Tangents
from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.validation import invalid_input
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.dense import dense_layers
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import StochasticGradientDescent
from reconrisk.releases.training.trained_model import TrainedModelRelease, TrainingMap

Training = ShadowTraining | TrainingMap | TrainedModelRelease

_AT_ONCE = 512  # models trained in one call: more do not run faster
_NO_NOISE = 1e-12  # a noise multiplier that rounding hides
_DIFFERENCE = 1e-4  # of the data: rounding and curvature cost about 1e-8 each
_LEADING = 64  # directions of the fixed records along which training with clipped gradients is differenced
_COLUMNS = 128  # tangents pushed at once through training that is differentiated


class Problem(ABC):
    """Flat records (n, d) and their labels to the released values (n, p), with what is known of the fixed records.

    ``classes`` are the labels that a record may have, None where labels are no classes.
    """

    coarse = torch.float64
    """The precision of the first steps."""

    def __init__(self, training: ShadowTraining | TrainingMap, shape: tuple[int, ...]) -> None:
        self._trained = 0
        self.shape, self.d = shape, torch.Size(shape).numel()
        fixed, labels = training.fixed_inputs, training.fixed_labels
        self.inputs = torch.zeros(0, self.d) if fixed is None else fixed.flatten(1)
        self.labels = torch.zeros(0, dtype=torch.int64) if labels is None else labels
        self.classes: int | None = None
        if not self.labels.is_floating_point() and self.labels.ndim == 1:
            kind = next((value.dtype for value in training.model.parameters()), torch.float32)
            with torch.no_grad():
                outputs = copy.deepcopy(training.model).eval()(torch.zeros(1, *shape, dtype=kind))
            self.classes = int(outputs.shape[-1])

    @property
    def trainings(self) -> int:
        """How many trainings there were."""
        return self._trained

    @property
    @abstractmethod
    def size(self) -> int:
        """How many values are released."""

    @abstractmethod
    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """What was released, by name, as one row of values."""

    @abstractmethod
    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """What is released for each record, in the precision of the records."""

    @abstractmethod
    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """The derivative (k, p) along directions (k, d) for one record, in its precision."""

    def jacobian(self, record: Tensor, label: Tensor) -> Tensor:
        """The derivative (d, p) for one record, in double precision."""
        return self.push(record.double(), label, torch.eye(self.d, dtype=torch.float64))

    def tangents(self, records: Tensor, labels: Tensor, directions: int) -> Tangents:
        """The derivative for each record: good enough for steps that are checked."""
        del directions  # without knowledge of the network all are needed
        whole = torch.eye(self.d, dtype=records.dtype)
        found = [self.push(record, label, whole) for record, label in zip(records, labels, strict=True)]
        return Tangents(whole.double(), torch.stack(found).double())

    def means(self) -> Tensor:
        """For each class the mean of its fixed records; of all where it has none, or where there are no classes."""
        whole = self.inputs.double().mean(0) if len(self.inputs) else torch.full((self.d,), 0.5, dtype=torch.float64)
        if self.classes is None:
            return whole[None]
        chosen = [self.inputs[self.labels == label].double() for label in range(self.classes)]
        return torch.stack([rows.mean(0) if len(rows) else whole for rows in chosen])


class Wrapped(Problem):
    """Another problem, which holds the records and counts the trainings, with its released values changed."""

    def __init__(self, inner: Problem) -> None:
        for name in ("shape", "d", "inputs", "labels", "classes"):
            setattr(self, name, getattr(inner, name))
        self._inner, self.coarse = inner, inner.coarse

    @property
    def trainings(self) -> int:
        """Those of the inner problem, where they happen."""
        return self._inner.trainings

    @property
    def size(self) -> int:
        """How many values are released."""
        return self._inner.size

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Released values as one row, as they are."""
        return self._inner.flatten(named)


class ShadowProblem(Problem):
    """Models trained together; the derivative of dense networks is mostly that of a product of two vectors."""

    coarse = torch.float32

    def __init__(self, training: ShadowTraining) -> None:
        super().__init__(training, tuple(training.fixed_inputs.shape[1:]))
        self._training = training

    @property
    def size(self) -> int:
        """How many parameters are trained."""
        return self._training.size

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Parameters in the order of the training."""
        return self._training.flatten(named)

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """All trainings together, some at a time."""
        self._trained += len(records)
        parts = zip(records.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
        quiet = None if self._training.private is None else torch.Generator().manual_seed(0)
        trained = [self._training.train(some.unflatten(1, self.shape), known, rng=quiet) for some, known in parts]
        return torch.cat(trained)

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Tangents through the training, all together."""
        self._trained += len(directions)
        point = record.view(1, *self.shape)
        return self._training.push(point, label[None], directions.to(record.dtype).unflatten(1, self.shape))

    def tangents(self, records: Tensor, labels: Tensor, directions: int) -> Tangents:
        r"""The derivative along the fixed records' leading directions, and the direct part for all others.

        The first weights end at :math:`a W_0 + A X + c x^T`. A change of x that is orthogonal to the fixed records X,
        to x and to the first weights leaves A and c as they are, so that it moves the model by c alone.
        """
        first = self._first
        if first is None or directions + 1 >= self.d:
            return super().tangents(records, labels, directions)
        basis, (begin, units) = self._basis[:directions], first
        probes = torch.cat([basis, self._basis[-1:]])
        pairs = zip(records, labels, strict=True)
        pushed = torch.stack([self.push(record, label, probes) for record, label in pairs])
        last = pushed[:, -1, begin : begin + units * self.d].unflatten(1, (units, self.d))
        return Tangents(basis, pushed[:, :-1], last.double() @ self._basis[-1], begin)

    @cached_property
    def _basis(self) -> Tensor:
        """Orthonormal directions (d, d), those along which fixed records and first weights vary most first."""
        begin, units = self._first or (0, 0)
        weights = self._training.start(torch.float64)[begin : begin + units * self.d].view(units, self.d)
        gram = self.inputs.double().T @ self.inputs.double() / max(1, len(self.inputs)) + weights.T @ weights
        vectors: Tensor = torch.linalg.eigh(gram)[1]
        return vectors.T.flip(0).contiguous()

    @cached_property
    def _first(self) -> tuple[int, int] | None:
        """Where the first weights begin in a row, and how many units they feed; None where they end otherwise."""
        layers = dense_layers(self._training.model)
        if layers is None or not isinstance(self._training.optimizer, StochasticGradientDescent):
            return None
        place = self._training.names.index(layers[0].weight)
        return sum(torch.Size(shape).numel() for shape in self._training.shapes[:place]), layers[0].fan_out


class ClippedProblem(ShadowProblem):
    """Training with clipped gradients, as it would be without the noise that was added to their sums."""

    def __init__(self, training: ShadowTraining, private: Gaussian) -> None:
        super().__init__(replace(training, private=Gaussian(_NO_NOISE, private.clip_norm)))

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Central differences in double precision: a clipped gradient has no derivative where clipping sets in."""
        steps = _DIFFERENCE * directions.double()
        moved = torch.cat([record.double() + steps, record.double() - steps])
        ahead, behind = self.values(moved, label.expand(len(moved), *label.shape)).chunk(2)
        return ((ahead - behind) / (2 * _DIFFERENCE)).to(record.dtype)

    def jacobian(self, record: Tensor, label: Tensor) -> Tensor:
        """The derivative (d, p) along the record and the fixed records' leading directions, the direct part elsewhere.

        Exact where these directions span the fixed records and the first weights: to first order a change that is
        orthogonal to them and to the record changes no gradient's norm, so that clipping does not see it.
        """
        if self._first is None or self.d <= _LEADING + 2:
            return super().jacobian(record, label)
        begin, units = self._first
        leading = torch.cat([self._basis[:_LEADING], record.double()[None]])
        basis = torch.linalg.qr(torch.cat([leading, self._basis[-1:]]).T)[0].T
        basis, beside = basis[:-1], basis[-1:]
        pushed = self.push(record.double(), label, torch.cat([basis, beside]))
        direct = pushed[-1, begin : begin + units * self.d].view(units, self.d) @ beside[0]
        whole: Tensor = basis.T @ pushed[:-1]
        rest = torch.eye(self.d, dtype=torch.float64) - basis.T @ basis
        whole[:, begin : begin + units * self.d] += torch.einsum("u,ij->iuj", direct, rest).flatten(1)
        return whole


class MapProblem(Problem):
    """Any training and any part of what it leaves, one record after the other."""

    def __init__(self, training: TrainingMap, shape: tuple[int, ...]) -> None:
        super().__init__(training, shape)
        self._map = training
        start = training.start(torch.float64)
        self._sizes = {name: value.numel() for name, value in start.items()}

    @property
    def size(self) -> int:
        """How many values are released."""
        return sum(self._sizes.values())

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Released values in the order of the training."""
        return torch.cat([named[name].detach().flatten() for name in self._sizes])

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """One training after the other."""
        self._trained += len(records)
        with torch.no_grad():
            pairs = zip(records.unflatten(1, self.shape), labels, strict=True)
            return torch.stack([self.flatten(self._map(record[None], label[None])) for record, label in pairs])

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Tangents through the training, vectorised."""
        self._trained += len(directions)
        push = self._map.linearized(record.view(1, *self.shape), label[None]).push
        whole = directions.to(record.dtype).view(len(directions), 1, *self.shape)
        push(whole[0])  # a layer without forward mode is noticed here: under vmap it could not be
        parts = [torch.func.vmap(push)(some) for some in whole.split(_COLUMNS)]
        return torch.cat([torch.cat([part[name].flatten(1) for name in self._sizes], 1).detach() for part in parts])


def problem_for(training: Training, shape: tuple[int, ...] | None = None) -> Problem:
    """The fastest way to invert ``training``, for records of ``shape`` where it has no fixed ones that tell."""
    plain = training.forward if isinstance(training, TrainedModelRelease) else training
    if isinstance(plain, ShadowTraining):
        if noise_of(plain) is not None and plain.private is not None:
            return ClippedProblem(plain, plain.private)
        if plain.is_random:
            raise _refused(plain)
        return ShadowProblem(plain)
    together = _together(plain)
    if together is not None:
        return ShadowProblem(together)
    known = shape if plain.fixed_inputs is None else tuple(plain.fixed_inputs.shape[1:])
    if known is None:
        raise invalid_input(
            "shape", None, "to be that of a record", "Pass input_shape=..., there are no fixed records."
        )
    return MapProblem(plain, known)


def _refused(training: ShadowTraining) -> InvalidInput:
    """Why a training that draws something cannot be inverted, and what serves instead."""
    elsewhere = "rr.attacks.reconstructor with rr.attacks.ShadowKnowledge serves for"
    if training.draw_start is not None or isinstance(training.batches, RandomBatches):
        remedy = f"Pass the start and the order that were drawn; {elsewhere} unknown ones."
        return invalid_input("training", "with a drawn start or order", "to be a function of the record", remedy)
    rule = training.optimizer
    how = "Nesterov's momentum or dampening" if isinstance(rule, StochasticGradientDescent) else type(rule).__name__
    how = "batches" if training.batches is not None else how
    remedy = (
        "Private training is inverted where rr.releases.sgd takes all records in every step (batches=None), with momentum or "
        f"without, not Nesterov's and not dampened; {elsewhere} other rules and for batches."
    )
    return invalid_input("training", f"private, with {how}", "to be full-batch gradient descent", remedy)


def noise_of(training: Training | None) -> float | None:
    r"""The noise that private training leaves in each value of the model, to first order; None where there is none.

    .. math:: \eta\, \frac{\sigma C}{m + 1} \sqrt{\sum_{j=1}^T \Big(\frac{1 - \mu^j}{1 - \mu}\Big)^2}

    Notation: learning rate :math:`\eta`, momentum :math:`\mu`, T steps with noise :math:`\sigma C` on the sum of m + 1
    clipped gradients. That later steps move on from what noise has changed is left out.
    Edge cases: None as well for rules other than plain momentum, batches and drawn starts, which are not inverted.
    """
    if not isinstance(training, ShadowTraining) or training.private is None:
        return None
    rule = training.optimizer
    if training.batches is not None or training.draw_start is not None or training.steps is None:
        return None
    if not isinstance(rule, StochasticGradientDescent) or rule.nesterov or rule.dampening:
        return None
    lasting = [sum(rule.momentum**i for i in range(j)) for j in range(1, training.steps + 1)]
    each = rule.learning_rate * training.private.noise_std / (len(training.fixed_inputs) + 1)
    return float(each * sum(value**2 for value in lasting) ** 0.5)


def _together(training: TrainingMap) -> ShadowTraining | None:
    """The same training for many models at once, where all parameters of a dense network are released."""
    fixed, labels = training.fixed_inputs, training.fixed_labels
    partial = training.queries is not None or training.parameters is not None
    if fixed is None or labels is None or partial or dense_layers(training.model) is None:
        return None
    settings = (training.optimizer, training.steps, training.loss_fn, training.batches)
    return ShadowTraining(training.model, fixed, labels, *settings)


_FAR = 1e6  # times what was sent: a norm that any clipping changes


def adds_noise_alone(defense: Defense, sent: Mapping[str, Tensor]) -> bool:
    """Whether a defense leaves the values that it sends as they are but for its noise, also far larger ones.

    >>> from reconrisk.defenses.noise import clip_and_noise, gaussian_noise
    >>> clipping = clip_and_noise(noise_multiplier=1.0, clip_norm=9.0)
    >>> [adds_noise_alone(defense, {"w": torch.ones(2)}) for defense in (gaussian_noise(0.1), clipping)]
    [True, False]
    """
    for scale in (1.0, _FAR):
        values = {name: scale * value for name, value in sent.items()}
        replayed = defense.replay(values)
        if any(not torch.equal(replayed[name], value) for name, value in values.items()):
            return False
    return True


class Defended(Wrapped):
    """Another problem whose released values pass through the part of a defense that is no chance."""

    def __init__(self, inner: Problem, defense: Defense, released: Mapping[str, Tensor]) -> None:
        super().__init__(inner)
        self._defense = defense
        self._shapes = {name: tuple(value.shape) for name, value in released.items()}
        places = torch.arange(inner.size, dtype=torch.float64).split([value.numel() for value in released.values()])
        numbered = {
            name: place.view(value.shape) for (name, value), place in zip(released.items(), places, strict=True)
        }
        self._order = inner.flatten(numbered).long()

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """What is sent for each record, but for the noise."""
        return torch.stack([self._replayed(row) for row in self._inner.values(records, labels)])

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """The derivative of training, and along it that of the defense."""
        row = self._inner.values(record[None], label[None])[0]
        pushed = self._inner.push(record, label, directions)
        return torch.stack([torch.func.jvp(self._replayed, (row,), (tangent,))[1] for tangent in pushed])

    def _replayed(self, row: Tensor) -> Tensor:
        """A row through the defense: by names, and back."""
        apart = torch.empty_like(row).index_copy(0, self._order, row)
        sizes = [torch.Size(shape).numel() for shape in self._shapes.values()]
        parts = zip(self._shapes.items(), apart.split(sizes), strict=True)
        replayed = self._defense.replay({name: part.view(shape) for (name, shape), part in parts})
        whole = torch.cat([replayed[name].reshape(-1) for name in self._shapes])
        return whole[self._order]
