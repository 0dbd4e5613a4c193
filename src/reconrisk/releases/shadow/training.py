"""Shadow models: many models that share architecture and fixed records, each with its own target.

Start, order and noise of a model are drawn from its own seed. So no model depends on those trained with it, and a part
can be trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from reconrisk.core.mechanism import Gaussian
from reconrisk.core.validation import invalid_input
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.shadow.any_network import ShadowRecipe, can_stack, train_one, train_stacked
from reconrisk.releases.shadow.checks import (
    RandomBatches,
    check_can_push,
    check_labels,
    check_model_reads,
    check_private,
    check_starts,
    check_targets,
)
from reconrisk.releases.shadow.dense import (
    DenseEngine,
    Layout,
    OwnRecords,
    SharedRecords,
    Targets,
    dense_layers,
    own_records,
    shared_records,
)
from reconrisk.releases.shadow.optimizers import is_elementwise
from reconrisk.releases.shadow.tangents import DensePush
from reconrisk.releases.shadow.tiles import models_per_tile, run_in_threads, split_into_tiles
from reconrisk.releases.training.optimizers import UpdateRule, sgd
from reconrisk.releases.training.trained_model import Rows, TrainingMap

Start: TypeAlias = Callable[[torch.Generator], nn.Module]


@dataclass(frozen=True, eq=False)
class ShadowTraining:
    r"""Training of n models at once, model i on the fixed records and target i.

    .. math:: \theta^{(i)}_t = \theta^{(i)}_{t-1} - U\Big(\nabla\,\frac{1}{m + 1} \Big[\sum_{j=1}^m
        \ell(\theta^{(i)}_{t-1}; x_j, y_j) + \ell(\theta^{(i)}_{t-1}; x^{(i)}, y^{(i)})\Big]\Big)

    The fields state the knowledge of the adversary. Here U is the update
    rule, :math:`\ell` the training loss, m the number of fixed records :math:`x_j` with labels :math:`y_j`, and
    :math:`x^{(i)}` target i. A known initialisation is the one of ``model``, or the rows ``starts`` that are passed to
    ``train``. For an unknown one set ``draw_start``.

    Attributes:
        model: The network, with the initial parameters unless others are given.
        fixed_inputs: Records that all models are trained on, ``(m, *shape)``.
        fixed_labels: Their labels.
        optimizer: Update rule U.
        steps: Number of steps; may be left out with known ``batches``.
        loss_fn: Training loss of the outputs and labels of a batch, averaged over records.
        batches: Rows of each step, counting the fixed records first and the target as row m; or :class:`RandomBatches`
            for an unknown order; by default every step uses all records.
        private: Gaussian mechanism: gradients of records are clipped, and noise is added to their sum before division
            by their number.
        draw_start: Function from a generator to a model with new initial parameters.

    Assumes: as :class:`reconrisk.releases.training.trained_model.TrainingMap`, which trains one such model. With
    ``private``, ``loss_fn`` is the mean over records.
    Guarantee: the result equals that of a loop over models up to rounding, and the randomness of a model depends on its
    position alone. Dense networks with cross-entropy or squared loss are trained as products of large matrices. Others
    are vectorised if their steps are small and this is verified, else trained one by one. Precision is that of the
    targets. The guarantee of ``private`` holds for targets in float64: their noise is rounded exactly. In float32
    training is two to three times as fast, as a simulation. A record whose gradient is not finite contributes zero.
    Edge cases: labels of floating point are probabilities under cross-entropy. For batch norm the rows hold weights and
    biases only.
    Reference: section V, balle2022, whose setting is the default ``optimizer`` with ``steps=100``.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> one = torch.ones(1, 1)
    >>> training = ShadowTraining(model, one, one, sgd(0.25), steps=2, loss_fn=mse_loss)
    >>> training.train(torch.ones(2, 1), torch.tensor([[3.0], [1.0]]))
    tensor([[1.5000],
            [0.7500]])
    """

    model: nn.Module
    fixed_inputs: Tensor = field(repr=False)
    fixed_labels: Tensor = field(repr=False)
    optimizer: UpdateRule = field(default_factory=lambda: sgd(0.2, 0.9))
    steps: int | None = None
    loss_fn: LossFunction = cross_entropy
    batches: Sequence[Rows] | RandomBatches | None = field(default=None, repr=False)
    private: Gaussian | None = None
    draw_start: Start | None = None
    _map: TrainingMap = field(init=False, repr=False)
    _recipe: ShadowRecipe = field(init=False, repr=False)
    _dense: DenseEngine | None = field(init=False, repr=False)
    _stacked: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_model_reads(self.model, self.loss_fn, self.fixed_inputs, self.fixed_labels)
        fixed = (self.fixed_inputs, self.fixed_labels)
        known = None if isinstance(self.batches, RandomBatches) else self.batches
        plain = TrainingMap(self.model, self.loss_fn, self.optimizer, self.steps, *fixed, known)
        check_private(self.private, plain.model, self.loss_fn, self.optimizer, *fixed)
        drawn = self.batches if isinstance(self.batches, RandomBatches) else None  # random orders need `steps`
        rows = drawn if known is None else tuple(torch.as_tensor(one) for one in known)
        steps = int(self.steps or 0) if known is None else len(known)
        recipe = ShadowRecipe(plain.model, self.loss_fn, self.optimizer, steps, *fixed, rows, self.private)
        object.__setattr__(self, "model", plain.model)
        object.__setattr__(self, "_map", plain)
        object.__setattr__(self, "_recipe", recipe)
        object.__setattr__(self, "_dense", self._dense_engine())
        check_labels("fixed_labels", self.fixed_labels, self._classes)
        start = self.unflatten(self.start(self.fixed_inputs.dtype))
        object.__setattr__(self, "_stacked", self._dense is None and can_stack(self._recipe, start))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of a row."""
        return tuple(name for name, value in self.model.named_parameters() if value.requires_grad)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the trained parameters, in the order of a row."""
        return tuple(tuple(value.shape) for value in self.model.parameters() if value.requires_grad)

    @property
    def size(self) -> int:
        """Number of trained parameters: the length of a row."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    @property
    def step_count(self) -> int:
        """Number of steps, as stated or as many as there are batches."""
        return self._recipe.steps

    @property
    def is_random(self) -> bool:
        """True if models differ by more than their target, so that training needs a generator."""
        drawn = isinstance(self.batches, RandomBatches), self.private is not None, self.draw_start is not None
        return any(drawn)

    @property
    def _classes(self) -> int | None:
        """Number of classes; None if labels are not known to be classes."""
        if self._dense is None or self._dense.squared:
            return None
        return self._dense.layout.layers[-1].fan_out

    def start(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the common initial parameters as one row, in precision ``dtype``."""
        return self.flatten(dict(self.model.named_parameters())).to(dtype)

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return parameters by name as one row, or stacked parameters as rows."""
        parts = zip(self.names, self.shapes, strict=True)
        return torch.cat(
            [
                named[name].detach().flatten(named[name].ndim - len(s)) if s else named[name].detach()[..., None]
                for name, s in parts
            ],
            -1,
        )

    def unflatten(self, row: Tensor) -> dict[str, Tensor]:
        """Return one row, or (n, p) rows, as parameters by name."""
        ends = pairwise([0, *accumulate(torch.Size(shape).numel() for shape in self.shapes)])
        parts = zip(self.names, self.shapes, ends, strict=True)
        return {name: row[..., begin:end].reshape(*row.shape[:-1], *shape) for name, shape, (begin, end) in parts}

    @torch.no_grad()
    def train(
        self, inputs: Tensor, labels: Tensor, *, starts: Tensor | None = None, rng: torch.Generator | None = None
    ) -> Tensor:
        """Return the trained models as rows (n, p), one per target.

        Args:
            inputs: Targets, ``(n, *shape)``.
            labels: Their labels.
            starts: Initial parameters, one row for all or one per model.
            rng: Generator of each model's start, batches and noise; needed only if one of them is random.

        Returns:
            Flat parameters after the last step, (n, p), in the precision of ``inputs``.
        """
        return self.train_seeded(inputs, labels, seeds=self.seeds(len(inputs), rng), starts=starts)

    def seeds(self, models: int, rng: torch.Generator | None) -> Tensor | None:
        """Return one seed per model for all its randomness, or None if nothing is random.

        Args:
            models: Number of models.
            rng: Generator of the seeds.

        Returns:
            Seeds of shape (models,), or None.
        """
        if not self.is_random:
            return None
        if not isinstance(rng, torch.Generator):
            remedy = "Pass rng=torch.Generator().manual_seed(0): starts, orders or noise are random."
            raise invalid_input("rng", rng, "to be a torch.Generator", remedy)
        return torch.randint(2**63 - 1, (models,), generator=rng)

    def check(self, inputs: Tensor, labels: Tensor, starts: Tensor | None = None) -> None:
        """Refuse targets that do not fit the fixed records, and starts that are not rows of parameters.

        Args:
            inputs: Targets, ``(n, *shape)``.
            labels: Their labels.
            starts: Initial parameters, or None.
        """
        check_targets(self._map, inputs, labels, self._classes)
        check_starts(starts, len(inputs), self.size, drawn=self.draw_start is not None)

    @torch.no_grad()
    def train_seeded(
        self, inputs: Tensor, labels: Tensor, *, seeds: Tensor | None, starts: Tensor | None = None
    ) -> Tensor:
        """Train as :meth:`train` does, from given seeds, so that a part of the models can be trained again.

        Args:
            inputs: Targets, ``(n, *shape)``.
            labels: Their labels.
            seeds: One seed per model, from :meth:`seeds`.
            starts: Initial parameters, one row for all or one per model.

        Returns:
            Flat parameters after the last step, (n, p), in the precision of ``inputs``.
        """
        self.check(inputs, labels, starts)
        streams = [torch.Generator().manual_seed(int(seed)) for seed in (seeds if seeds is not None else ())]
        streams = streams or [torch.Generator()] * len(inputs)  # nothing is drawn from them
        if self.draw_start is not None:
            made = [dict(self.draw_start(stream).named_parameters()) for stream in streams]
            starts = torch.stack([self.flatten(model) for model in made])
        first = self.start(inputs.dtype) if starts is None else starts.to(inputs.dtype)
        starts = first.expand(len(inputs), -1)
        if self._dense is not None:
            return self._train_dense(self._dense, inputs, labels, starts, streams)
        if self._stacked:
            return self.flatten(train_stacked(self._recipe, self.unflatten(starts), inputs, labels, streams))
        each = zip(starts, inputs, labels, streams, strict=True)
        return torch.stack([self.flatten(train_one(self._recipe, self.unflatten(s), *one)) for s, *one in each])

    @torch.no_grad()
    def push(self, inputs: Tensor, labels: Tensor, tangents: Tensor) -> Tensor:
        r"""Return the change of the model trained on one target along directions of the target: rows (k, p).

        .. math:: \partial\theta_T/\partial x \; v

        The result is exact, and k directions cost about k trainings.

        Args:
            inputs: The target, ``(1, *shape)``.
            labels: Its label.
            tangents: Directions, ``(k, *shape)``.

        Returns:
            Derivatives of the flat parameters, (k, p), one row per direction.

        Edge cases: trainings with clipped gradients or random batches are refused.

        >>> training = ShadowTraining(nn.Linear(2, 2), torch.eye(2), torch.tensor([0, 1]), sgd(0.1), steps=3)
        >>> training.push(torch.ones(1, 2), torch.tensor([1]), torch.eye(2)).shape
        torch.Size([2, 6])
        """
        self.check(inputs, labels)
        check_can_push(self.private, self.batches, inputs, tangents)
        if self._dense is None:
            push = self._map.linearize(inputs, labels).push
            moved = [push(tangent[None].to(inputs.dtype)) for tangent in tangents]
            return torch.stack([self.flatten(one) for one in moved])
        pushed = torch.empty(len(tangents), self.size, dtype=inputs.dtype)
        layout, engine = self._dense.layout, DensePush(self._dense.layout, self._dense.squared)
        fixed, answers, used = self._fixed_records(inputs.dtype)
        targets = self._targets(inputs, labels)
        # The constant feature of the bias does not move with the target.
        directions = self._features(tangents.to(inputs.dtype), constant=0.0)[:, None]

        def push_tile(part: slice) -> None:
            values = layout.pack(self.start(inputs.dtype)[None])
            batches = self._shared_batches(fixed, answers, used)
            layout.flatten_into(engine.train(values, targets, directions[part], self.optimizer, batches), pushed[part])

        # A direction works on its own tangents besides the model's values, hence the factor 2.
        run_in_threads(push_tile, split_into_tiles(len(tangents), 2 * self._bytes_per_model(inputs.element_size())))
        return pushed

    def models_per_tile(self, dtype: torch.dtype) -> int:
        """Return the number of models that are trained at a time, so that their working set stays in cache."""
        return models_per_tile(self._bytes_per_model(dtype.itemsize))

    def _train_dense(
        self,
        engine: DenseEngine,
        inputs: Tensor,
        labels: Tensor,
        starts: Tensor,
        streams: Sequence[torch.Generator],
    ) -> Tensor:
        """Train all models with the dense engine, tile by tile."""
        trained = torch.empty(len(inputs), self.size, dtype=inputs.dtype)
        targets, fixed = self._targets(inputs, labels), self._fixed_records(inputs.dtype)

        def train_tile(models: slice) -> None:
            values = engine.layout.pack(starts[models])
            own = Targets(targets.inputs[models], targets.answers[models])
            if isinstance(self.batches, RandomBatches):
                orders = self._recipe.orders(streams[models])
                batches: Iterator[SharedRecords | OwnRecords] = (
                    own_records(*fixed[:2], own, rows) for rows in orders if rows is not None
                )
            else:
                batches = self._shared_batches(*fixed)
            engine.train(values, own, self.optimizer, batches, streams[models])
            engine.layout.flatten_into(values, out=trained[models])

        run_in_threads(train_tile, split_into_tiles(len(inputs), self._bytes_per_model(inputs.element_size())))
        return trained

    def _shared_batches(self, fixed: Tensor, answers: Tensor, used: int) -> Iterator[SharedRecords]:
        """Yield the batch of each step that all models share."""
        whole = shared_records(fixed, answers, used) if self.batches is None else None  # built once for all steps
        for rows in self._recipe.orders(()):
            yield shared_records(fixed, answers, used, rows) if whole is None else whole

    def _bytes_per_model(self, item: int) -> int:
        """Return the working set of one model: units and their derivatives; weights, gradients and averages."""
        if self._dense is None:  # other networks are not tiled
            return 1
        columns, own = len(self.fixed_inputs) + 1, 0
        if isinstance(self.batches, RandomBatches):
            columns = min(columns, self.batches.size)
            own = columns * self._dense.layout.layers[0].fan_in
        elif self.batches is not None:
            columns = max(len(rows) for rows in self.batches)
        widths = sum(layer.fan_out for layer in self._dense.layout.layers)
        # units and deltas of all columns; weights, gradients and averages; the model's own batch
        return (2 * widths * columns + 3 * self.size + own) * item

    def _dense_engine(self) -> DenseEngine | None:
        """Return the engine for all models at once; None unless network, loss and update rule allow it."""
        layers, loss = dense_layers(self.model), _known_loss(self.loss_fn)
        if layers is None or loss is None or not is_elementwise(self.optimizer):
            return None
        flattens = any(isinstance(part, nn.Flatten) for part in self.model.modules())
        labelled = loss == "cross_entropy" and self.fixed_labels.ndim == 1
        if self.fixed_labels.is_floating_point():
            labelled = self.fixed_labels.shape[1:] == (layers[-1].fan_out,)
        if not labelled or (self.fixed_inputs.ndim != 2 and not flattens):
            return None
        # Features that are zero in all fixed records go last, and the constant feature of the bias is always used.
        features = self.fixed_inputs.flatten(1).any(0) if len(self.fixed_inputs) else torch.zeros(layers[0].fan_in)
        used = torch.cat(
            [features.bool(), torch.tensor([True] if layers[0].bias is not None else [], dtype=torch.bool)]
        )
        order = torch.cat([used.nonzero()[:, 0], (~used).nonzero()[:, 0]])
        return DenseEngine(
            Layout(layers, self.names, self.shapes, order, int(used.sum())), loss == "mse_loss", self.private
        )

    def _fixed_records(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
        used = 0 if self._dense is None else self._dense.layout.used
        return self._features(self.fixed_inputs.to(dtype)), self._answers(self.fixed_labels, dtype), used

    def _targets(self, inputs: Tensor, labels: Tensor) -> Targets:
        return Targets(self._features(inputs)[:, None], self._answers(labels, inputs.dtype))

    def _features(self, inputs: Tensor, constant: float = 1.0) -> Tensor:
        if self._dense is None:
            return inputs
        flat = inputs.flatten(1)
        bias = self._dense.layout.layers[0].bias is not None
        whole = torch.cat([flat, flat.new_full((len(flat), 1), constant)], 1) if bias else flat
        return whole[:, self._dense.layout.order]

    def _answers(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if labels.is_floating_point() or self._dense is None:
            return labels.to(dtype).reshape(len(labels), -1)
        return one_hot(labels, self._dense.layout.layers[-1].fan_out).to(dtype)


def _known_loss(loss_fn: LossFunction) -> str | None:
    """Return the name of a mean loss that the dense engine computes itself; None for others."""
    if loss_fn is cross_entropy or loss_fn is mse_loss:
        return "cross_entropy" if loss_fn is cross_entropy else "mse_loss"
    if isinstance(loss_fn, nn.MSELoss) and loss_fn.reduction == "mean":
        return "mse_loss"
    if isinstance(loss_fn, nn.CrossEntropyLoss) and loss_fn.reduction == "mean" and loss_fn.weight is None:
        return "cross_entropy" if loss_fn.ignore_index < 0 and not loss_fn.label_smoothing else None
    return None
