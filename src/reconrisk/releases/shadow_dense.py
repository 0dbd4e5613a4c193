"""Many dense networks trained at once: all models stand in the rows of one large matrix product per layer and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from reconrisk.releases.optimizers import UpdateRule
from reconrisk.releases.shadow_layers import DenseLayer
from reconrisk.releases.shadow_records import SharedRecords, Targets
from reconrisk.releases.shadow_updates import updater


@dataclass(frozen=True, eq=False)
class DenseEngine:
    """Gradient steps of models of one dense architecture; values of a model are a list of tensors, first layer first.

    Weights are (n, fan_out, fan_in), biases (n, fan_out, 1). Inputs end with a column of ones if the first layer has a
    bias, which then is the last column of its weights: product and gradient include it.
    """

    layers: tuple[DenseLayer, ...]
    squared: bool
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    _buffers: dict[tuple[int, int, torch.dtype], tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    def packed(self, rows: Tensor) -> list[Tensor]:
        """Rows of flat parameters (n, p) as the values that training moves."""
        named = self._named(rows)
        values: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            weight = named[layer.weight]
            bias = [] if layer.bias is None else [named[layer.bias].unsqueeze(2)]
            values += [torch.cat([weight, *bias], 2)] if place == 0 else [weight.clone(), *(b.clone() for b in bias)]
        return values

    def flattened(self, values: Sequence[Tensor], out: Tensor) -> None:
        """Write values into rows of flat parameters, in the order of ``names``."""
        named, left = self._named(out), iter(values)
        for place, layer in enumerate(self.layers):
            weight = next(left)
            named[layer.weight].copy_(weight[:, :, : layer.fan_in])
            if layer.bias is not None:
                named[layer.bias].copy_(weight[:, :, -1] if place == 0 else next(left)[:, :, 0])

    def train(self, values: list[Tensor], targets: Targets, rule: UpdateRule, batches: Iterable[SharedRecords]) -> None:
        """Move ``values`` one step per batch."""
        update = updater(rule, values)
        gradients = [torch.empty_like(value) for value in values]
        for records in batches:
            units, deltas = self._passed(values, records, targets)
            self._gradients(units, deltas, records, targets, gradients)
            update(gradients)

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        ends = [0, *accumulate(sizes)]
        parts = zip(self.names, self.shapes, pairwise(ends), strict=True)
        return {name: rows[:, begin:end].unflatten(1, shape) for name, shape, (begin, end) in parts}

    def _passed(
        self, values: Sequence[Tensor], records: SharedRecords, targets: Targets
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Forward and backward: the units of each layer, and the derivative of the loss by their inputs."""
        units, deltas = self._room(len(values[0]), records.answers.shape[-1], values[0].dtype)
        kept, weights, biases = [], *self._parts(values)
        for place, layer in enumerate(self.layers):
            if place == 0:
                records.forward(weights[0], targets.inputs, out=units[0])
            elif layer.bias is None:
                torch.bmm(weights[place], units[place - 1], out=units[place])
            else:
                torch.baddbmm(biases[place], weights[place], units[place - 1], out=units[place])
            kept.append(units[place])
            if layer.activation is not None:
                after = layer.activation.apply(units[place])
                kept[-1] = after if layer.activation.from_output else units[place]
                units[place] = after
        if self.squared:
            deltas[-1].copy_(units[-1])
        else:
            torch.ops.aten._softmax.out(units[-1], 1, False, out=deltas[-1])
        records.compare(deltas[-1], targets.answers)
        deltas[-1].mul_(records.weights * (2 / deltas[-1].shape[1] if self.squared else 1))
        for place in reversed(range(len(self.layers))):
            activation = self.layers[place].activation
            if activation is not None:
                activation.pull(deltas[place], kept[place])
            if place:
                torch.bmm(weights[place].mT, deltas[place], out=deltas[place - 1])
        return units, deltas

    def _gradients(
        self,
        units: Sequence[Tensor],
        deltas: Sequence[Tensor],
        records: SharedRecords,
        targets: Targets,
        out: Sequence[Tensor],
    ) -> None:
        weights, biases = self._parts(out)
        records.backward(deltas[0], targets.inputs, out=weights[0])
        for place in range(1, len(self.layers)):
            torch.bmm(deltas[place], units[place - 1].mT, out=weights[place])
            if self.layers[place].bias is not None:
                torch.sum(deltas[place], 2, keepdim=True, out=biases[place])

    def _parts(self, values: Sequence[Tensor]) -> tuple[list[Tensor], dict[int, Tensor]]:
        weights, biases, left = [], {}, iter(values)
        for place, layer in enumerate(self.layers):
            weights.append(next(left))
            if place and layer.bias is not None:
                biases[place] = next(left)
        return weights, biases

    def _room(self, models: int, columns: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        """Buffers for units and their derivatives, the same at each step."""
        key = (models, columns, dtype)
        if key not in self._buffers:
            self._buffers.clear()
            shapes = [(models, layer.fan_out, columns) for layer in self.layers]
            room = tuple([torch.empty(shape, dtype=dtype) for shape in shapes] for _ in range(2))
            self._buffers[key] = room[0], room[1]
        units, deltas = self._buffers[key]
        return list(units), list(deltas)
