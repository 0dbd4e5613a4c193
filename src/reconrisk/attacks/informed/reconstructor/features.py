"""Features of a trained model for a reconstructor: its parameters or its logits, standardised, in one row.

:class:`Scaling` keeps the coordinates that vary between shadow models and divides them by their standard deviation.
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
from reconrisk.releases.model_state import match_parameter_names
from reconrisk.releases.shadow.training import ShadowTraining

_ROUNDING = 4 * torch.finfo(torch.float32).eps  # relative spread that rounding of float32 weights causes
_ROWS_AT_ONCE = 1024  # shadow models converted to double precision at a time


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""Standardisation of each coordinate over the shadow models; constant coordinates are dropped.

    .. math:: \phi_j = (\theta_j - \mu_j) / \sigma_j

    Here :math:`\theta_j` is coordinate j of a model, with mean :math:`\mu_j` and standard deviation :math:`\sigma_j`
    over the shadow models.

    Attributes:
        kept: Indices of the coordinates that vary between shadow models.
        mean: Means of these coordinates.
        std: Standard deviations of these coordinates.

    Guarantee: fitted to shadow models alone. Differences are taken in float64: weights of size 1 that differ by 1e-6
    keep all of their digits.
    """

    kept: Tensor
    mean: Tensor
    std: Tensor

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.kept)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the features (n, size) of rows (n, values), in float32."""
        parts = rows.split(_ROWS_AT_ONCE)
        return torch.cat([((part[:, self.kept].double() - self.mean) / self.std).float() for part in parts])

    def rows(self, features: Tensor) -> Tensor:
        """Return the kept coordinates of features: the inverse of a call, up to rounding."""
        return features.double() * self.std + self.mean


def fit_scaling(rows: Tensor) -> Scaling:
    """Fit the standardisation of rows.

    Args:
        rows: Parameters or logits of at least two shadow models, (models, values).

    Returns:
        The scaling of the coordinates that vary.

    Raises:
        InvalidInput: If there are fewer than two rows, a value is not finite, or no coordinate varies.

    Edge cases: coordinates that differ by no more than float32 rounding are dropped; if all do, rows are refused.

    >>> fitted = fit_scaling(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> fitted.kept, fitted(torch.tensor([[4.0, 9.0]]))
    (tensor([0]), tensor([[2.]]))
    """
    if rows.ndim != 2 or len(rows) < 2:
        raise invalid_input("rows.shape", tuple(rows.shape), "to be (models, values) with at least two models")
    check_all_finite("rows", rows, "A shadow model diverged: lower the learning rate of its training.")
    # two passes in double precision: the variance of nearly constant weights would cancel in one
    total = sum(part.double().sum(0) for part in rows.split(_ROWS_AT_ONCE))
    mean = torch.as_tensor(total) / len(rows)
    squares = sum((part.double() - mean).square().sum(0) for part in rows.split(_ROWS_AT_ONCE))
    std = (torch.as_tensor(squares) / len(rows)).sqrt()
    largest = rows.abs().amax(0).double()
    kept = (std > _ROUNDING * largest).nonzero().flatten()
    if not len(kept):
        problem = "all values that are read are equal"
        raise InvalidInput(f"Expected shadow models to depend on their targets, {problem}. Pass other parameters.")
    return Scaling(kept, mean[kept], std[kept])


LOGITS = "logits"
_VALUES_AT_ONCE = 2**24  # input values of all models and queries in one call: 64 MB of float32


@dataclass(frozen=True)
class Reading:
    """Names and shapes of the tensors that are read, in the order in which they form one row."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Length of a row."""
        return sum(math.prod(shape) for shape in self.shapes)

    def row(self, released: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the released tensors to one row; tensors of other names are ignored."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in released:
                raise invalid_input(
                    "released",
                    sorted(released),
                    f"to contain {name!r}",
                    "Pass a release with the tensors of the shadow models.",
                )
            if tuple(released[name].shape) != shape:
                found = tuple(released[name].shape)
                raise invalid_input(f"released[{name!r}].shape", found, f"to be {shape}, as in the shadow models")
        return torch.cat([released[name].detach().flatten().float() for name in self.names])


def reading(training: ShadowTraining, parameters: Sequence[str] | None, queries: Tensor | None) -> Reading:
    """Choose the tensors that a reconstructor reads: trained parameters, some of them, or logits on queries.

    Args:
        training: Training of the shadow models.
        parameters: Names of parameters or layers, None for all.
        queries: Records for a black-box attack, None to read parameters.

    Returns:
        Names and shapes of the tensors.

    Raises:
        InvalidInput: If a name is unknown, queries are empty or not finite, or ``parameters`` and ``queries`` are both
            given.

    >>> from torch import nn
    >>> one, model = torch.ones(1, 2), nn.Sequential(nn.Linear(2, 3), nn.ELU(), nn.Linear(3, 2))
    >>> training = ShadowTraining(model, one, torch.tensor([0]), steps=1)
    >>> reading(training, ["2"], None)
    Reading(names=('2.weight', '2.bias'), shapes=((2, 3), (2,)))
    """
    if queries is None:
        shapes = dict(zip(training.names, training.shapes, strict=True))
        chosen = training.names if parameters is None else match_parameter_names(parameters, training.names)
        names = tuple(name for name in training.names if name in chosen)
        return Reading(names, tuple(shapes[name] for name in names))
    if parameters is not None:
        raise invalid_input(
            "parameters", parameters, "to be None with queries", "Remove parameters: the attack reads logits."
        )
    check_not_empty("queries", queries)
    check_all_finite("queries", queries)
    with torch.no_grad():
        one = query_logits(training, training.start()[None], queries[:1])
    return Reading((LOGITS,), ((len(queries), *one.shape[2:]),))


def extract_features(training: ShadowTraining, rows: Tensor, what: Reading, queries: Tensor | None) -> Tensor:
    """Extract the features of many trained models at once.

    Args:
        training: Training of the models.
        rows: Their parameters (n, p).
        what: Tensors to read.
        queries: Records whose logits are read, None to read parameters.

    Returns:
        Features (n, values).
    """
    if queries is not None:
        return query_logits(training, rows, queries).flatten(1)
    if what.names == training.names:
        return rows
    named = training.unflatten(rows)
    return torch.cat([named[name].flatten(1) for name in what.names], 1)


@torch.no_grad()
def query_logits(training: ShadowTraining, rows: Tensor, queries: Tensor) -> Tensor:
    """Compute the logits of many models on queries, in evaluation mode.

    Args:
        training: Training of the models.
        rows: Their parameters (n, p).
        queries: Records (queries, ...).

    Returns:
        Logits (n, queries, classes).
    """
    model = training.model
    was_training = model.training
    queries = queries.to(rows.dtype)
    buffers = {name: value.to(rows.dtype) for name, value in model.named_buffers() if value.is_floating_point()}

    def outputs(row: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, {**training.unflatten(row), **buffers}, (queries,))
        return logits

    at_once = max(1, _VALUES_AT_ONCE // (len(queries) * max(1, math.prod(queries.shape[1:]))))
    model.eval()
    try:
        return torch.cat([vmap(outputs)(some) for some in rows.split(at_once)])
    finally:
        model.train(was_training)
