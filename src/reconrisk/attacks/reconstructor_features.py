"""What a reconstructor reads of a trained model: its parameters or its logits, as standardised numbers in one row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from reconrisk.core.validation import check_all_finite, check_not_empty, refuse
from reconrisk.releases.shadow_training import ShadowTraining
from reconrisk.releases.state import chosen_names

LOGITS = "logits"
_VALUES_AT_ONCE = 2**24  # units of all models on all queries: 64 MB of float32


@dataclass(frozen=True)
class Reading:
    """Names and shapes of the tensors that are read, in the order in which they make one row."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Length of a row."""
        return sum(math.prod(shape) for shape in self.shapes)

    def row(self, released: Mapping[str, Tensor]) -> Tensor:
        """What was released as one row; tensors under other names are not read."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in released:
                raise refuse("released", sorted(released), f"to hold {name!r}", "Attack a release of the same kind.")
            if tuple(released[name].shape) != shape:
                found = tuple(released[name].shape)
                raise refuse(f"released[{name!r}].shape", found, f"to be {shape}, as in the shadow models")
        return torch.cat([released[name].detach().flatten().float() for name in self.names])


def reading(training: ShadowTraining, parameters: Sequence[str] | None, queries: Tensor | None) -> Reading:
    """All parameters that training changes, the chosen ones ("head" stands for all of a layer), or logits on queries.

    >>> from torch import nn
    >>> one, model = torch.ones(1, 2), nn.Sequential(nn.Linear(2, 3), nn.ELU(), nn.Linear(3, 2))
    >>> training = ShadowTraining(model, one, torch.tensor([0]), steps=1)
    >>> reading(training, ["2"], None)
    Reading(names=('2.weight', '2.bias'), shapes=((2, 3), (2,)))
    """
    if queries is None:
        shapes = dict(zip(training.names, training.shapes, strict=True))
        chosen = training.names if parameters is None else chosen_names(parameters, training.names)
        names = tuple(name for name in training.names if name in chosen)
        return Reading(names, tuple(shapes[name] for name in names))
    if parameters is not None:
        raise refuse("parameters", parameters, "to be None with queries", "Logits are read instead.")
    check_not_empty("queries", queries)
    check_all_finite("queries", queries)
    with torch.no_grad():
        one = logits_of(training, training.start()[None], queries[:1])
    return Reading((LOGITS,), ((len(queries), *one.shape[2:]),))


def features_of(training: ShadowTraining, rows: Tensor, what: Reading, queries: Tensor | None) -> Tensor:
    """What is read of many trained models at once, (n, values), from their parameters (n, p)."""
    if queries is not None:
        return logits_of(training, rows, queries).flatten(1)
    if what.names == training.names:
        return rows
    named = training.unflatten(rows)
    return torch.cat([named[name].flatten(1) for name in what.names], 1)


@torch.no_grad()
def logits_of(training: ShadowTraining, rows: Tensor, queries: Tensor) -> Tensor:
    """What each of the models (n, p) says of the queries, (n, queries, classes), in evaluation mode."""
    model = training.model
    was_training = model.training
    queries = queries.to(rows.dtype)
    buffers = {name: value.to(rows.dtype) for name, value in model.named_buffers() if value.is_floating_point()}

    def outputs(row: Tensor) -> Tensor:
        said: Tensor = functional_call(model, {**training.unflatten(row), **buffers}, (queries,))
        return said

    at_once = max(1, _VALUES_AT_ONCE // (len(queries) * max(1, math.prod(queries.shape[1:]))))
    model.eval()
    try:
        return torch.cat([vmap(outputs)(some) for some in rows.split(at_once)])
    finally:
        model.train(was_training)
