"""Clipped gradients of many records at given parameters, one row each, and the iterates that they lead between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from reconrisk.core.validation import check_all_finite, refuse
from reconrisk.releases.clipping import HardClip
from reconrisk.releases.state import LossFunction, called

_VALUES_AT_ONCE = 2**24
_AGREEMENT = 1e-3


def iterates_of(model: nn.Module, trajectory: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The parameters of each iterate, in the order of the model; at least two of them."""
    names = [name for name, _ in model.named_parameters()]
    if len(trajectory) < 2:
        remedy = "Pass the parameters before the first step and after every step."
        raise refuse("trajectory", f"of {len(trajectory)} iterates", "to have at least two", remedy)
    steps = []
    for place, iterate in enumerate(trajectory):
        missing = [name for name in names if name not in iterate]
        if missing:
            raise refuse(f"trajectory[{place}]", sorted(iterate), f"to hold {missing[0]}, as the model")
        for name in names:
            check_all_finite(f"trajectory[{place}][{name!r}]", iterate[name])
        steps.append({name: iterate[name].detach() for name in names})
    return steps


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """All values one after the other, in double precision."""
    return torch.cat([value.reshape(-1).double() for value in values.values()])


def clipped_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    parameters: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    clip_norm: float,
) -> Tensor:
    """The gradient of each record's loss by the parameters, clipped, (records, values) in double precision.

    Guarantee: vectorised only where that agrees with one record after the other, at the first two.

    >>> layer, one = nn.Linear(2, 1, bias=False), torch.tensor([[3.0, 4.0]])
    >>> loss = lambda output, label: output.sum()
    >>> clipped_gradients(layer, loss, dict(layer.named_parameters()), one, torch.zeros(1), 1.0)
    tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """
    fixed = {name: value.detach() for name, value in model.named_buffers()}
    point = {name: value.detach() for name, value in parameters.items()}
    size = sum(value.numel() for value in point.values())
    if len(inputs) == 0:
        return torch.zeros(0, size, dtype=torch.float64)

    def loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return loss_fn(called(model, {**fixed, **values}, record[None]), label[None])

    gradient = torch.func.grad(loss)
    together = torch.func.vmap(gradient, in_dims=(None, 0, 0))

    def single(rows: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([flat(gradient(point, row, target)) for row, target in zip(rows, targets, strict=True)])

    def vectorised(rows: Tensor, targets: Tensor) -> Tensor:
        found = together(point, rows, targets)
        return torch.cat([found[name].reshape(len(rows), -1).double() for name in point], dim=1)

    way = single
    try:
        some = single(inputs[:2], labels[:2])
        near = _AGREEMENT * float(some.abs().max())
        if torch.allclose(vectorised(inputs[:2], labels[:2]), some, rtol=_AGREEMENT, atol=near):
            way = vectorised
    except (RuntimeError, ValueError, NotImplementedError):  # control flow that depends on the data
        way = single
    rows = max(1, _VALUES_AT_ONCE // size)
    gradients = torch.cat(
        [way(x, y) for x, y in zip(inputs.detach().split(rows), labels.split(rows), strict=True)]
    ).detach()
    norms = gradients.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return gradients * HardClip(clip_norm).factor(norms)
