"""How much noise there is at each time of a diffusion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, check_positive, check_whole, refuse
from reconrisk.priors.units import as_tensor


@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    r"""The share of the signal that is left at each time: it falls from almost one to almost zero.

    .. math:: x_t = \sqrt{\bar\alpha_t}\, x_0 + \sqrt{1 - \bar\alpha_t}\, \epsilon, \qquad \epsilon \sim N(0, I)

    Notation: ``signal[t]`` is :math:`\bar\alpha_t`, for t from 0 to T - 1.

    >>> schedule = linear_schedule(1000)
    >>> schedule.times(4)
    (999, 749, 499, 249)
    >>> round(schedule.noise_level(0), 4)
    0.01
    """

    signal: Tensor

    def __post_init__(self) -> None:
        values = as_tensor("signal", self.signal)
        check_all_finite("signal", values)
        if values.ndim != 1 or len(values) < 2:
            raise refuse("signal.shape", tuple(values.shape), "to be (times,), at least 2")
        if not bool((values > 0).all()) or not bool((values < 1).all()) or not bool((values.diff() < 0).all()):
            raise InvalidInput(
                "Expected signal to fall strictly, between 1 and 0. Pass the alphas_cumprod of training."
            )
        object.__setattr__(self, "signal", values.detach().double().cpu())  # of which single numbers are read

    def __len__(self) -> int:
        """The number of times T."""
        return len(self.signal)

    def times(self, steps: int) -> tuple[int, ...]:
        """So many times from the last one down, evenly spaced; the step after the last of them is to no noise."""
        if check_whole("steps", steps) > len(self):
            raise refuse("steps", steps, f"<= {len(self)}, the times of the prior")
        last = len(self) - 1
        return tuple(round(last - each * len(self) / steps) for each in range(steps))

    def shares(self, times: Tensor, like: Tensor) -> Tensor:
        """The signal at ``times``, in the precision and on the device of ``like``, to be multiplied with it."""
        found: Tensor = self.signal.to(like)[times]
        return found.reshape(-1, *[1] * (like.ndim - 1))

    def noise_level(self, time: int) -> float:
        r"""The noise in units of the signal, :math:`\sqrt{(1 - \bar\alpha_t) / \bar\alpha_t}`."""
        share = float(self.signal[time])
        return math.sqrt((1 - share) / share)

    def time_of(self, noise_level: float) -> int:
        """The time whose noise in units of the signal is nearest on a logarithmic scale."""
        levels = ((1 - self.signal) / self.signal).sqrt().log()
        return int((levels - math.log(check_positive("noise_level", noise_level))).abs().argmin())


def check_schedule(schedule: object) -> None:
    """Refuse what is no schedule, such as a scheduler of diffusers or its numbers alone."""
    if not isinstance(schedule, NoiseSchedule):
        remedy = "Pass rr.priors.NoiseSchedule(scheduler.alphas_cumprod)."
        raise refuse("schedule", type(schedule).__name__, "to be a NoiseSchedule", remedy)


def linear_schedule(times: int = 1000, *, first: float = 1e-4, last: float = 0.02) -> NoiseSchedule:
    r"""Variances of the steps that rise evenly.

    .. math:: \bar\alpha_t = \prod_{s \le t} (1 - \beta_s), \qquad \beta_s \text{ evenly from first to last}

    Reference: section 4, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> round(float(linear_schedule().signal[-1]), 7)
    4.04e-05
    """
    for name, value in (("first", first), ("last", last)):
        if not check_positive(name, value) < 1:
            raise refuse(name, value, "< 1")
    betas = torch.linspace(first, last, check_whole("times", times, minimum=2), dtype=torch.float64)
    return NoiseSchedule((1 - betas).cumprod(0))
