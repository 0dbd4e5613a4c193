"""Training as a function of one unknown record, for many records at once: values and derivatives.

A :class:`Problem` is a training map that attacks invert. :class:`DefendedProblem` adds the deterministic part of a
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
_NO_NOISE = 1e-12  # noise multiplier below rounding; private training does not accept zero
_DIFFERENCE = 1e-4  # step of central differences: errors of rounding and curvature are about 1e-8 each
_LEADING = 64  # directions of the fixed records along which training with clipped gradients is differentiated
_COLUMNS = 128  # tangents pushed at once, limited by memory


class Problem(ABC):
    """Map from flat records (n, d) and their labels to the released values (n, p).

    Args:
        training: Training to invert. Its fixed records are those that the adversary knows.
        shape: Shape of a record.

    Attributes:
        shape: Shape of a record.
        d: Number of values of a record.
        inputs: Fixed records, flat.
        labels: Labels of the fixed records.
        classes: Number of classes that a record may have, None if labels are not classes.
    """

    coarse = torch.float64
    """Precision of the first steps."""

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
                # a copy: eval() must not change the given model
                outputs = copy.deepcopy(training.model).eval()(torch.zeros(1, *shape, dtype=kind))
            self.classes = int(outputs.shape[-1])

    @property
    def trainings(self) -> int:
        """Number of trainings so far."""
        return self._trained

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of released values."""

    @abstractmethod
    def to_row(self, named: Mapping[str, Tensor]) -> Tensor:
        """Concatenate released tensors, by name, to one row of values."""

    @abstractmethod
    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """Return the released values for each record, in the precision of the records."""

    @abstractmethod
    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Return the derivative (k, p) along directions (k, d) for one record, in its precision."""

    def jacobian(self, record: Tensor, label: Tensor) -> Tensor:
        """Return the derivative (d, p) for one record, in double precision."""
        return self.push(record.double(), label, torch.eye(self.d, dtype=torch.float64))

    def tangents(self, records: Tensor, labels: Tensor, directions: int) -> Tangents:
        """Return the derivative for each record, accurate enough for steps that are checked."""
        del directions  # a general network needs all of them
        whole = torch.eye(self.d, dtype=records.dtype)
        found = [self.push(record, label, whole) for record, label in zip(records, labels, strict=True)]
        return Tangents(whole.double(), torch.stack(found).double())

    def means(self) -> Tensor:
        """Return the mean of the fixed records of each class, or of all if it has none or there are no classes."""
        # without fixed records: the middle of the usual range [0, 1]
        whole = self.inputs.double().mean(0) if len(self.inputs) else torch.full((self.d,), 0.5, dtype=torch.float64)
        if self.classes is None:
            return whole[None]
        chosen = [self.inputs[self.labels == label].double() for label in range(self.classes)]
        return torch.stack([rows.mean(0) if len(rows) else whole for rows in chosen])


class WrappedProblem(Problem):
    """Another problem with its released values changed; it holds the records and counts the trainings."""

    def __init__(self, inner: Problem) -> None:
        for name in ("shape", "d", "inputs", "labels", "classes"):
            setattr(self, name, getattr(inner, name))
        self._inner, self.coarse = inner, inner.coarse

    @property
    def trainings(self) -> int:
        """Number of trainings of the inner problem."""
        return self._inner.trainings

    @property
    def size(self) -> int:
        """Number of released values."""
        return self._inner.size

    def to_row(self, named: Mapping[str, Tensor]) -> Tensor:
        """Concatenate released tensors to one row, unchanged."""
        return self._inner.to_row(named)


class ShadowProblem(Problem):
    """Training of many models together; most of the derivative of a dense network is an outer product."""

    coarse = torch.float32

    def __init__(self, training: ShadowTraining) -> None:
        super().__init__(training, tuple(training.fixed_inputs.shape[1:]))
        self._training = training

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return self._training.size

    def to_row(self, named: Mapping[str, Tensor]) -> Tensor:
        """Concatenate parameters in the order of the training."""
        return self._training.flatten(named)

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """Train one model per record, in chunks."""
        self._trained += len(records)
        parts = zip(records.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
        # the noise is below rounding, so any generator gives the same models
        quiet = None if self._training.private is None else torch.Generator().manual_seed(0)
        trained = [self._training.train(some.unflatten(1, self.shape), known, rng=quiet) for some, known in parts]
        return torch.cat(trained)

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Push all tangents through the training at once."""
        self._trained += len(directions)
        point = record.view(1, *self.shape)
        return self._training.push(point, label[None], directions.to(record.dtype).unflatten(1, self.shape))

    def tangents(self, records: Tensor, labels: Tensor, directions: int) -> Tangents:
        """Return the derivative along the leading directions of the fixed records, and the direct part for all others.

        Training ends with the first weights :math:`a W_0 + A X + c x^T`, where :math:`W_0` are the first weights at the
        start, X the fixed records, x the unknown record, a is a number, A a matrix and c a vector. A change of x that
        is orthogonal to the fixed records X, to x and to the first weights leaves A and c unchanged, so that it moves
        the model by c alone.
        """
        first = self._first
        if first is None or directions + 1 >= self.d:  # no saving over the whole derivative
            return super().tangents(records, labels, directions)
        basis, (begin, units) = self._basis[:directions], first
        # the direction of least variation stands for all outside the basis: its tangent gives the direct part c
        probes = torch.cat([basis, self._basis[-1:]])
        pairs = zip(records, labels, strict=True)
        pushed = torch.stack([self.push(record, label, probes) for record, label in pairs])
        last = pushed[:, -1, begin : begin + units * self.d].unflatten(1, (units, self.d))
        return Tangents(basis, pushed[:, :-1], last.double() @ self._basis[-1], begin)

    @cached_property
    def _basis(self) -> Tensor:
        """Orthonormal directions (d, d); fixed records and first weights vary most along the first directions."""
        begin, units = self._first or (0, 0)
        weights = self._training.start(torch.float64)[begin : begin + units * self.d].view(units, self.d)
        gram = self.inputs.double().T @ self.inputs.double() / max(1, len(self.inputs)) + weights.T @ weights
        vectors: Tensor = torch.linalg.eigh(gram)[1]
        return vectors.T.flip(0).contiguous()  # eigh sorts ascending

    @cached_property
    def _first(self) -> tuple[int, int] | None:
        """Offset and number of units of the first weights; None unless gradient descent trains a dense network."""
        layers = dense_layers(self._training.model)
        if layers is None or not isinstance(self._training.optimizer, StochasticGradientDescent):
            return None
        place = self._training.names.index(layers[0].weight)
        return sum(torch.Size(shape).numel() for shape in self._training.shapes[:place]), layers[0].fan_out


class ClippedProblem(ShadowProblem):
    """Training with clipped gradients, without the noise that was added to their sums."""

    def __init__(self, training: ShadowTraining, private: Gaussian) -> None:
        super().__init__(replace(training, private=Gaussian(_NO_NOISE, private.clip_norm)))

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Return central differences in double precision; clipped gradients have kinks."""
        steps = _DIFFERENCE * directions.double()
        moved = torch.cat([record.double() + steps, record.double() - steps])
        ahead, behind = self.values(moved, label.expand(len(moved), *label.shape)).chunk(2)
        return ((ahead - behind) / (2 * _DIFFERENCE)).to(record.dtype)

    def jacobian(self, record: Tensor, label: Tensor) -> Tensor:
        """Return the derivative (d, p) along the record and leading directions, and the direct part elsewhere.

        Exact if these directions span the fixed records and the first weights. To first order a change that is
        orthogonal to them and to the record changes the norm of no gradient, so that clipping has no effect on it.
        """
        if self._first is None or self.d <= _LEADING + 2:
            return super().jacobian(record, label)
        begin, units = self._first
        leading = torch.cat([self._basis[:_LEADING], record.double()[None]])
        # QR keeps the order: the last row is orthogonal to the leading directions and to the record
        basis = torch.linalg.qr(torch.cat([leading, self._basis[-1:]]).T)[0].T
        basis, outside = basis[:-1], basis[-1:]
        pushed = self.push(record.double(), label, torch.cat([basis, outside]))
        direct = pushed[-1, begin : begin + units * self.d].view(units, self.d) @ outside[0]
        whole: Tensor = basis.T @ pushed[:-1]
        rest = torch.eye(self.d, dtype=torch.float64) - basis.T @ basis
        whole[:, begin : begin + units * self.d] += torch.einsum("u,ij->iuj", direct, rest).flatten(1)
        return whole


class MapProblem(Problem):
    """Any training, and any part of its result, one record at a time."""

    def __init__(self, training: TrainingMap, shape: tuple[int, ...]) -> None:
        super().__init__(training, shape)
        self._map = training
        start = training.start(torch.float64)
        self._sizes = {name: value.numel() for name, value in start.items()}

    @property
    def size(self) -> int:
        """Number of released values."""
        return sum(self._sizes.values())

    def to_row(self, named: Mapping[str, Tensor]) -> Tensor:
        """Concatenate released tensors in the order of the training."""
        return torch.cat([named[name].detach().flatten() for name in self._sizes])

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """Run one training per record."""
        self._trained += len(records)
        with torch.no_grad():
            pairs = zip(records.unflatten(1, self.shape), labels, strict=True)
            return torch.stack([self.to_row(self._map(record[None], label[None])) for record, label in pairs])

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Push tangents through the training, vectorised."""
        self._trained += len(directions)
        push = self._map.linearize(record.view(1, *self.shape), label[None]).push
        whole = directions.to(record.dtype).view(len(directions), 1, *self.shape)
        push(whole[0])  # raises for a layer without forward mode, which vmap would hide
        parts = [torch.func.vmap(push)(some) for some in whole.split(_COLUMNS)]
        return torch.cat([torch.cat([part[name].flatten(1) for name in self._sizes], 1).detach() for part in parts])


def problem_for(training: Training, shape: tuple[int, ...] | None = None) -> Problem:
    """Choose the fastest way to invert a training.

    Args:
        training: Training that was run on the fixed records.
        shape: Shape of a record, needed if there are no fixed records.

    Returns:
        The training as a function of the unknown record.

    Raises:
        InvalidInput: If the training is random in a way that cannot be inverted, or the shape is unknown.
    """
    plain = training.forward if isinstance(training, TrainedModelRelease) else training
    if isinstance(plain, ShadowTraining):
        if private_noise_std(plain) is not None and plain.private is not None:
            return ClippedProblem(plain, plain.private)
        if plain.is_random:
            raise _random_training_error(plain)
        return ShadowProblem(plain)
    together = _as_shadow_training(plain)
    if together is not None:
        return ShadowProblem(together)
    known = shape if plain.fixed_inputs is None else tuple(plain.fixed_inputs.shape[1:])
    if known is None:
        raise invalid_input(
            "shape of a record",
            None,
            "to be known",
            "Call the attack with an observation: the training has no fixed records.",
        )
    return MapProblem(plain, known)


def _random_training_error(training: ShadowTraining) -> InvalidInput:
    """Error for a training with random parts, with alternatives."""
    instead = "rr.attacks.reconstructor with rr.attacks.ShadowKnowledge handles"
    if training.draw_start is not None or isinstance(training.batches, RandomBatches):
        remedy = f"Pass the initialisation and order that were drawn; {instead} unknown ones."
        return invalid_input(
            "training", "with a random initialisation or order", "to be a function of the record", remedy
        )
    rule = training.optimizer
    how = "Nesterov's momentum or dampening" if isinstance(rule, StochasticGradientDescent) else type(rule).__name__
    how = "batches" if training.batches is not None else how
    remedy = (
        "Private training can be inverted if rr.releases.sgd takes all records in every step (batches=None), with or "
        f"without momentum, but not with Nesterov's momentum or dampening; {instead} other optimizers and batches."
    )
    return invalid_input("training", f"private, with {how}", "to be full-batch gradient descent", remedy)


def private_noise_std(training: Training | None) -> float | None:
    r"""Standard deviation of the noise that private training leaves in each value of the model, to first order.

    .. math:: \eta\, \frac{\sigma C}{m + 1} \sqrt{\sum_{j=1}^T \Big(\frac{1 - \mu^j}{1 - \mu}\Big)^2}

    Here :math:`\eta` is the learning rate, :math:`\mu` the momentum, :math:`\sigma` the noise multiplier, C the clip
    norm, and m the number of fixed records. Each of T steps has noise of standard deviation :math:`\sigma C` on the sum
    of m + 1 clipped gradients. The effect of the noise on the gradients of later steps is neglected.

    Args:
        training: Training that was run on the fixed records.

    Returns:
        The standard deviation, None for training without noise.

    Edge cases: None as well for rules other than plain momentum, batches and random initialisations, which are not
    inverted.
    """
    if not isinstance(training, ShadowTraining) or training.private is None:
        return None
    rule = training.optimizer
    if training.batches is not None or training.draw_start is not None or training.steps is None:
        return None
    if not isinstance(rule, StochasticGradientDescent) or rule.nesterov or rule.dampening:
        return None
    # noise of a step moves the final model by the sum of its momentum over all later steps
    lasting = [sum(rule.momentum**i for i in range(j)) for j in range(1, training.steps + 1)]
    each = rule.learning_rate * training.private.noise_std / (len(training.fixed_inputs) + 1)
    return float(each * sum(value**2 for value in lasting) ** 0.5)


def _as_shadow_training(training: TrainingMap) -> ShadowTraining | None:
    """The same training for many models at once, if all parameters of a dense network are released; else None."""
    fixed, labels = training.fixed_inputs, training.fixed_labels
    partial = training.queries is not None or training.parameters is not None
    if fixed is None or labels is None or partial or dense_layers(training.model) is None:
        return None
    settings = (training.optimizer, training.steps, training.loss_fn, training.batches)
    return ShadowTraining(training.model, fixed, labels, *settings)


_FAR = 1e6  # times the sent values: a norm that any clipping changes


def only_adds_noise(defense: Defense, sent: Mapping[str, Tensor]) -> bool:
    """Return True if a defense changes released values only by its noise, also values that are far larger.

    Args:
        defense: The defense.
        sent: Values to test it on, by name.

    Returns:
        True if the deterministic part of the defense is the identity.

    >>> from reconrisk.defenses.noise import clip_and_noise, gaussian_noise
    >>> clipping = clip_and_noise(noise_multiplier=1.0, clip_norm=9.0)
    >>> [only_adds_noise(defense, {"w": torch.ones(2)}) for defense in (gaussian_noise(0.1), clipping)]
    [True, False]
    """
    for scale in (1.0, _FAR):
        values = {name: scale * value for name, value in sent.items()}
        replayed = defense.replay(values)
        if any(not torch.equal(replayed[name], value) for name, value in values.items()):
            return False
    return True


class DefendedProblem(WrappedProblem):
    """Another problem whose released values pass through the deterministic part of a defense."""

    def __init__(self, inner: Problem, defense: Defense, released: Mapping[str, Tensor]) -> None:
        super().__init__(inner)
        self._defense = defense
        self._shapes = {name: tuple(value.shape) for name, value in released.items()}
        # numbering the released values and flattening them like the inner problem gives the permutation between both
        places = torch.arange(inner.size, dtype=torch.float64).split([value.numel() for value in released.values()])
        numbered = {
            name: place.view(value.shape) for (name, value), place in zip(released.items(), places, strict=True)
        }
        self._order = inner.to_row(numbered).long()

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """Return the sent values for each record, without the noise."""
        return torch.stack([self._replay_row(row) for row in self._inner.values(records, labels)])

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Return the derivative of training followed by the defense."""
        row = self._inner.values(record[None], label[None])[0]
        pushed = self._inner.push(record, label, directions)
        return torch.stack([torch.func.jvp(self._replay_row, (row,), (tangent,))[1] for tangent in pushed])

    def _replay_row(self, row: Tensor) -> Tensor:
        """Apply the defense to a row: split by name, replay, concatenate."""
        apart = torch.empty_like(row).index_copy(0, self._order, row)
        sizes = [torch.Size(shape).numel() for shape in self._shapes.values()]
        parts = zip(self._shapes.items(), apart.split(sizes), strict=True)
        replayed = self._defense.replay({name: part.view(shape) for (name, shape), part in parts})
        whole = torch.cat([replayed[name].reshape(-1) for name in self._shapes])
        return whole[self._order]
