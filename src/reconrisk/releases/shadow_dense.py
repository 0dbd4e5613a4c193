"""Many dense networks trained at once: all models stand in the rows of one large matrix product per layer and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.clipping import HardClip
from reconrisk.releases.optimizers import UpdateRule
from reconrisk.releases.shadow_layers import DenseLayer
from reconrisk.releases.shadow_records import Records, Targets
from reconrisk.releases.shadow_updates import updater


@dataclass(frozen=True, eq=False)
class Layout:
    """Where parameters stand in a row, and in which order the engine keeps the input features.

    ``order`` numbers the features of a record and, last, the constant one if the first layer has a bias. The ``used``
    features come first: the others are zero in all fixed records, so that products with these leave them out.
    """

    layers: tuple[DenseLayer, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    order: Tensor
    used: int

    def packed(self, rows: Tensor) -> list[Tensor]:
        """Rows of flat parameters (n, p) as the tensors that training moves, first layer first.

        Weights are (n, fan_out, fan_in), biases (n, fan_out, 1); the first bias is a column of the first weights, so
        that product and gradient include it.
        """
        named = self._named(rows)
        values: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            weight = named[layer.weight]
            bias = [] if layer.bias is None else [named[layer.bias].unsqueeze(2)]
            if place == 0:
                values.append(torch.cat([weight, *bias], 2)[:, :, self.order])
            else:
                values += [weight.clone(), *(value.clone() for value in bias)]
        return values

    def flattened(self, values: Sequence[Tensor], out: Tensor) -> None:
        """Write such tensors into rows of flat parameters."""
        named, (weights, biases) = self._named(out), self.parts(values)
        first = weights[0][:, :, self.order.argsort()]
        for place, layer in enumerate(self.layers):
            named[layer.weight].copy_(first[:, :, : layer.fan_in] if place == 0 else weights[place])
            if layer.bias is not None:
                named[layer.bias].copy_(first[:, :, -1] if place == 0 else biases[place][:, :, 0])

    def parts(self, values: Sequence[Tensor]) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Weights of each layer, and biases of those after the first by their place."""
        weights, biases, left = [], {}, iter(values)
        for place, layer in enumerate(self.layers):
            weights.append(next(left))
            if place and layer.bias is not None:
                biases[place] = next(left)
        return weights, biases

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        ends = [0, *accumulate(torch.Size(shape).numel() for shape in self.shapes)]
        parts = zip(self.names, self.shapes, pairwise(ends), strict=True)
        return {name: rows[:, begin:end].unflatten(1, shape) for name, shape, (begin, end) in parts}


@dataclass(frozen=True, eq=False)
class DenseEngine:
    """Gradient steps of all models of one dense architecture, under cross-entropy or (``squared``) the squared loss."""

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
        """Move ``values`` one step per batch, with noise from the ``streams`` of the models."""
        update = updater(rule, values)
        gradients = [torch.empty_like(value) for value in values]
        room: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for records in batches:
            columns = records.answers.shape[-1]
            if columns not in room:  # a smaller batch ends an epoch
                room[columns] = self._room(values[0], columns), self._room(values[0], columns)
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
        """Forward and backward: the units of each layer, and the derivative of the loss by what enters them.

        The loss is the mean, or, if gradients of records are to be clipped, that of each record by itself.
        """
        weights, _ = self.layout.parts(values)
        kept = self._forward(values, records, targets, units)
        if self.squared:
            deltas[-1].copy_(units[-1])
        else:
            torch.ops.aten._softmax.out(units[-1], 1, False, out=deltas[-1])
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
        """Fill the units; return for each layer what the derivative of its activation is computed from."""
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
        """Scale each record's part of the gradient, an outer product in every layer, to the clipping norm."""
        squares = deltas[0].square().sum(1) * records.input_squares(targets)
        for place in range(1, len(deltas)):
            bias = int(self.layout.layers[place].bias is not None)
            squares += deltas[place].square().sum(1) * (units[place - 1].square().sum(1) + bias)
        factors = HardClip(private.clip_norm).factor(squares.sqrt_()) * records.weights
        for delta in deltas:
            delta.mul_(factors[:, None])

    def _add_noise(self, std: float, gradients: Sequence[Tensor], streams: Sequence[torch.Generator]) -> None:
        """Noise for each model from its own stream, so that no model depends on which others are trained with it."""
        dtype, size = gradients[0].dtype, sum(value[0].numel() for value in gradients)
        noise = torch.stack([torch.randn(size, generator=stream, dtype=dtype) for stream in streams])
        for gradient, value in zip(gradients, self.layout.packed(noise), strict=True):
            gradient.add_(value, alpha=std)

    def _room(self, like: Tensor, columns: int) -> list[Tensor]:
        """Memory for what each layer says of each record, used anew at each step."""
        return [like.new_empty(len(like), layer.fan_out, columns) for layer in self.layout.layers]
