"""Steps of DP-SGD that float noise cannot explain: the precision attack on weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from reconrisk.attacks.float_noise import has_preimage
from reconrisk.releases.model_state import LossFunction, call_module


def count_infeasible_steps(
    model: nn.Module,
    loss_fn: LossFunction,
    iterates: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    candidates: tuple[Tensor, Tensor],
    known: tuple[Tensor, Tensor],
    *,
    clip_norm: float,
    learning_rate: float,
    divisor: float,
) -> Tensor:
    r"""Count for each candidate the weights of one step that no float noise explains.

    .. math:: w' = fl(w - fl(r\, fl(fl(s + n) / B)))

    Here w and w' are a weight before and after the step, s the sum of clipped gradients with the candidate, n the
    noise, r the learning rate and B the divisor. All are floats of the precision of the weights.

    Args:
        model: Model that was trained.
        loss_fn: Training loss of a batch.
        iterates: Parameters before and after the step, by name.
        candidates: Candidate records and their labels.
        known: Records that entered the step, and their labels, in the order in which they were added.
        clip_norm: Norm that each gradient is clipped to.
        learning_rate: Learning rate.
        divisor: Divisor of the sum.

    Returns:
        One number per candidate: the fewest over the natural orders (the candidate added last or first) and the two
        forms of the step (``w - r * g``, and that of ``torch.optim.SGD``).

    Assumes: gradients are computed one record at a time and clipped by ``g * min(1, C / norm)`` in the precision of the
    weights. If the training computed otherwise, its last bits differ, and the counts say nothing.
    Guarantee: 0 for the candidate of such a step.
    """
    before, after = (torch.cat([value.reshape(-1) for value in each.values()]) for each in iterates)
    gradient = _clipped_gradient(model, loss_fn, iterates[0], clip_norm)
    others = [gradient(record, label) for record, label in zip(*known, strict=True)]
    found = torch.zeros(len(candidates[0]), dtype=torch.float64)
    for row, (record, label) in enumerate(zip(*candidates, strict=True)):
        own = gradient(record, label)
        counts = []
        for parts in ([*others, own], [own, *others])[: 1 + bool(others)]:
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            for step in (_subtract, _torch_step):
                # The noise enters with a minus sign, so that the chain never falls.
                chain = lambda noise, total=total, step=step: step(before, (total - noise) / divisor, learning_rate)  # noqa: E731
                counts.append(int((~has_preimage(chain, after)).sum()))
        found[row] = min(counts)
    return found


def _subtract(weights: Tensor, gradient: Tensor, rate: float) -> Tensor:
    return weights - rate * gradient


def _torch_step(weights: Tensor, gradient: Tensor, rate: float) -> Tensor:
    return torch.add(weights, gradient, alpha=-rate)


def _clipped_gradient(
    model: nn.Module, loss_fn: LossFunction, parameters: Mapping[str, Tensor], clip_norm: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function from a record and its label to its clipped gradient, in the precision of the weights."""
    fixed = {name: value.detach() for name, value in model.named_buffers()}
    point = {name: value.detach() for name, value in parameters.items()}

    def compute(record: Tensor, label: Tensor) -> Tensor:
        leaves = {name: value.clone().requires_grad_() for name, value in point.items()}
        with torch.enable_grad():
            loss = loss_fn(call_module(model, {**fixed, **leaves}, record[None]), label[None])
        found = torch.autograd.grad(loss, list(leaves.values()))
        flat = torch.cat([value.reshape(-1) for value in found])
        norm: Tensor = flat.norm().clamp_min(torch.finfo(flat.dtype).tiny)  # a zero gradient has no direction
        return flat * (clip_norm / norm).clamp(max=1.0)

    return compute
