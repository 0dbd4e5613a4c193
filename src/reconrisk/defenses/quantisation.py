"""Quantisation: values sent with few bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.validation import check_whole
from reconrisk.defenses.base import BaseDefense


@dataclass(frozen=True)
class Quantisation(BaseDefense):
    """Configured defense, as returned by :func:`quantise` and :func:`sign`.

    Attributes:
        levels: Number of values that each tensor is rounded to; 2 keeps the signs.
    """

    levels: int

    def __post_init__(self) -> None:
        check_whole("levels", self.levels, minimum=2)

    @property
    def mechanism(self) -> None:
        """None: rounding has no guarantee."""

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Round each tensor to its levels; ``rng`` is not used."""
        del rng
        return {name: self._round(tensor) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the release unchanged: rounding is not differentiable, and :meth:`noise_std` covers its error."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the standard deviation of a uniform error within one step; None for signs or an all-zero tensor."""
        if self.levels == 2 or not all(bool(tensor.any()) for tensor in sent.values()):
            return None
        # the largest sent magnitude is a level, so it gives the step; a uniform error has std step / sqrt(12)
        steps = {name: 2 * tensor.abs().max() / (self.levels - 1) for name, tensor in sent.items()}
        return {name: (steps[name] / 12**0.5).expand_as(tensor).clone() for name, tensor in sent.items()}

    def kept(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: every value is sent."""
        del sent

    def _round(self, tensor: Tensor) -> Tensor:
        """Round a tensor to its levels, in double precision."""
        values = tensor.double()  # sums in half precision overflow
        if self.levels == 2:
            return (values.abs().mean() * values.sign()).to(tensor)
        largest = values.abs().max()
        step = 2 * largest / (self.levels - 1)
        safe = step.clamp_min(torch.finfo(torch.float64).tiny)  # a tensor of zeros has no step to divide by
        return (((values + largest) / safe).round() * step - largest).to(tensor)

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return "sign()" if self.levels == 2 else f"quantise(levels={self.levels})"


def quantise(levels: int) -> Quantisation:
    """Round each tensor of the release to a few values, evenly spaced between plus and minus its largest magnitude.

    Args:
        levels: Number of values, at least 2.

    Returns:
        The configured defense. Its ``mechanism`` is None.

    Raises:
        InvalidInput: If ``levels`` is not a whole number of at least 2.

    Assumes: nothing; it is a heuristic. The adversary can compute the distance between levels from the sent values.
    Edge cases: two levels are :func:`sign`.

    >>> quantise(3)({"w": torch.tensor([1.0, -0.2, 0.7, -1.0])}, rng=torch.Generator())
    {'w': tensor([ 1.,  0.,  1., -1.])}
    """
    return Quantisation(levels)


def sign() -> Quantisation:
    """Send the sign of each value, times the mean absolute value of its tensor.

    Returns:
        The configured defense. Its ``mechanism`` is None.

    Reference: `Bernstein et al. (2018) <https://arxiv.org/abs/1802.04434>`_ for training by signs; the scale keeps the
    size of a step.

    >>> sign()({"w": torch.tensor([1.0, -3.0])}, rng=torch.Generator())
    {'w': tensor([ 2., -2.])}
    """
    return Quantisation(2)
