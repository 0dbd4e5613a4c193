"""Sending values in few bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.validation import check_whole
from reconrisk.defenses.base import SendingDefense


@dataclass(frozen=True)
class Quantised(SendingDefense):
    """The configured defense that :func:`quantise` and :func:`sign` return."""

    levels: int

    def __post_init__(self) -> None:
        check_whole("levels", self.levels, minimum=2)

    @property
    def mechanism(self) -> None:
        """None: rounding has no guarantee."""

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Each tensor rounded to its levels; ``rng`` is not used."""
        del rng
        return {name: self._rounded(tensor) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything: rounding cannot be differentiated, its errors are left to :meth:`noise_std`."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """That of a value uniform within its step; None where nothing but zeros was sent."""
        if self.levels == 2 or not all(bool(tensor.any()) for tensor in sent.values()):
            return None
        steps = {name: 2 * tensor.abs().max() / (self.levels - 1) for name, tensor in sent.items()}
        return {name: (steps[name] / 12**0.5).expand_as(tensor).clone() for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Every value is sent."""
        del sent

    def _rounded(self, tensor: Tensor) -> Tensor:
        values = tensor.double()  # sums of half precision overflow
        if self.levels == 2:
            return (values.abs().mean() * values.sign()).to(tensor)
        largest = values.abs().max()
        step = 2 * largest / (self.levels - 1)
        safe = step.clamp_min(torch.finfo(torch.float64).tiny)
        return (((values + largest) / safe).round() * step - largest).to(tensor)

    def __str__(self) -> str:
        """The call that configures it."""
        return "sign()" if self.levels == 2 else f"quantise(levels={self.levels})"


def quantise(levels: int) -> Quantised:
    """Each tensor of the release rounded to ``levels`` values, evenly spaced between its extremes.

    Assumes: nothing; it is a heuristic, its ``mechanism`` is None. The adversary reads the step off what was sent.
    Edge cases: two levels are :func:`sign`.

    >>> quantise(3)({"w": torch.tensor([1.0, -0.2, 0.7, -1.0])}, rng=torch.Generator())
    {'w': tensor([ 1.,  0.,  1., -1.])}
    """
    return Quantised(levels)


def sign() -> Quantised:
    """The signs of the release, each tensor times the mean of its absolute values.

    Reference: `Bernstein et al. (2018) <https://arxiv.org/abs/1802.04434>`_ for training by signs; the scale keeps the
    size of a step.

    >>> sign()({"w": torch.tensor([1.0, -3.0])}, rng=torch.Generator())
    {'w': tensor([ 2., -2.])}
    """
    return Quantised(2)
