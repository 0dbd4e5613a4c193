"""Many dense networks trained at once: one large matrix product per layer and step for all models.

The fixed records are shared (:class:`SharedRecords`), so the first layer of all n models of width h is one product of
(n h x d) with (d x m), and its gradient another; the target of each model (:class:`Targets`) is one more column. Units
are stored as (models, width, records): later layers are batched products over contiguous rows, and every elementwise
step is one pass in place. Features that are zero in all fixed records (180 of 784 for 1,000 digits) are put last and
left out of the products. The products take four fifths of the time, at 0.9 of the rate of the same products alone;
training is 4.8 times as fast as a loop (CPU time of one thread, ``benchmarks/shadow_engine.py``).

:func:`dense_layers` recognises dense networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.float_safe_noise import add_noise, clip_limit
from reconrisk.releases.shadow.optimizers import make_updater
from reconrisk.releases.training.optimizers import UpdateRule
from reconrisk.releases.updates.clipping import HardClip

Apply = Callable[[Tensor], Tensor]
Pull = Callable[[Tensor, Tensor], Tensor]

# Activations that act on each value by itself and hold no state.
_ELEMENTWISE = (
    nn.ELU, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Mish,
    nn.Hardtanh, nn.ReLU6, nn.LogSigmoid, nn.Softsign, nn.Hardswish, nn.Tanhshrink,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pointwise:
    """An activation with in-place kernels.

    Attributes:
        module: The activation as a module.
        apply: The activation; it may write to its argument.
        pull: Maps a gradient and the kept tensor to the gradient before the activation; it may write to the gradient.
        from_output: True if ``pull`` needs the activation's output, so that its input need not be kept.
    """

    module: nn.Module
    apply: Apply
    pull: Pull
    from_output: bool


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A linear layer, by the names of its parameters, and the activation after it.

    Attributes:
        weight: Name of the weight.
        bias: Name of the bias; None without one.
        fan_in: Number of inputs.
        fan_out: Number of outputs.
        activation: Activation after the layer; None without one.
    """

    weight: str
    bias: str | None
    fan_in: int
    fan_out: int
    activation: Pointwise | None


def dense_layers(model: nn.Module) -> tuple[DenseLayer, ...] | None:
    """Return the layers of a dense network: flattening, linear layers, and at most one activation after each.

    Args:
        model: The network.

    Returns:
        The layers, or None if the network has another architecture, frozen or shared parameters.

    >>> [layer.fan_out for layer in dense_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))]
    [3, 1]
    """
    found: list[DenseLayer] = []
    for name, module in _leaves(model):
        flattens = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
        if isinstance(module, nn.Identity) or (flattens and not found):
            continue
        if type(module) is nn.Linear:
            prefix = f"{name}." if name else ""
            bias = None if module.bias is None else f"{prefix}bias"
            found.append(DenseLayer(f"{prefix}weight", bias, module.in_features, module.out_features, None))
        elif type(module) in _ELEMENTWISE and found and found[-1].activation is None:
            last = found[-1]
            found[-1] = DenseLayer(last.weight, last.bias, last.fan_in, last.fan_out, _pointwise(module))
        else:
            return None
    whole = all(parameter.requires_grad for parameter in model.parameters())
    fits = all(one.fan_out == other.fan_in for one, other in pairwise(found))
    parameters = dict(model.named_parameters())
    named = {name for layer in found for name in (layer.weight, layer.bias) if name is not None}
    # named_parameters() lists shared weights once, so `named` is larger then.
    return tuple(found) if found and whole and fits and named == set(parameters) else None


def _pointwise(module: nn.Module) -> Pointwise:
    """Return the kernels of an activation: one pass over memory each, or autograd if no kernel is known."""
    aten = torch.ops.aten
    match module:
        case nn.ELU(alpha=alpha) if alpha > 0:
            return Pointwise(
                module,
                lambda z: nn.functional.elu_(z, alpha),
                # scale and input_scale are 1; True: `a` is the output
                lambda g, a: aten.elu_backward.grad_input(g, alpha, 1.0, 1.0, True, a, grad_input=g),
                True,
            )
        case nn.ReLU():
            return Pointwise(
                module, torch.relu_, lambda g, a: aten.threshold_backward.grad_input(g, a, 0.0, grad_input=g), True
            )
        case nn.Tanh():
            return Pointwise(module, torch.tanh_, lambda g, a: aten.tanh_backward.grad_input(g, a, grad_input=g), True)
        case nn.Sigmoid():
            return Pointwise(
                module, torch.sigmoid_, lambda g, a: aten.sigmoid_backward.grad_input(g, a, grad_input=g), True
            )
        case _:

            def pull(gradient: Tensor, before: Tensor) -> Tensor:
                with torch.enable_grad():
                    leaf = before.detach().requires_grad_()
                    (found,) = torch.autograd.grad(module(leaf), leaf, gradient)
                return gradient.copy_(found)

            return Pointwise(module, module, pull, False)


def _leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a chain of ``nn.Sequential`` calls in turn, with their names."""
    if type(model) is nn.Sequential:
        for name, child in model.named_children():
            yield from _leaves(child, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, model


_ALIGNED = 8  # float32 values in a vector register: rows of a multiple of it start aligned


@dataclass(frozen=True, eq=False)
class Targets:
    """The target record of each model.

    Attributes:
        inputs: Records, (n, 1, features).
        answers: Targets of the loss, (n, outputs).
    """

    inputs: Tensor
    answers: Tensor


@dataclass(frozen=True, eq=False)
class SharedRecords:
    """A batch that all models share except for their target, with one record per column.

    Attributes:
        inputs: Used features, (columns, used); the others are zero in all shared records. The target's column and the
            padding columns are zero.
        answers: Targets of the loss, (outputs, columns).
        weights: Weight of each record in the mean loss.
        target: Column of the target.
        count: Size of the batch.
    """

    inputs: Tensor
    answers: Tensor
    weights: Tensor
    target: int
    count: int

    def forward(self, weight: Tensor, targets: Targets, out: Tensor) -> None:
        """Compute the first linear layer for all records and models: one product, and the targets separately."""
        used = weight.flatten(0, 1)[:, : self.inputs.shape[1]]
        torch.mm(used, self.inputs.T, out=out.view(-1, out.shape[2]))  # all models stacked: (n width, columns)
        out[:, :, self.target : self.target + 1] = torch.bmm(weight, targets.inputs.mT)

    def backward(self, delta: Tensor, targets: Targets, out: Tensor) -> None:
        """Compute the gradient of the first weights from that of the first units."""
        used = self.inputs.shape[1]
        torch.mm(delta.view(-1, delta.shape[2]), self.inputs, out=out.view(-1, out.shape[2])[:, :used])
        out[:, :, used:].zero_()  # features that are zero in all fixed records
        out.baddbmm_(delta[:, :, self.target : self.target + 1], targets.inputs)

    def compare(self, outputs: Tensor, targets: Targets) -> None:
        """Subtract the targets of the loss from ``outputs``, in place."""
        outputs.sub_(self.answers)
        outputs[:, :, self.target].sub_(targets.answers)

    def input_squares(self, targets: Targets) -> Tensor:
        """Return the squared norms of the inputs, (n, columns)."""
        squares = self.inputs.square().sum(1).repeat(len(targets.inputs), 1)
        squares[:, self.target] = targets.inputs.square().sum(2)[:, 0]
        return squares


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """A separate batch for each model.

    Attributes:
        inputs: Records, (n, columns, features).
        answers: Targets of the loss, (n, outputs, columns).
        weights: Weight of each record in the mean loss.
        count: Size of the batch.
    """

    inputs: Tensor
    answers: Tensor
    weights: Tensor
    count: int

    def forward(self, weight: Tensor, targets: Targets, out: Tensor) -> None:
        """Compute the first linear layer for each model's records; the targets are among the inputs."""
        del targets  # they are among the inputs
        torch.bmm(weight, self.inputs.mT, out=out)

    def backward(self, delta: Tensor, targets: Targets, out: Tensor) -> None:
        """Compute the gradient of the first weights from that of the first units."""
        del targets
        torch.bmm(delta, self.inputs, out=out)

    def compare(self, outputs: Tensor, targets: Targets) -> None:
        """Subtract the targets of the loss from ``outputs``, in place."""
        del targets
        outputs.sub_(self.answers)

    def input_squares(self, targets: Targets) -> Tensor:
        """Return the squared norms of the inputs, (n, columns)."""
        del targets
        return self.inputs.square().sum(2)


Records = SharedRecords | OwnRecords


def shared_records(inputs: Tensor, answers: Tensor, used: int, rows: Tensor | None = None) -> SharedRecords:
    """Return a batch of fixed records and the target for all models.

    Args:
        inputs: Fixed records, (m, features).
        answers: Their targets of the loss, (m, outputs).
        used: Number of leading features that are not zero in all fixed records.
        rows: Rows of the batch, the target numbered last; by default all.

    Returns:
        The batch, padded to an aligned number of columns.
    """
    times, count = 1, len(inputs) + 1
    if rows is not None:
        fixed = rows[rows < len(inputs)]
        times, count = len(rows) - len(fixed), len(rows)
        inputs, answers = inputs[fixed], answers[fixed]
    target = len(inputs)
    columns = -(-(target + 1) // _ALIGNED) * _ALIGNED  # rounded up
    padded = inputs.new_zeros(columns, used)
    padded[:target] = inputs[:, :used]
    wanted = inputs.new_zeros(answers.shape[1], columns)
    wanted[:, :target] = answers.T
    weights = inputs.new_zeros(columns)
    # A batch may hold the target several times or not at all; padding columns keep weight 0.
    weights[:target], weights[target] = 1 / count, times / count
    return SharedRecords(padded, wanted, weights, target, count)


def own_records(inputs: Tensor, answers: Tensor, targets: Targets, rows: Tensor) -> OwnRecords:
    """Return a separate batch for each model.

    Args:
        inputs: Fixed records, (m, features).
        answers: Their targets of the loss, (m, outputs).
        targets: The target of each model.
        rows: Rows of each model's batch, (n, count), the target numbered last.

    Returns:
        The batches.
    """
    is_target = rows == len(inputs)
    model = is_target.nonzero()[:, 0]
    everyone = torch.cat([inputs, inputs.new_zeros(1, inputs.shape[1])])
    chosen, wanted = everyone[rows], torch.cat([answers, answers.new_zeros(1, answers.shape[1])])[rows]
    chosen[is_target], wanted[is_target] = targets.inputs[model, 0], targets.answers[model]
    count = rows.shape[1]
    return OwnRecords(chosen, wanted.mT.contiguous(), inputs.new_full((count,), 1 / count), count)


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions of the parameters in a row, and the order in which the engine keeps the input features.

    Attributes:
        layers: Layers of the network.
        names: Names of the parameters, in the order of a row.
        shapes: Their shapes.
        order: Order of the features of a record and, last, of the constant one if the first layer has a bias.
        used: Number of leading features that are not zero in all fixed records; products with these skip the others.
    """

    layers: tuple[DenseLayer, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    order: Tensor
    used: int

    @property
    def size(self) -> int:
        """Number of parameters: the length of a row."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def pack(self, rows: Tensor) -> list[Tensor]:
        """Return rows of flat parameters (n, p) as the tensors that training changes, first layer first.

        Weights are (n, fan_out, fan_in), biases (n, fan_out, 1). The first bias is a column of the first weights, so
        that product and gradient include it.
        """
        named = self._split_by_name(rows)
        values: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            weight = named[layer.weight]
            bias = [] if layer.bias is None else [named[layer.bias].unsqueeze(2)]
            if place == 0:
                values.append(torch.cat([weight, *bias], 2)[:, :, self.order])
            else:
                values += [weight.clone(), *(value.clone() for value in bias)]
        return values

    def flatten_into(self, values: Sequence[Tensor], out: Tensor) -> None:
        """Write packed tensors into rows of flat parameters.

        Args:
            values: Tensors as from :meth:`pack`.
            out: Rows, (n, p).
        """
        named, (weights, biases) = self._split_by_name(out), self.parts(values)
        first = weights[0][:, :, self.order.argsort()]
        for place, layer in enumerate(self.layers):
            named[layer.weight].copy_(first[:, :, : layer.fan_in] if place == 0 else weights[place])
            if layer.bias is not None:
                named[layer.bias].copy_(first[:, :, -1] if place == 0 else biases[place][:, :, 0])

    def parts(self, values: Sequence[Tensor]) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Return the weights of each layer, and the biases after the first layer by their position."""
        weights, biases, left = [], {}, iter(values)
        for place, layer in enumerate(self.layers):
            weights.append(next(left))
            if place and layer.bias is not None:
                biases[place] = next(left)
        return weights, biases

    def _split_by_name(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views of the rows by parameter name."""
        ends = [0, *accumulate(torch.Size(shape).numel() for shape in self.shapes)]
        parts = zip(self.names, self.shapes, pairwise(ends), strict=True)
        return {name: rows[:, begin:end].unflatten(1, shape) for name, shape, (begin, end) in parts}


@dataclass(frozen=True, eq=False)
class DenseEngine:
    """Gradient steps of all models of one dense architecture.

    In float64, clipping leaves a margin for rounding and the noise is rounded exactly, so that the guarantee of
    ``private`` holds. In float32 training is about twice as fast and only simulates the mechanism.

    Attributes:
        layout: Order of the parameters.
        squared: Use the squared loss instead of cross-entropy.
        private: Gaussian mechanism on clipped gradients; None for plain training.
    """

    layout: Layout
    squared: bool
    private: Gaussian | None

    def train(
        self,
        values: list[Tensor],
        targets: Targets,
        rule: UpdateRule,
        batches: Iterable[Records],
        streams: Sequence[torch.Generator],
    ) -> None:
        """Train all models in place, one step per batch.

        Args:
            values: Packed parameters, which are changed.
            targets: The target of each model.
            rule: Update rule.
            batches: Records of each step.
            streams: Generator of each model's noise.
        """
        update = make_updater(rule, values)
        gradients = [torch.empty_like(value) for value in values]
        room: dict[int, list[list[Tensor]]] = {}  # buffers for units and deltas by batch size, reused in each step
        for records in batches:
            columns = records.answers.shape[-1]
            if columns not in room:  # the last batch of an epoch may be smaller
                shapes = [(len(values[0]), layer.fan_out, columns) for layer in self.layout.layers]
                room[columns] = [[values[0].new_empty(shape) for shape in shapes] for _ in range(2)]
            units, deltas = (list(buffers) for buffers in room[columns])
            self._pass(values, records, targets, units, deltas)
            if self.private is not None:
                self._clip(self.private, units, deltas, records, targets)
            self._gradients(units, deltas, records, targets, gradients)
            if self.private is not None:
                self._add_noise(self.private.noise_std / records.count, gradients, streams)
            update(gradients)

    def _pass(
        self,
        values: Sequence[Tensor],
        records: Records,
        targets: Targets,
        units: list[Tensor],
        deltas: Sequence[Tensor],
    ) -> None:
        """Run forward and backward: the units of each layer, and the loss gradient before each activation.

        The loss is the mean, or that of each record by itself if gradients are to be clipped.
        """
        weights, _ = self.layout.parts(values)
        kept = self._forward(values, records, targets, units)
        if self.squared:
            deltas[-1].copy_(units[-1])
        else:
            torch.ops.aten._softmax.out(units[-1], 1, False, out=deltas[-1])
        # Softmax minus one-hot is the gradient of cross-entropy; mse_loss averages over outputs, hence 2 / outputs.
        records.compare(deltas[-1], targets)
        scale = 2 / deltas[-1].shape[1] if self.squared else 1.0
        deltas[-1].mul_(records.weights * scale if self.private is None else scale)
        for place in reversed(range(len(weights))):
            activation = self.layout.layers[place].activation
            if activation is not None:
                activation.pull(deltas[place], kept[place])
            if place:
                torch.bmm(weights[place].mT, deltas[place], out=deltas[place - 1])

    def _forward(
        self, values: Sequence[Tensor], records: Records, targets: Targets, units: list[Tensor]
    ) -> list[Tensor]:
        """Fill the units; return for each layer the tensor that the derivative of its activation needs."""
        kept, (weights, biases) = [], self.layout.parts(values)
        for place, layer in enumerate(self.layout.layers):
            if place == 0:
                records.forward(weights[0], targets, out=units[0])
            elif layer.bias is None:
                torch.bmm(weights[place], units[place - 1], out=units[place])
            else:
                torch.baddbmm(biases[place], weights[place], units[place - 1], out=units[place])
            kept.append(units[place])
            if layer.activation is not None:
                units[place] = layer.activation.apply(units[place])
                kept[place] = units[place] if layer.activation.from_output else kept[place]
        return kept

    def _gradients(
        self,
        units: Sequence[Tensor],
        deltas: Sequence[Tensor],
        records: Records,
        targets: Targets,
        out: Sequence[Tensor],
    ) -> None:
        """Compute the gradients of all weights and biases from units and deltas."""
        weights, biases = self.layout.parts(out)
        records.backward(deltas[0], targets, out=weights[0])
        for place in range(1, len(weights)):
            torch.bmm(deltas[place], units[place - 1].mT, out=weights[place])
            if place in biases:
                torch.sum(deltas[place], 2, keepdim=True, out=biases[place])

    def _clip(
        self,
        private: Gaussian,
        units: Sequence[Tensor],
        deltas: Sequence[Tensor],
        records: Records,
        targets: Targets,
    ) -> None:
        """Scale each record's part of the gradient, an outer product in every layer, to the clipping norm.

        A record whose gradient is not finite contributes zero, since NaN in a model would identify it.
        """
        # |delta a^T|^2 = |delta|^2 |a|^2 per layer and record; the first bias is a column of the inputs.
        squares = deltas[0].square().sum(1) * records.input_squares(targets)
        for place in range(1, len(deltas)):
            bias = int(self.layout.layers[place].bias is not None)  # a bias is the weight of a constant input 1
            squares += deltas[place].square().sum(1) * (units[place - 1].square().sum(1) + bias)
        norm = private.clip_norm
        if squares.dtype == torch.float64:
            norm = clip_limit(norm, self.layout.size, records=records.count)
        factors = HardClip(norm).factor(squares.sqrt_()) * records.weights
        lost = ~squares.isfinite()[:, None]
        for delta in deltas:
            delta.mul_(factors[:, None])
        if bool(lost.any()):
            for tensor in (*deltas, *units):  # zero times an infinite unit would be NaN
                tensor.masked_fill_(lost, 0.0)

    def _add_noise(self, std: float, gradients: Sequence[Tensor], streams: Sequence[torch.Generator]) -> None:
        """Add noise to each model from its own stream, so that no model depends on the others trained with it."""
        dtype, size = gradients[0].dtype, self.layout.size
        if dtype == torch.float64:
            rows = gradients[0].new_empty(len(streams), size)
            self.layout.flatten_into(gradients, out=rows)
            noisy = torch.stack([add_noise(row, std, stream) for row, stream in zip(rows, streams, strict=True)])
            for gradient, value in zip(gradients, self.layout.pack(noisy), strict=True):
                gradient.copy_(value)
            return
        noise = torch.stack([torch.randn(size, generator=stream, dtype=dtype) for stream in streams])
        for gradient, value in zip(gradients, self.layout.pack(noise), strict=True):
            gradient.add_(value, alpha=std)
