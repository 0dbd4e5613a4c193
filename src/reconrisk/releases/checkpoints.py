"""Reverse mode through a long training in little memory: a few states are kept, the steps between them run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from reconrisk.core.validation import refuse
from reconrisk.releases.unrolled import Named, TrainingState

Advance: TypeAlias = Callable[[TrainingState, range], TrainingState]
"""Training from a state through some steps, differentiable in the state and the records."""


@dataclass(frozen=True, eq=False)
class Checkpoints:
    """One training in parts: the state before each part, and after the last."""

    advance: Advance
    parts: list[range]
    states: list[TrainingState]

    def pull(
        self, cotangents: Mapping[str, Tensor], shown: Callable[[TrainingState], Named], records: Tensor
    ) -> Tensor:
        """The derivative by ``records`` of the weighted sum of what is ``shown`` of the last state.

        Only the graph of one part exists at a time.
        """
        with torch.enable_grad():
            last = self.states[-1].map(_leaf)
            weighted = _weighted(shown(last), cotangents)
            weights = list(torch.autograd.grad(weighted, last.differentiable(), materialize_grads=True))
            total = torch.zeros_like(records)
            for part, begin in zip(reversed(self.parts), reversed(self.states[:-1]), strict=True):
                state = begin.map(_leaf)
                ends = self.advance(state, part).differentiable()
                reached = [pair for pair in zip(ends, weights, strict=True) if pair[0].requires_grad]
                *weights, share = torch.autograd.grad(
                    [end for end, _ in reached],
                    [*state.differentiable(), records],
                    [weight for _, weight in reached],
                    materialize_grads=True,
                )
                total += share
        return total


def checkpoints(start: TrainingState, advance: Advance, steps: range, spacing: int) -> Checkpoints:
    """Train once without a graph and keep the state before every ``spacing``-th step."""
    parts = [steps[first : first + spacing] for first in range(0, len(steps), spacing)]
    states = [start]
    with torch.no_grad():
        for part in parts:
            states.append(advance(states[-1], part))
    return Checkpoints(advance, parts, states)


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_()


def _weighted(released: Named, cotangents: Mapping[str, Tensor]) -> Tensor:
    total = torch.zeros(())
    for name, value in released.items():
        weight = cotangents.get(name)
        if weight is None or weight.shape != value.shape:
            came = None if weight is None else tuple(weight.shape)
            raise refuse(
                f"cotangents[{name!r}].shape", came, f"to be {tuple(value.shape)}, the shape of what is released"
            )
        total = total + (weight.to(value.dtype) * value).sum()
    return total
