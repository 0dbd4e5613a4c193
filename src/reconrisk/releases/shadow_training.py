"""Shadow models: many models that share architecture and fixed records, each trained on a target of its own as well."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, check_not_empty, refuse
from reconrisk.releases.optimizers import UpdateRule, sgd
from reconrisk.releases.shadow_dense import DenseEngine
from reconrisk.releases.shadow_layers import dense_layers
from reconrisk.releases.shadow_records import SharedRecords, Targets, shared_records
from reconrisk.releases.shadow_updates import is_elementwise
from reconrisk.releases.state import LossFunction
from reconrisk.releases.training import Rows, TrainingMap

_TILE_BYTES = 16 * 2**20  # what all models of a tile work on stays in the processor's cache


@dataclass(frozen=True, eq=False)
class ShadowTraining:
    r"""Training of n models at once, model i on the fixed records and target i.

    .. math:: \theta^{(i)}_t = \theta^{(i)}_{t-1} - U\Big(\nabla\,\frac{1}{m + 1} \Big[\sum_{j=1}^m
        \ell(\theta^{(i)}_{t-1}; x_j, y_j) + \ell(\theta^{(i)}_{t-1}; x^{(i)}, y^{(i)})\Big]\Big)

    All models start at the parameters of ``model`` unless they are given ``starts`` of their own. ``batches`` are rows
    of the fixed records followed by the target, which is row m; without them each of the ``steps`` takes all. Defaults
    are the training of balle2022.

    Assumes: as :class:`reconrisk.releases.training.TrainingMap`, which trains one such model.
    Guarantee: dense networks with cross-entropy or squared loss are trained as products of large matrices, with the
    result of a loop over models up to rounding. Precision is that of the targets.
    Edge cases: labels of floating point are probabilities under cross-entropy.
    Reference: section V, balle2022.

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
    batches: Sequence[Rows] | None = field(default=None, repr=False)
    _map: TrainingMap = field(init=False, repr=False)
    _engine: DenseEngine | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settings = (self.model, self.loss_fn, self.optimizer, self.steps, self.fixed_inputs, self.fixed_labels)
        plain = TrainingMap(*settings, self.batches)
        object.__setattr__(self, "_map", plain)
        object.__setattr__(self, "model", plain.model)
        _check_outputs(self.model, self.fixed_inputs)
        object.__setattr__(self, "_engine", self._dense())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of a row."""
        return tuple(name for name, value in self.model.named_parameters() if value.requires_grad)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Their shapes."""
        return tuple(tuple(value.shape) for value in self.model.parameters() if value.requires_grad)

    @property
    def size(self) -> int:
        """Number of trained parameters: the length of a row."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def start(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Where all models start unless told otherwise, as one row."""
        return self.flatten(dict(self.model.named_parameters())).to(dtype)

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Parameters by name as one row."""
        return torch.cat([named[name].detach().flatten() for name in self.names])

    def unflatten(self, row: Tensor) -> dict[str, Tensor]:
        """One row, or (n, p) rows, as parameters by name."""
        ends = pairwise([0, *accumulate(torch.Size(shape).numel() for shape in self.shapes)])
        parts = zip(self.names, self.shapes, ends, strict=True)
        return {name: row[..., begin:end].unflatten(-1, shape) for name, shape, (begin, end) in parts}

    @torch.no_grad()
    def train(
        self, inputs: Tensor, labels: Tensor, *, starts: Tensor | None = None, rng: torch.Generator | None = None
    ) -> Tensor:
        """The trained models as rows (n, p), one per target; ``starts`` are one row for all, or one for each.

        ``rng`` is for what is drawn for each model by itself.
        """
        self._check(inputs, labels, starts)
        first = self.start(inputs.dtype) if starts is None else starts.to(inputs.dtype)
        first = first.expand(len(inputs), -1)
        if self._engine is None:
            return torch.stack([self._alone(*one) for one in zip(inputs, labels, first, strict=True)])
        return self._together(self._engine, inputs, labels, first)

    def _together(self, engine: DenseEngine, inputs: Tensor, labels: Tensor, starts: Tensor) -> Tensor:
        trained = torch.empty(len(inputs), self.size, dtype=inputs.dtype)
        targets = Targets(self._features(inputs)[:, None], self._answers(labels, inputs.dtype))
        fixed = self._features(self.fixed_inputs.to(inputs.dtype))
        answers = self._answers(self.fixed_labels, inputs.dtype)
        whole = shared_records(fixed, answers)
        for models in tiles(len(inputs), self._bytes(whole)):
            values = engine.packed(starts[models])
            engine.train(values, targets.chosen(models), self.optimizer, self._steps(whole, fixed, answers))
            engine.flattened(values, out=trained[models])
        return trained

    def _steps(self, whole: SharedRecords, fixed: Tensor, answers: Tensor) -> Iterator[SharedRecords]:
        for number in range(self._map._count):
            rows = None if self._map._batches is None else self._map._batches[number]
            yield whole if rows is None else shared_records(fixed, answers, rows)

    def _bytes(self, records: SharedRecords) -> int:
        """What one model keeps at hand while it trains: units and their derivatives; weights, gradients, averages."""
        widths = sum(layer.fan_out for layer in self._engine.layers) if self._engine is not None else 0
        return (2 * widths * len(records.inputs) + 3 * self.size) * records.inputs.element_size()

    def _dense(self) -> DenseEngine | None:
        """The engine for all models at once, where the network is dense, the loss known and the rule elementwise."""
        layers, loss = dense_layers(self.model), _known_loss(self.loss_fn)
        if layers is None or loss is None or not is_elementwise(self.optimizer):
            return None
        if self.fixed_inputs.ndim != 2 and not any(isinstance(part, nn.Flatten) for part in self.model.modules()):
            return None
        if loss == "cross_entropy" and self.fixed_labels.ndim > 1 and not self.fixed_labels.is_floating_point():
            return None
        return DenseEngine(layers, loss == "mse_loss", self.names, self.shapes)

    def _features(self, inputs: Tensor) -> Tensor:
        bias = self._engine is not None and self._engine.layers[0].bias is not None
        flat = inputs.flatten(1)
        return torch.cat([flat, flat.new_ones(len(flat), 1)], 1) if bias else flat

    def _answers(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        if labels.is_floating_point():
            return labels.to(dtype).reshape(len(labels), -1)
        classes = self._engine.layers[-1].fan_out if self._engine is not None else 0
        return one_hot(labels, classes).to(dtype)

    def _alone(self, record: Tensor, label: Tensor, start: Tensor) -> Tensor:
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.unflatten(start), strict=False)
        settings = (self.loss_fn, self.optimizer, self.steps, self.fixed_inputs, self.fixed_labels, self.batches)
        return self.flatten(TrainingMap(model, *settings)(record[None], label[None]))

    def _check(self, inputs: Tensor, labels: Tensor, starts: Tensor | None) -> None:
        check_not_empty("inputs", inputs, "Pass at least one target.")
        check_all_finite("inputs", inputs, "Remove or impute what is missing.")
        if not inputs.is_floating_point():
            raise refuse("inputs.dtype", inputs.dtype, "to be floating point", "Convert with inputs.float().")
        if labels.is_floating_point():
            check_all_finite("labels", labels)
        if len(inputs) != len(labels):
            raise InvalidInput(f"Expected one label per target, {len(inputs)} targets came with {len(labels)} labels.")
        self._map._fixed(inputs[:1], labels[:1])
        if starts is not None and starts.shape not in ((self.size,), (1, self.size), (len(inputs), self.size)):
            expected = f"to be ({self.size},) for all or ({len(inputs)}, {self.size}), one row per target"
            raise refuse("starts.shape", tuple(starts.shape), expected, "Rows are as names and shapes say.")


def tiles(models: int, bytes_each: int) -> Iterator[slice]:
    """Slices of so many models that what they work on fits into cache, of equal length up to one."""
    count = -(-models // max(1, _TILE_BYTES // bytes_each))
    ends = [models * number // count for number in range(count + 1)]
    return (slice(begin, end) for begin, end in pairwise(ends))


def _known_loss(loss_fn: LossFunction) -> str | None:
    """The name of a mean loss that the engine computes by itself."""
    if loss_fn in (cross_entropy, mse_loss):
        return "cross_entropy" if loss_fn is cross_entropy else "mse_loss"
    if type(loss_fn) is nn.MSELoss and loss_fn.reduction == "mean":
        return "mse_loss"
    plain = type(loss_fn) is nn.CrossEntropyLoss and loss_fn.weight is None and not loss_fn.label_smoothing
    if plain and loss_fn.reduction == "mean" and loss_fn.ignore_index < 0:
        return "cross_entropy"
    return None


def _check_outputs(model: nn.Module, inputs: Tensor) -> None:
    """Refuse fixed records that the model cannot read."""
    some = inputs[:1] if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:])
    try:
        copy.deepcopy(model).to(inputs.dtype)(some)
    except (RuntimeError, ValueError, IndexError) as error:
        raise refuse(
            "fixed_inputs.shape", tuple(inputs.shape), "to be records that the model reads", str(error).splitlines()[0]
        ) from error
