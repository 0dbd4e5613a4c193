r"""Samples of the derivative of clipped gradients, for whole batches: the inner loop of Fisher accounting.

For u drawn from the standard normal over parameters, :math:`E|J_i^T u|^2 = |J_i|_F^2` with
:math:`J_i = \partial g_i/\partial x_i`. One backward pass through the gradient of the batch gives :math:`J_i^T u` for
every record i, since record i moves only its own gradient; no per-record gradients are formed. The same pass, taken
with respect to weights on the records' losses, gives :math:`\langle g_i, u\rangle`. And :math:`J_i^T g_i` is half the
derivative of :math:`|g_i|^2`. With the clip factor s, a function of :math:`|g|` with derivative s', they combine to
:math:`J_c^T u = s J^T u + s' \langle g, u\rangle J^T g/|g|`.

The part along the record's own gradient is computed exactly. For a record that the model fits well it is most of the
whole, so only the small rest is estimated from random directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

import torch
from torch import Tensor, nn

from reconrisk.core.validation import check_whole
from reconrisk.releases.derivative_check import check_model_derivative
from reconrisk.releases.model_state import (
    LossFunction,
    ModelState,
    check_mode,
    check_records_independent,
    model_state,
    record_losses,
)
from reconrisk.releases.release import Linearized, check_records, standard_normal
from reconrisk.releases.updates.clipping import Clip
from reconrisk.releases.updates.per_example import LayerRecorder, squared_norms


def records_per_graph(records: int) -> int:
    """Return the number of records that share one graph: a quarter of all, between 16 and 150.

    A quarter needs little more memory than an ordinary training step on all records.

    Args:
        records: Number of records of the batch.

    Returns:
        Number of records per graph.

    >>> records_per_graph(600), records_per_graph(8)
    (150, 16)
    """
    return min(max(records // 4, 16), 150)


class NormMethod(Enum):
    """Methods to compute the norms of the records' gradients."""

    RULES = "rules of the layers"
    VECTORIZED = "vectorised gradients of single records"
    SINGLE = "a loop over records"
    NONE = "not computed"


@dataclass(frozen=True, eq=False)
class ClippedProbes:
    """Samples of the squared derivative of clipped gradients, for noise of standard deviation 1.

    Attributes:
        squares: Unbiased samples of :math:`|J_c|_F^2`, with :math:`J_c` the derivative of a record's clipped gradient,
            (probes, records); none is below ``radial``.
        radial: Exact :math:`|J_c^T u|^2` for the direction u of each record's own gradient, (records,).
        norms: Norms of the clipped gradients, (records,).
    """

    squares: Tensor
    radial: Tensor
    norms: Tensor


@dataclass(frozen=True, eq=False)
class ClippedLinearization:
    """The derivative of clipped gradients at a group of records, for any number of products.

    Attributes:
        names: Names of the released parameters, in the order of the cotangents.
    """

    names: Sequence[str]
    _leaf: Tensor
    _weights: Tensor
    _gradient: Sequence[Tensor]
    _along: Tensor
    _norms: Tensor
    _clip: Clip | None

    def pull(self, cotangents: Sequence[Tensor], *, create_graph: bool = False) -> Tensor:
        """Return ``J_c^T u`` for each record, where u weighs the parameters.

        Args:
            cotangents: The weights u, one tensor per parameter.
            create_graph: Keep the result differentiable with respect to u.

        Returns:
            One product per record, in the shape of the records.
        """
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
        return _scale_records(factor, pulled) + _scale_records(slope * products, self._along)

    def pull_across(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Return ``J_c^T`` of u's part orthogonal to each record's gradient: ``s (J^T u - <g,u>/|g| J^T g/|g|)``."""
        pulled, products = torch.autograd.grad(
            self._gradient, (self._leaf, self._weights), cotangents, retain_graph=True, materialize_grads=True
        )
        tiny = torch.finfo(self._norms.dtype).tiny  # keeps the quotient 0 for a zero gradient, whose products are 0
        across = pulled - _scale_records(products / self._norms.clamp_min(tiny), self._along)
        return across if self._clip is None else _scale_records(self._clip.factor(self._norms), across)

    def radial(self) -> Tensor:
        """Return ``J_c^T u`` for the direction u of each record's own gradient: ``(s + s'|g|) J^T g / |g|``."""
        if self._clip is None:
            return self._along
        return _scale_records(self._clip.factor(self._norms) + self._clip.slope(self._norms) * self._norms, self._along)

    def clipped_norms(self) -> Tensor:
        """Return the norms of the clipped gradients."""
        return self._norms if self._clip is None else self._clip.factor(self._norms) * self._norms

    def linearize(self, scale: float) -> Linearized:
        """Return products from either side for ``scale`` times the sum of these records' clipped gradients."""

        def pull(cotangents: Mapping[str, Tensor]) -> Tensor:
            return scale * self.pull([cotangents[name] for name in self.names])

        def push(tangents: Tensor) -> dict[str, Tensor]:
            moved = torch.autograd.grad(
                pull_probes(), probes, scale * tangents, retain_graph=True, materialize_grads=True
            )
            return dict(zip(self.names, moved, strict=True))

        # Double backward: J v is the derivative of u -> J^T u at any u, here 0.
        probes = [torch.zeros_like(value, requires_grad=True) for value in self._gradient]

        @cache
        def pull_probes() -> Tensor:
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
    """Draw unbiased samples of :math:`|J_c|_F^2` for every record, with one backward pass over the batch per sample.

    Here :math:`J_c` is the derivative of a record's clipped gradient with respect to the record.

    Args:
        model: The network.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Records, ``(n, *shape)``.
        labels: One label per record.
        clip: Clipping rule; None for none.
        probes: Number of samples per record.
        rng: Generator of the random directions.
        state: Parameters and buffers that replace the module's own, by name.
        parameters: Names of the released parameters or layers; by default all that require gradients.

    Returns:
        The samples, the exact part along each record's gradient, and the norms of the clipped gradients.

    Raises:
        InvalidInput: If records or settings are invalid, or the model mixes the records of a batch.

    Assumes: each record's outputs depend on that record alone (batch norm in eval mode).
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
    check_model_derivative(tensors, loss_fn, inputs, labels)
    parts = []
    for point in linearizations(tensors, loss_fn, inputs, labels, clip=clip):
        drawn = ([standard_normal(value, rng) for value in tensors.released.values()] for _ in range(probes))
        across = torch.stack([_squared_norms(point.pull_across(direction)) for direction in drawn])
        radial = _squared_norms(point.radial())
        # E|J^T u|^2 splits into the direction of g, which is exact, and its orthogonal complement.
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
    """Yield the derivative of the clipped gradients for one group of records after the other.

    Args:
        state: The model.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Records, ``(n, *shape)``.
        labels: One label per record.
        clip: Clipping rule; None for none.
        size: Records per group; chosen by :func:`records_per_graph` if None.
        norms: True to compute gradient norms even without clipping. Otherwise the part along a record's own gradient is
            zero.

    Yields:
        One derivative per group.
    """
    check_records_independent(state, loss_fn, inputs, labels)
    size = records_per_graph(len(inputs)) if size is None else size
    method = _fastest_method(state, loss_fn, inputs[:2], labels[:2]) if norms or clip is not None else NormMethod.NONE
    for records, targets in zip(inputs.split(size), labels.split(size), strict=True):
        yield _linearization(state, loss_fn, records, targets, clip, method)


def _linearization(
    state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor, clip: Clip | None, method: NormMethod
) -> ClippedLinearization:
    leaf = inputs.detach().clone().requires_grad_()
    weights = leaf.new_ones(len(leaf)).requires_grad_()  # the derivative by weight i of <g, u> is <g_i, u>
    parameters = {name: value.detach().requires_grad_() for name, value in state.released.items()}
    recorder = LayerRecorder(state)
    with torch.enable_grad():
        with recorder.recording():
            outputs = state.outputs(leaf, parameters)
        loss = (weights * record_losses(loss_fn, outputs, labels)).sum()
        tensors = [*parameters.values(), *recorder.outputs]
        gradients = torch.autograd.grad(loss, tensors, create_graph=True, materialize_grads=True)
        # One backward pass gives the gradient of the parameters and, for the norms, that of the layers' outputs.
        gradient, output_gradients = gradients[: len(parameters)], gradients[len(parameters) :]
        if method is NormMethod.NONE:
            squares = leaf.new_zeros(len(leaf))
        elif method is NormMethod.RULES:
            squares = recorder.squares(output_gradients)
        else:
            squares = squared_norms(state, loss_fn, leaf, labels, vectorized=method is NormMethod.VECTORIZED)
        slope = torch.zeros_like(leaf)
        if squares.requires_grad:
            # Half the derivative of |g_i|^2 is J_i^T g_i; records do not mix, so one pass over the sum gives all.
            (slope,) = torch.autograd.grad(squares.sum() / 2, leaf, retain_graph=True, materialize_grads=True)
    norms = squares.detach().sqrt()
    along = _scale_records(1 / norms.clamp_min(torch.finfo(norms.dtype).tiny), slope)
    return ClippedLinearization(list(parameters), leaf, weights, gradient, along, norms, clip)


def _fastest_method(state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> NormMethod:
    """Return the first method whose norms and derivatives agree with those of single records.

    A module may use its weights without calling the layer that holds them, and vectorising is wrong for some layers.
    """
    for method in (NormMethod.RULES, NormMethod.VECTORIZED):
        if method is NormMethod.RULES and not LayerRecorder(state).complete:
            continue
        try:
            found = _linearization(state, loss_fn, inputs, labels, None, method)
        except (RuntimeError, ValueError, TypeError):  # vmap cannot trace it; single records work
            continue
        truth = _linearization(state, loss_fn, inputs, labels, None, NormMethod.SINGLE)
        pairs = (found.clipped_norms(), truth.clipped_norms()), (found.radial(), truth.radial())
        # Wrong rules are off by far more than 1e-3, and rounding in single precision by far less.
        if all(bool((value - true).norm() <= 1e-3 * true.norm()) for value, true in pairs):
            return method
    return NormMethod.SINGLE


def _squared_norms(pulled: Tensor) -> Tensor:
    return pulled.reshape(len(pulled), -1).square().sum(1)


def _scale_records(factors: Tensor, records: Tensor) -> Tensor:
    """Multiply each record by its factor."""
    return factors.reshape(-1, *(1 for _ in records.shape[1:])) * records
