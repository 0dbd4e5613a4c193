r"""How much each record moves the clipped gradient: the inner loop of Fisher accounting, for whole batches.

With u drawn from the standard normal over parameters, :math:`E|J_i^T u|^2 = |J_i|_F^2`, where
:math:`J_i = \partial g_i/\partial x_i`. One backward pass through the gradient of the batch gives :math:`J_i^T u` for
every record i, since record i moves only its own gradient; no per-record gradients are formed. The same pass, taken by
weights on the records' losses, gives :math:`\langle g_i, u\rangle`; and :math:`J_i^T g_i` is half the derivative of
:math:`|g_i|^2`. With the clip factor s they make up
:math:`J_c^T u = s J^T u + s' \langle g, u\rangle J^T g/|g|`.

The part along the record's own gradient is known exactly, and for a record that the model fits well it is most of the
whole: only the rest is left to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

import torch
from torch import Tensor, nn

from reconrisk.core.validation import check_whole
from reconrisk.releases.model_state import (
    LossFunction,
    ModelState,
    check_mode,
    check_separate,
    model_state,
    record_losses,
)
from reconrisk.releases.release import Linearized, check_records, standard_normal
from reconrisk.releases.updates.clipping import Clip
from reconrisk.releases.updates.per_example import LayerRecorder, squared_norms


def records_per_graph(records: int) -> int:
    """A quarter of the records, which needs little more memory than an ordinary training step on all; 16 to 150.

    >>> records_per_graph(600), records_per_graph(8)
    (150, 16)
    """
    return min(max(records // 4, 16), 150)


class Way(Enum):
    """How the norms of the records' gradients come about."""

    RULES = "rules of the layers"
    VECTORIZED = "vectorised gradients of single records"
    SINGLE = "one record after the other"
    NONE = "not at all"


@dataclass(frozen=True, eq=False)
class ClippedProbes:
    """Samples of how much records move their clipped gradients, for noise of unit standard deviation.

    ``squares`` has one row per probe and one column per record, each an unbiased sample of :math:`|J_c|_F^2` and none
    below ``radial``.
    ``radial`` is :math:`|J_c^T u|^2`, exactly, for the direction u of the record's own gradient. ``norms`` are those of
    the clipped gradients.
    """

    squares: Tensor
    radial: Tensor
    norms: Tensor


@dataclass(frozen=True, eq=False)
class ClippedLinearization:
    """The derivative of clipped gradients at a chunk of records, ready for any number of probes."""

    names: Sequence[str]
    _leaf: Tensor
    _weights: Tensor
    _gradient: Sequence[Tensor]
    _along: Tensor
    _norms: Tensor
    _clip: Clip | None

    def pull(self, cotangents: Sequence[Tensor], *, create_graph: bool = False) -> Tensor:
        """``J_c^T u`` for each record, where u weighs the parameters."""
        pulled, products = torch.autograd.grad(
            self._gradient,
            (self._leaf, self._weights),
            cotangents,
            retain_graph=True,
            create_graph=create_graph,
            materialize_grads=True,
        )
        if self._clip is None:
            return pulled
        factor, slope = self._clip.factor(self._norms), self._clip.slope(self._norms)
        return _spread(factor, pulled) + _spread(slope * products, self._along)

    def pull_across(self, cotangents: Sequence[Tensor]) -> Tensor:
        """``J_c^T`` of the part of u across the record's own gradient: ``s (J^T u - <g,u>/|g| J^T g/|g|)``."""
        pulled, products = torch.autograd.grad(
            self._gradient, (self._leaf, self._weights), cotangents, retain_graph=True, materialize_grads=True
        )
        tiny = torch.finfo(self._norms.dtype).tiny
        across = pulled - _spread(products / self._norms.clamp_min(tiny), self._along)
        return across if self._clip is None else _spread(self._clip.factor(self._norms), across)

    def radial(self) -> Tensor:
        """``J_c^T u`` for each record, where u is the direction of its own gradient: ``(s + s'|g|) J^T g / |g|``."""
        if self._clip is None:
            return self._along
        return _spread(self._clip.factor(self._norms) + self._clip.slope(self._norms) * self._norms, self._along)

    def clipped_norms(self) -> Tensor:
        """Norms of the clipped gradients."""
        return self._norms if self._clip is None else self._clip.factor(self._norms) * self._norms

    def linearized(self, scale: float) -> Linearized:
        """Products from either side, times ``scale``: that of the sum of the clipped gradients of these records."""

        def pull(cotangents: Mapping[str, Tensor]) -> Tensor:
            return scale * self.pull([cotangents[name] for name in self.names])

        def push(tangents: Tensor) -> dict[str, Tensor]:
            moved = torch.autograd.grad(pulled(), probes, scale * tangents, retain_graph=True, materialize_grads=True)
            return dict(zip(self.names, moved, strict=True))

        probes = [torch.zeros_like(value, requires_grad=True) for value in self._gradient]

        @cache
        def pulled() -> Tensor:
            return self.pull(probes, create_graph=True)

        return Linearized(push, pull, self._leaf.detach())


def probe_clipped_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Tensor,
    labels: Tensor,
    *,
    clip: Clip | None,
    probes: int,
    rng: torch.Generator,
    state: Mapping[str, Tensor] | None = None,
    parameters: Sequence[str] | None = None,
) -> ClippedProbes:
    r"""Unbiased samples of :math:`|J_c|_F^2` for every record, by ``probes`` backward passes over the batch.

    Assumes: each record's outputs depend on that record alone (batch norm in eval mode).
    Notation: ``state`` replaces the module's own parameters and buffers by name.
    Guarantee: memory does not grow with records times parameters. A record whose gradient is zero has radial part zero.
    Edge cases: layers without a rule in :mod:`reconrisk.releases.updates.per_example` cost one gradient per record
    once; modules that ``torch.func`` cannot vectorise (control flow that depends on data) are slower, not refused.
    Reference: Algorithm 1 and equation 5, guo2022, with random directions of parameters instead of coordinates of x.

    >>> model = nn.Linear(3, 1, bias=False)
    >>> result = probe_clipped_gradients(model, lambda output, label: output.sum(), torch.ones(2, 3), torch.zeros(2),
    ...                                  clip=None, probes=2000, rng=torch.Generator().manual_seed(0))
    >>> result.squares.mean(0).round()  # the gradient is the record itself, so J is the identity
    tensor([3., 3.])
    """
    check_records(inputs, labels)
    check_whole("probes", probes)
    check_mode(model)
    tensors = model_state(model, inputs.dtype, parameters=parameters, state=state)
    parts = []
    for point in linearizations(tensors, loss_fn, inputs, labels, clip=clip):
        drawn = ([standard_normal(value, rng) for value in tensors.released.values()] for _ in range(probes))
        across = torch.stack([_squares(point.pull_across(direction)) for direction in drawn])
        radial = _squares(point.radial())
        parts.append((across + radial, radial, point.clipped_norms()))
    return ClippedProbes(*(torch.cat(part, dim=-1) for part in zip(*parts, strict=True)))


def linearizations(
    state: ModelState,
    loss_fn: LossFunction,
    inputs: Tensor,
    labels: Tensor,
    *,
    clip: Clip | None,
    size: int | None = None,
    norms: bool = True,
) -> Iterator[ClippedLinearization]:
    """Linearisations of the clipped gradients, for ``size`` records after the other.

    Without ``norms``, which only clipping and the part along a record's own gradient need, that part counts as zero.
    """
    check_separate(state, loss_fn, inputs, labels)
    size = records_per_graph(len(inputs)) if size is None else size
    way = _fastest_way(state, loss_fn, inputs[:2], labels[:2]) if norms or clip is not None else Way.NONE
    for records, targets in zip(inputs.split(size), labels.split(size), strict=True):
        yield _linearization(state, loss_fn, records, targets, clip, way)


def _linearization(
    state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor, clip: Clip | None, way: Way
) -> ClippedLinearization:
    leaf = inputs.detach().clone().requires_grad_()
    weights = leaf.new_ones(len(leaf)).requires_grad_()
    parameters = {name: value.detach().requires_grad_() for name, value in state.released.items()}
    recorder = LayerRecorder(state)
    with torch.enable_grad():
        with recorder.recording():
            outputs = state.outputs(leaf, parameters)
        loss = (weights * record_losses(loss_fn, outputs, labels)).sum()
        tensors = [*parameters.values(), *recorder.outputs]
        gradients = torch.autograd.grad(loss, tensors, create_graph=True, materialize_grads=True)
        gradient, output_gradients = gradients[: len(parameters)], gradients[len(parameters) :]
        if way is Way.NONE:
            squares = leaf.new_zeros(len(leaf))
        elif way is Way.RULES:
            squares = recorder.squares(output_gradients)
        else:
            squares = squared_norms(state, loss_fn, leaf, labels, vectorized=way is Way.VECTORIZED)
        slope = torch.zeros_like(leaf)
        if squares.requires_grad:
            (slope,) = torch.autograd.grad(squares.sum() / 2, leaf, retain_graph=True, materialize_grads=True)
    norms = squares.detach().sqrt()
    along = _spread(1 / norms.clamp_min(torch.finfo(norms.dtype).tiny), slope)
    return ClippedLinearization(list(parameters), leaf, weights, gradient, along, norms, clip)


def _fastest_way(state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> Way:
    """The first way whose norms and their derivatives are those of single records, at the records given.

    A module may use its weights without calling the layer that holds them, and vectorising is not right for all layers.
    """
    for way in (Way.RULES, Way.VECTORIZED):
        if way is Way.RULES and not LayerRecorder(state).complete:
            continue
        try:
            found = _linearization(state, loss_fn, inputs, labels, None, way)
        except (RuntimeError, ValueError, TypeError):  # what vmap cannot trace, one record after the other can
            continue
        truth = _linearization(state, loss_fn, inputs, labels, None, Way.SINGLE)
        pairs = (found.clipped_norms(), truth.clipped_norms()), (found.radial(), truth.radial())
        if all(bool((value - true).norm() <= 1e-3 * true.norm()) for value, true in pairs):
            return way
    return Way.SINGLE


def _squares(pulled: Tensor) -> Tensor:
    return pulled.reshape(len(pulled), -1).square().sum(1)


def _spread(factors: Tensor, records: Tensor) -> Tensor:
    """Each record times its factor."""
    return factors.reshape(-1, *(1 for _ in records.shape[1:])) * records
