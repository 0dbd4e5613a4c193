"""Features of a trained model for a reconstructor: its parameters or its logits, standardised, in one row.

:class:`Scaling` keeps what varies between shadow models, in units of that variation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input
from reconrisk.releases.model_state import chosen_names
from reconrisk.releases.shadow.training import ShadowTraining

_ROUNDING = 4 * torch.finfo(torch.float32).eps  # relative spread that float32 weights show though nothing varies
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""Zero mean and unit variance over the shadow models, coordinate by coordinate, constant coordinates dropped.

    .. math:: \phi_j = (\theta_j - \mu_j) / \sigma_j

    Guarantee: fitted to shadow models alone. Differences are taken in float64: weights of size 1 that differ by 1e-6
    keep all digits that they have.
    """

    kept: Tensor
    mean: Tensor
    std: Tensor

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.kept)

    def __call__(self, rows: Tensor) -> Tensor:
        """Features (n, size) in float32 of rows (n, values)."""
        parts = rows.split(_ROWS_AT_ONCE)
        return torch.cat([((part[:, self.kept].double() - self.mean) / self.std).float() for part in parts])

    def rows(self, features: Tensor) -> Tensor:
        """The kept coordinates behind features: the inverse of calling it, up to rounding."""
        return features.double() * self.std + self.mean


def scaling(rows: Tensor) -> Scaling:
    """The scaling that standardises ``rows`` (n, values).

    Edge cases: coordinates that differ by no more than float32 rounding are dropped; if all do, rows are refused.

    >>> fitted = scaling(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> fitted.kept, fitted(torch.tensor([[4.0, 9.0]]))
    (tensor([0]), tensor([[2.]]))
    """
    if rows.ndim != 2 or len(rows) < 2:
        raise invalid_input("rows.shape", tuple(rows.shape), "to be (models, values) of at least two models")
    check_all_finite("rows", rows, "A shadow model diverged: lower the learning rate of its training.")
    total = sum(part.double().sum(0) for part in rows.split(_ROWS_AT_ONCE))
    mean = torch.as_tensor(total) / len(rows)
    squares = sum((part.double() - mean).square().sum(0) for part in rows.split(_ROWS_AT_ONCE))
    std = (torch.as_tensor(squares) / len(rows)).sqrt()
    largest = rows.abs().amax(0).double()
    kept = (std > _ROUNDING * largest).nonzero().flatten()
    if not len(kept):
        problem = "nothing that is read differs between them"
        raise InvalidInput(f"Expected shadow models to depend on their targets, {problem}. Read other parameters.")
    return Scaling(kept, mean[kept], std[kept])


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
                raise invalid_input(
                    "released", sorted(released), f"to hold {name!r}", "Attack a release of the same kind."
                )
            if tuple(released[name].shape) != shape:
                found = tuple(released[name].shape)
                raise invalid_input(f"released[{name!r}].shape", found, f"to be {shape}, as in the shadow models")
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
        raise invalid_input("parameters", parameters, "to be None with queries", "Logits are read instead.")
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
