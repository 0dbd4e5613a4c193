"""A model trained on fixed and private records: the trained parameters as a function of the private records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import track
from reconrisk.core.validation import check_all_finite, check_not_empty, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction, match_parameter_names
from reconrisk.releases.release import Linearized, Release, check_records, linearize_graph
from reconrisk.releases.training.optimizers import UpdateRule
from reconrisk.releases.training.unrolled import (
    Batch,
    Checkpoints,
    Gradient,
    Named,
    Trainee,
    TrainingState,
    check_repeatable,
    functional_gradient,
    make_checkpoints,
    prepare_trainee,
    recorded_gradient,
    treats_records_apart,
)

Rows: TypeAlias = Tensor | Sequence[int]

_TRIED = 64  # records of the first batch on which a step is repeated, to find randomness


@dataclass(frozen=True, eq=False)
class TrainingMap:
    r"""Forward map from private records and labels to the model trained on them together with fixed records.

    .. math:: (x, y) \mapsto \theta_T, \qquad \theta_t = \theta_{t-1} - U(\nabla_\theta\, \ell(\theta_{t-1}; B_t))

    Here (x, y) are the private records and labels, :math:`\theta_t` the parameters after step t, :math:`\ell` the
    training loss, and :math:`B_t` the batch of step t. Released is everything that training changes, under the model's
    names: parameters, and running statistics of batch norm in train mode.

    Attributes:
        model: The network; training starts from its state at construction and leaves it unchanged.
        loss_fn: Loss of the outputs and labels of a batch, one number.
        optimizer: Update rule U, such as ``rr.releases.sgd(0.1)``.
        steps: Number of steps; may be left out with ``batches``.
        fixed_inputs: Records that are known and do not vary, ``(m, *shape)``.
        fixed_labels: Their labels.
        batches: Rows of each batch :math:`B_t`, counting the fixed records first; by default every step uses all
            records.
        queries: Inputs whose ``logits`` in eval mode are released instead of the parameters.
        parameters: Names of the released parameters or layers ("head" means all of that layer); by default all.
        checkpoint_every: Steps between the states that reverse mode keeps; by default the whole graph is kept.

    Assumes: training is a function of the records: model and loss are not random, and no buffer except batch norm's
    depends on records.
    Guarantee: training starts from the state of ``model`` at construction, even if ``model`` changes later, and does
    not change it. Precision is that of the records.
    Edge cases: layers in eval mode stay in it. Dropout in train mode and trained weight norm are refused. Batch norm in
    train mode mixes the records of a batch, and the derivative includes this. A parameter that the loss does not use
    has gradient zero. Modules that ``torch.func`` cannot trace are trained by plain autograd, which differentiates
    backward only.

    >>> from reconrisk.releases.training.optimizers import sgd
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> one = torch.ones(1, 1)
    >>> training = TrainingMap(model, nn.functional.mse_loss, sgd(0.25), steps=2, fixed_inputs=one, fixed_labels=one)
    >>> training(one, 3 * one)["weight"]  # half way from 0 to the mean label 2, twice
    tensor([[1.5000]])
    """

    model: nn.Module
    loss_fn: LossFunction
    optimizer: UpdateRule
    steps: int | None = None
    fixed_inputs: Tensor | None = field(default=None, repr=False)
    fixed_labels: Tensor | None = field(default=None, repr=False)
    batches: Sequence[Rows] | None = field(default=None, repr=False)
    queries: Tensor | None = field(default=None, repr=False)
    parameters: Sequence[str] | None = None
    checkpoint_every: int | None = None
    _trainee: Trainee = field(init=False, repr=False)
    _names: tuple[str, ...] = field(init=False, repr=False)
    _apart: bool = field(init=False, repr=False)
    _count: int = field(init=False, repr=False)
    _batches: tuple[Tensor, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rule: object = self.optimizer
        if not isinstance(rule, UpdateRule):
            given = type(rule).__name__
            raise invalid_input(
                "type(optimizer)", given, "to be an update rule", "Pass rr.releases.sgd(...) or rr.releases.adam(...)."
            )
        _check_fixed(self.fixed_inputs, self.fixed_labels)
        batches = None if self.batches is None else _check_batches(self.batches)
        steps = _check_steps(self.steps, batches)
        if self.checkpoint_every is not None:
            check_whole("checkpoint_every", self.checkpoint_every)
        own = prepare_trainee(self.model)
        names = own.changed_names()
        if self.parameters is not None:
            check_not_empty("parameters", self.parameters)
            wanted = match_parameter_names(self.parameters, names)
            names = tuple(name for name in names if name in wanted)
        if self.queries is not None:
            check_tensor("queries", self.queries)
            check_not_empty("queries", self.queries)
            check_all_finite("queries", self.queries)
            if self.parameters is not None:
                raise invalid_input(
                    "parameters",
                    self.parameters,
                    "to be None if queries are given",
                    "Remove parameters: with queries only logits are released.",
                )
        # Keep a copy: the user may train the original further.
        object.__setattr__(self, "model", own.model)
        object.__setattr__(self, "_count", steps)
        object.__setattr__(self, "_batches", batches)
        object.__setattr__(self, "_trainee", own)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_apart", treats_records_apart(own.model, self.fixed_inputs))

    def __call__(self, inputs: Tensor, labels: Tensor) -> Named:
        """Return the released tensors, differentiable in ``inputs``, also by the transforms of ``torch.func``."""
        try:
            return self._compute_release(inputs, labels, functional_gradient)
        except RuntimeError:  # torch.func cannot trace a layer; for other causes plain autograd raises the error again
            with torch.set_grad_enabled(torch.is_grad_enabled() and inputs.requires_grad):
                return self._compute_release(inputs, labels, recorded_gradient)

    def start(self, dtype: torch.dtype) -> Named:
        """Return the released tensors before the first step, in precision ``dtype``."""
        return self._select_released(self._trainee.start(dtype))

    def linearize(self, inputs: Tensor, labels: Tensor) -> Linearized:
        """Return the derivative at ``inputs``: ``push`` by forward mode, ``pull`` by reverse mode through the steps.

        ``push`` keeps no graph: its memory does not grow with the steps. ``torch.func.vmap(push)`` takes a batch of
        tangents that share one training. ``pull`` records the training once and keeps the graph for all pulls, and
        ``torch.func.vmap(pull)`` takes a batch. With ``checkpoint_every=k`` it keeps every k-th state instead and
        repeats the training, k steps at a time, in each pull.
        Edge cases: if a layer has no forward mode, ``push`` differentiates the recorded training twice; vmap then works
        once ``push`` has been called without it.
        """
        leaf = inputs.detach().clone().requires_grad_()  # outside of push and pull, which may run under vmap
        release = partial(self._compute_release, gradient=functional_gradient)

        @cache
        def reverse() -> Linearized:
            with torch.enable_grad():
                return linearize_graph(leaf, self(leaf, labels))

        @cache
        def keep_states() -> Checkpoints:
            advance = partial(self._train_steps, inputs=leaf, labels=labels, gradient=recorded_gradient)
            spacing = self.checkpoint_every or self._count
            return make_checkpoints(self._trainee.start(leaf.dtype), advance, range(self._count), spacing)

        def push(tangents: Tensor) -> Named:
            if tangents.shape != inputs.shape:
                raise invalid_input(
                    "tangents.shape", tuple(tangents.shape), f"to be {tuple(inputs.shape)}, like the records"
                )
            try:
                return _push_tangents(release, inputs.detach(), labels, tangents.to(inputs.dtype))
            except RuntimeError:  # a layer without forward mode
                return reverse().push(tangents)

        def pull(cotangents: Mapping[str, Tensor]) -> Tensor:
            if self.checkpoint_every is None:
                return reverse().pull(cotangents)
            return keep_states().pull(cotangents, self._select_released, leaf)

        return Linearized(push, pull, leaf)

    def _compute_release(self, inputs: Tensor, labels: Tensor, gradient: Gradient) -> Named:
        state = self._train_steps(self._trainee.start(inputs.dtype), range(self._count), inputs, labels, gradient)
        return self._select_released(state)

    def _select_released(self, state: TrainingState) -> Named:
        """Return the released part of a training state: named tensors, or the logits of the queries."""
        if self.queries is None:
            values = {**state.statistics, **state.parameters}
            return {name: values[name] for name in self._names}
        dtype = next(iter(state.parameters.values())).dtype
        return {"logits": self._trainee.outputs(state, self.queries.to(dtype))}

    def _train_steps(
        self, state: TrainingState, steps: range, inputs: Tensor, labels: Tensor, gradient: Gradient
    ) -> TrainingState:
        """Return the state after some steps of training."""
        everything = self._everything(inputs, labels)
        for number in track(steps, "training"):
            batch = everything if self._batches is None else _take_rows(everything, self._batches[number])
            state = self._trainee.step(state, batch, self.loss_fn, self.optimizer, gradient, self._apart)
        return state

    def check(self, inputs: Tensor, labels: Tensor) -> None:
        """Refuse records that do not fit the fixed ones and the batches, and steps that are random."""
        everything = self._everything(inputs, labels)
        rows = torch.arange(len(everything.labels)) if self._batches is None else self._batches[0]
        check_repeatable(self._trainee, _take_rows(everything, rows[:_TRIED]), self.loss_fn)

    def _everything(self, inputs: Tensor, labels: Tensor) -> Batch:
        """Return fixed and private records in the precision of the private ones; refuse them if they do not match."""
        check_not_empty("inputs", inputs)
        if len(inputs) != len(labels):
            raise InvalidInput(f"Expected one label per record, got {len(inputs)} records with {len(labels)} labels.")
        fixed_inputs = inputs[:0].detach() if self.fixed_inputs is None else self.fixed_inputs.to(inputs.dtype)
        fixed_labels = labels[:0] if self.fixed_labels is None else self.fixed_labels
        if fixed_inputs.shape[1:] != inputs.shape[1:]:
            shape = tuple(fixed_inputs.shape[1:])
            raise invalid_input("inputs.shape", tuple(inputs.shape), f"to end in {shape}, the shape of a fixed record")
        if (fixed_labels.is_floating_point(), fixed_labels.shape[1:]) != (labels.is_floating_point(), labels.shape[1:]):
            like = f"{fixed_labels.dtype} of shape {tuple(fixed_labels.shape[1:])}"
            raise invalid_input(
                "labels",
                f"{labels.dtype} of shape {tuple(labels.shape[1:])}",
                f"to be like the fixed labels, {like}",
                "Convert labels or fixed_labels.",
            )
        total = len(fixed_inputs) + len(inputs)
        largest = max((int(rows.max()) for rows in self._batches or ()), default=-1)
        if largest >= total:
            raise invalid_input(
                "max(batches)", largest, f"< {total}, the number of records", "Count from 0, the fixed records first."
            )
        if labels.is_floating_point():
            fixed_labels, labels = fixed_labels.to(inputs.dtype), labels.to(inputs.dtype)
        return Batch(fixed_inputs, inputs, torch.cat([fixed_labels, labels]), None)


@dataclass(frozen=True, eq=False)
class TrainedModelRelease(Release):
    r"""The model after training on fixed and private records; the adversary knows the fixed ones and the training.

    .. math:: f(x) = \theta_T(D_- \cup \{x\})

    Here :math:`\theta_T` are the parameters after T steps, :math:`D_-` the fixed records and x the private ones.
    Training is deterministic and known: start, order of the records, optimizer.

    Attributes:
        model: The network before training.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Private records, ``(n, *shape)``.
        labels: Private labels, one per record.
        fixed_inputs: Known records of the training, ``(m, *shape)``.
        fixed_labels: Their labels.
        optimizer: Update rule, such as ``rr.releases.sgd(0.1)``.
        steps: Number of steps; may be left out with ``batches``.
        batches: Rows of each step, counting the fixed records first; by default every step uses all records.
        queries: Inputs whose logits are released instead of the parameters (black-box access).
        parameters: Names of the released parameters or layers; by default all that training changes.
        checkpoint_every: Steps between the states that reverse mode keeps; by default the whole graph is kept.

    Assumes: as :class:`TrainingMap`; the same models are refused.
    Edge cases: several private records are one release, whose derivative has one block per record.
    Reference: the released-model adversary of section II, balle2022.

    >>> from reconrisk.releases.training.optimizers import sgd
    >>> release = TrainedModelRelease(
    ...     nn.Linear(2, 2), nn.functional.cross_entropy, torch.ones(1, 2), torch.tensor([0]),
    ...     fixed_inputs=torch.zeros(3, 2), fixed_labels=torch.tensor([0, 1, 1]), optimizer=sgd(0.1, 0.9), steps=5,
    ... )
    >>> {name: tuple(value.shape) for name, value in release.value().items()}
    {'weight': (2, 2), 'bias': (2,)}
    """

    model: nn.Module
    loss_fn: LossFunction
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    fixed_inputs: Tensor | None = field(default=None, repr=False, kw_only=True)
    fixed_labels: Tensor | None = field(default=None, repr=False, kw_only=True)
    optimizer: UpdateRule = field(kw_only=True)
    steps: int | None = field(default=None, kw_only=True)
    batches: Sequence[Rows] | None = field(default=None, repr=False, kw_only=True)
    queries: Tensor | None = field(default=None, repr=False, kw_only=True)
    parameters: Sequence[str] | None = field(default=None, kw_only=True)
    checkpoint_every: int | None = field(default=None, kw_only=True)
    _map: TrainingMap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_tensor("inputs", self.inputs)
        check_tensor("labels", self.labels)
        check_records(self.inputs, self.labels)
        training = TrainingMap(
            self.model,
            self.loss_fn,
            self.optimizer,
            self.steps,
            self.fixed_inputs,
            self.fixed_labels,
            self.batches,
            self.queries,
            self.parameters,
            self.checkpoint_every,
        )
        training.check(self.inputs, self.labels)
        object.__setattr__(self, "_map", training)

    @property
    def forward(self) -> TrainingMap:
        """Training as a function of the private records; it holds the fixed ones only."""
        return self._map

    def value(self) -> Named:
        """Return the released tensors, by plain training without a graph."""
        with torch.no_grad():
            return self.forward(self.inputs, self.labels)

    def template(self) -> Named:
        """Return tensors in the shapes of the released ones, without training."""
        with torch.no_grad():
            return self.forward.start(self.inputs.dtype)

    def _linearize(self) -> Linearized:
        """Return the derivative at the records; see :meth:`TrainingMap.linearize`."""
        return self.forward.linearize(self.inputs, self.labels)


def check_tensor(name: str, value: Any) -> None:
    """Refuse a value that is not a tensor.

    Args:
        name: Name of the argument, for the error.
        value: The value.

    Raises:
        InvalidInput: If it is not a tensor.
    """
    if not isinstance(value, Tensor):
        given = None if value is None else type(value).__name__
        remedy = f"Pass the {name} used in training." if value is None else f"Convert with torch.as_tensor({name})."
        raise invalid_input(name if value is None else f"type({name})", given, "to be a tensor", remedy)


def _check_fixed(inputs: Tensor | None, labels: Tensor | None) -> None:
    if (inputs is None) != (labels is None):
        missing = "fixed_inputs" if inputs is None else "fixed_labels"
        raise invalid_input(
            missing,
            None,
            "to be given, because only one of fixed_inputs and fixed_labels was given",
            "Pass both or neither.",
        )
    if inputs is None or labels is None:
        return
    check_tensor("fixed_inputs", inputs)
    check_tensor("fixed_labels", labels)
    if not inputs.is_floating_point():
        raise invalid_input(
            "fixed_inputs.dtype", inputs.dtype, "to be floating point", "Convert with fixed_inputs.float()."
        )
    check_all_finite("fixed_inputs", inputs, "Remove or impute missing values.")
    if len(inputs) != len(labels):
        raise InvalidInput(f"Expected one label per fixed record, got {len(inputs)} records with {len(labels)} labels.")


def _check_batches(batches: Iterable[Any]) -> tuple[Tensor, ...]:
    """Return the row numbers of each step as tensors, from tensors, arrays or lists."""
    if not isinstance(batches, Iterable):
        raise invalid_input(
            "batches", batches, "to be a list of record numbers for each step", "Pass [[0, 1], [2, 3]], for instance."
        )
    found = []
    wanted = ("to be a list of record numbers", "Count from 0, the fixed records first.")
    for number, rows in enumerate(batches):
        try:
            indices = torch.as_tensor(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            raise invalid_input(f"batches[{number}]", rows, *wanted) from error
        if indices.dim() == 1:
            check_not_empty(f"batches[{number}]", indices)
        if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1 or int(indices.min()) < 0:
            raise invalid_input(f"batches[{number}]", rows, *wanted)
        found.append(indices)
    return tuple(found)


def _check_steps(steps: int | None, batches: Sequence[Tensor] | None) -> int:
    """Return the number of steps, as stated or counted from the batches."""
    if batches is None:
        if steps is None:
            raise invalid_input(
                "steps", None, "to be a number, because batches is None", "Pass steps=... or batches=..."
            )
        return check_whole("steps", steps)
    check_not_empty("batches", batches)
    if steps is not None and steps != len(batches):
        raise invalid_input(
            "steps", steps, f"to equal the number of batches, {len(batches)}", "Pass only one of steps and batches."
        )
    return len(batches)


def _push_tangents(
    release: Callable[[Tensor, Tensor], Named], inputs: Tensor, labels: Tensor, tangents: Tensor
) -> Named:
    """Return the change of the release along ``tangents``, by forward mode."""
    moved: Named
    if labels.is_floating_point():  # mse_loss of torch fails in forward mode unless its target has a tangent too
        moved = torch.func.jvp(release, (inputs, labels), (tangents, torch.zeros_like(labels)))[1]
    else:
        moved = torch.func.jvp(lambda records: release(records, labels), (inputs,), (tangents,))[1]
    return moved


def _take_rows(everything: Batch, rows: Tensor) -> Batch:
    """Return the batch of these rows, with fixed and private records apart so that derivatives touch only the batch."""
    fixed = rows < len(everything.fixed)
    # argsort of the concatenated positions inverts "fixed first", back to the order of the batch
    order = torch.cat([fixed.nonzero()[:, 0], (~fixed).nonzero()[:, 0]]).argsort()
    private = everything.private[rows[~fixed] - len(everything.fixed)]
    return Batch(everything.fixed[rows[fixed]], private, everything.labels[rows], order)
