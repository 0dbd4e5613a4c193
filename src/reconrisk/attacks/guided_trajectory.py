"""What a guided diffusion passed through on its way, and where somebody who cannot see the target stops."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.core.validation import refuse


@dataclass(frozen=True, eq=False)
class GuidedTrajectory:
    r"""Intermediate estimates (steps, records, \*shape) of one run with their squared residuals.

    ``residuals`` are sums over ``values`` released numbers, in units of the noise where ``noise_is_known``, else of the
    observation. ``times`` are those of the prior.
    """

    times: tuple[int, ...]
    residuals: Tensor
    estimates: Tensor = field(repr=False)
    values: int
    noise_is_known: bool

    @property
    def stop(self) -> int:
        r"""The step at which the attacker stops.

        Known noise: the first whose residual is what noise leaves of the truth, the discrepancy principle,

        .. math:: \sum_i (y_i - f_i(x))^2 / \sigma_i^2 \le m

        else the elbow: the first whose residual is as near to the lowest as the truth's would be if the lowest were
        that of a fit with as many free values as records have, :math:`m / (m - n)` times it. With fewer equations than
        values, or where no step comes so near, it is the lowest residual.
        """
        lowest = float(self.residuals.nan_to_num(nan=torch.inf).min())
        free = self.estimates[0].numel()
        level = float(self.values)
        if not self.noise_is_known:
            level = lowest * self.values / (self.values - free) if self.values > free else lowest
        reached = (self.residuals <= max(level, lowest)).nonzero()
        return int(reached[0]) if len(reached) else int(self.residuals.nan_to_num(nan=torch.inf).argmin())

    @property
    def chosen(self) -> Tensor:
        """The estimates at the stop."""
        return self.estimates[self.stop]

    def oracle_peak(self, targets: Tensor) -> tuple[int, Tensor]:
        """The step whose estimates are nearest to the targets, and these: no attacker can choose it.

        Reference: section 6.3, meng2025, whose tables are at this step.
        """
        if targets.shape != self.estimates.shape[1:]:
            raise refuse("targets.shape", tuple(targets.shape), f"to be {tuple(self.estimates.shape[1:])}")
        errors = (self.estimates - targets).square().flatten(1).mean(1)
        best = int(errors.nan_to_num(nan=torch.inf).argmin())
        return best, self.estimates[best]

    @property
    def falls_monotonically(self) -> bool:
        """Whether the residual never rises from one step to the next, as Theorem 5.3 of meng2025 has it."""
        return bool((self.residuals.diff() <= 0).all())
