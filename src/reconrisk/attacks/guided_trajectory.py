"""What a guided diffusion passed through on its way, and where somebody who cannot see the target stops."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.core.validation import refuse

_AVERAGED = 5  # steps over which pulls are compared: those of one step vary as few squared normal values do

_OVERSHOOT = 0.05  # of the data range


@dataclass(frozen=True, eq=False)
class GuidedTrajectory:
    r"""Intermediate estimates (steps, records, \*shape) of one run with their squared residuals.

    ``residuals`` are sums over ``values`` released numbers, in units of the noise where ``noise_is_known``, else of the
    observation. ``pulls`` (steps, records) are squared lengths of the gradient by which the residual pulls at each
    record, half of it, in the same units; ``noise_pulls`` are those of noise of unit variance in place of the residual.
    ``overshoots`` (steps, records) say how far values were outside the data range before they were brought into it, as
    a root mean square of its width. ``times`` are those of the prior.
    """

    times: tuple[int, ...]
    residuals: Tensor
    estimates: Tensor = field(repr=False)
    values: int
    noise_is_known: bool
    pulls: Tensor = field(repr=False)
    noise_pulls: Tensor = field(repr=False)
    overshoots: Tensor = field(repr=False)

    @property
    def stop(self) -> int:
        r"""The step at which the attacker stops: the first whose residual pulls no harder than noise would.

        .. math:: |J^T r|^2 \le \sigma^2 |J^T w|^2, \qquad r = y - f(x), \quad w \sim N(0, I)

        which is the discrepancy principle for the part of the residual that records can explain: of all m released
        values the noise alone varies by :math:`\sqrt{2 m}`, often more than all that n values of records explain.
        At the true records both sides have one distribution. Ratios are averaged over a few steps. Noise that is not
        known is taken from the lowest residual, so that the stop is where the attack loss bends: its elbow. No residual
        counts that exceeds the lowest by more than the truth's would, n units of noise if all n values were fitted to
        it. Nor does a step count whose estimates lay outside the data range: means of records are within it, so that a
        prior that leaves it does not know records at that noise; where all do, it is the one that leaves it least.
        Where no step comes so far, as of clean releases, it is the last one, which Algorithm 1 returns: residuals of
        neighbouring steps differ by chance, and later ones are nearer to records.
        """
        residuals = self.residuals.nan_to_num(nan=torch.inf)
        lowest = int(residuals.argmin())
        variance = 1.0 if self.noise_is_known else float(residuals[lowest]) / self.values
        excess = (self.pulls.double().sum(1) / (variance * self.noise_pulls.double().sum(1))).log()
        mean = torch.stack([excess[max(0, last + 1 - _AVERAGED) : last + 1].mean() for last in range(len(excess))])
        near = residuals <= residuals[lowest] + variance * self.estimates[0].numel()
        reached = (mean <= 0) & near
        if not bool(reached.any()):
            finite = self.residuals.isfinite().nonzero()
            return int(finite[-1]) if len(finite) else lowest
        outside = self.overshoots.double().square().mean(1).sqrt().where(reached, torch.inf)
        within = (outside <= _OVERSHOOT).nonzero()
        return int(within[0]) if len(within) else int(outside.argmin())

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
