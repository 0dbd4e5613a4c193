"""Fisher trace of every record of a batch to 10 % relative standard error: guo2022's MNIST network, 600 records.

Directions of parameters serve all records with one backward pass; coordinates of the records, as in equation 5 of
guo2022 (each probe and record with a coordinate of its own), need the derivative of each record's gradient. Both run as
many probes as a pilot of their own spread asks for: their standard errors are equal. The result is the median trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from reconrisk.data import load_dataset
from reconrisk.models import guo2022_mnist
from reconrisk.releases import HardClip
from reconrisk.releases.model_state import model_state
from reconrisk.releases.updates.clipped_gradient import probe_clipped_gradients

TARGET = 0.1
RECORDS = 600
CLIP = HardClip(1.0)


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """The network and the records of guo2022's experiment."""
    digits = load_dataset("mnist", split="train")
    model = guo2022_mnist(rng=torch.Generator().manual_seed(0))
    return model, digits.inputs[:RECORDS], digits.class_labels[:RECORDS]


def _needed(squares: Tensor) -> int:
    """Probes that bring the median relative standard error to the target, from a pilot."""
    return math.ceil(float((squares.std(0) / squares.mean(0)).median() / TARGET) ** 2)


def ours() -> Callable[[], float]:
    """Random directions of parameters, all records in one backward pass."""
    model, inputs, labels = problem()
    rng = torch.Generator().manual_seed(0)

    def squares(probes: int, records: int) -> Tensor:
        return probe_clipped_gradients(
            model, nn.functional.cross_entropy, inputs[:records], labels[:records], clip=CLIP, probes=probes, rng=rng
        ).squares

    probes = _needed(squares(50, 60))
    return lambda: float(squares(probes, RECORDS).mean(0).median())


def coordinates() -> Callable[[], float]:
    """Random coordinates of records, by products with the Jacobians of per-record gradients."""
    model, inputs, labels = problem()
    state, width = model_state(model, inputs.dtype), inputs[0].numel()
    rng = torch.Generator().manual_seed(0)

    def gradient(record: Tensor, label: Tensor) -> Tensor:
        def loss(values: dict[str, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(state.outputs(record[None], values), label[None])

        flat = torch.cat([value.flatten() for value in torch.func.grad(loss)(state.released).values()])
        return flat * CLIP.factor(flat.norm())

    def square(record: Tensor, label: Tensor, tangent: Tensor) -> Tensor:
        _, change = torch.func.jvp(lambda x: gradient(x, label), (record,), (tangent,))
        return width * change.square().sum()

    def squares(probes: int, records: int) -> Tensor:
        rows = []
        for _ in range(probes):
            tangents = torch.zeros(records, width)
            tangents[torch.arange(records), torch.randint(width, (records,), generator=rng)] = 1
            shaped = tangents.reshape(inputs[:records].shape)
            rows.append(torch.func.vmap(square)(inputs[:records], labels[:records], shaped))
        return torch.stack(rows)

    probes = _needed(squares(200, 60))
    return lambda: float(squares(probes, RECORDS).mean(0).median())


CONTENDERS = {
    "directions of parameters (ours)": ours,
    "coordinates, per-record gradients (guo2022)": coordinates,
}
