"""Diffusion priors: anything that finds the noise in a record, whoever trained it.

A :class:`NoiseSchedule` states the noise at each time. :func:`draw_records` draws from the prior, :func:`draw_clean`
the clean records that noisy ones may come from.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from reconrisk.core.digest import short_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import track
from reconrisk.core.validation import check_all_finite, check_positive, check_whole, invalid_input
from reconrisk.priors.network import (
    SYMMETRIC,
    as_tensor,
    check_mode,
    check_network,
    check_range,
    device_of,
    function_digest,
    moved,
    precision_of,
)
from reconrisk.priors.prior import BasePrior, time_derivative
from reconrisk.priors.registry import DIFFUSION


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
            raise invalid_input("signal.shape", tuple(values.shape), "to be (times,), at least 2")
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
            raise invalid_input("steps", steps, f"<= {len(self)}, the times of the prior")
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
        raise invalid_input("schedule", type(schedule).__name__, "to be a NoiseSchedule", remedy)


def linear_schedule(times: int = 1000, *, first: float = 1e-4, last: float = 0.02) -> NoiseSchedule:
    r"""Variances of the steps that rise evenly.

    .. math:: \bar\alpha_t = \prod_{s \le t} (1 - \beta_s), \qquad \beta_s \text{ evenly from first to last}

    Reference: section 4, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> round(float(linear_schedule().signal[-1]), 7)
    4.04e-05
    """
    for name, value in (("first", first), ("last", last)):
        if not check_positive(name, value) < 1:
            raise invalid_input(name, value, "< 1")
    betas = torch.linspace(first, last, check_whole("times", times, minimum=2), dtype=torch.float64)
    return NoiseSchedule((1 - betas).cumprod(0))


PredictNoise = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DiffusionPrior(BasePrior):
    r"""What records look like, as a function that finds the noise in a noisy one.

    .. math:: \epsilon(x_t, t) \approx E[\epsilon \mid x_t], \qquad
        E[x_0 \mid x_t] \approx \hat x_0 = (x_t - \sqrt{1 - \bar\alpha_t}\, \epsilon(x_t, t)) / \sqrt{\bar\alpha_t}

    ``predict_noise`` takes noisy records (n, \*``shape``) and their times (n,), in its own units: there ``units`` are
    the two ends of ``data_range``, linearly between. ``mean`` is that of the records, in the units of the data, where
    it is known exactly.

    Guarantee: noise that is not finite or not shaped as the records is refused, by the name of the prior. A network
    gets records in the precision of its weights, and the noise is in that of the records.
    Reference: equation 12, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_; equation 10 of meng2025 lacks the
    root of the signal.
    """

    kind: ClassVar[str] = DIFFUSION

    name: str
    shape: tuple[int, ...]
    predict_noise: PredictNoise = field(repr=False)
    schedule: NoiseSchedule = field(default_factory=linear_schedule, repr=False)
    data_range: tuple[float, float] = (0.0, 1.0)
    units: tuple[float, float] = SYMMETRIC
    mean: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for side in self.shape:
            check_whole("shape", side)
        check_range("data_range", self.data_range)
        check_range("units", self.units)
        if not callable(self.predict_noise):
            raise invalid_input(
                "predict_noise", self.predict_noise, "to be a function of noisy records and their times"
            )
        check_network("predict_noise", self.predict_noise)
        check_schedule(self.schedule)

    @property
    def fingerprint(self) -> str:
        """A short digest of what the prior computes and of its units."""
        return short_digest((repr(self), function_digest(self.predict_noise), self.schedule.signal, self.mean))

    def noise(self, noisy: Tensor, time: int) -> Tensor:
        """The noise in ``noisy`` records ``(n, *shape)`` of one ``time``, in the prior's units; differentiable."""
        if tuple(noisy.shape[1:]) != self.shape:
            raise invalid_input(
                "noisy.shape", tuple(noisy.shape), f"to be records of shape {self.shape}, as {self.name}"
            )
        check_mode("predict_noise", self.predict_noise)  # again: .train() may have been called since
        asked = noisy.to(precision_of(self.predict_noise, noisy.dtype))
        found = self.predict_noise(asked, torch.full((len(noisy),), time, dtype=torch.int64, device=noisy.device))
        if not isinstance(found, Tensor) or found.shape != noisy.shape:
            given = f"of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            wanted = f"a tensor of shape {tuple(noisy.shape)}"
            raise InvalidInput(f"Expected the noise of {self.name} to be {wanted}, as the records are. It is {given}.")
        if not bool(found.isfinite().all()):
            remedy = "Check its weights and the units it was trained in."
            raise InvalidInput(f"Expected the noise of {self.name} at time {time} to be finite. {remedy}")
        return found.to(noisy.dtype)

    def clean(self, noisy: Tensor, time: int) -> Tensor:
        """The mean of the records that ``noisy`` ones may come from, in the prior's units; differentiable."""
        share = float(self.schedule.signal[time])
        clean: Tensor = (noisy - (1 - share) ** 0.5 * self.noise(noisy, time)) / share**0.5
        return clean

    def denoised(self, records: Tensor, noise_std: float) -> Tensor:
        """Records whose noise has this standard deviation, in the units of the data, without it."""
        low, high = self.units
        width = (high - low) / (self.data_range[1] - self.data_range[0])
        time = self.schedule.time_of(noise_std * width)
        return self.records(self.clean(self.values(records) * float(self.schedule.signal[time]) ** 0.5, time))

    def draw(self, count: int, rng: torch.Generator, *, steps: int = 50) -> Tensor:
        r"""So many records, in so many steps without noise from what is nothing but noise; not clipped to the range.

        .. math:: x_{t'} = \sqrt{\bar\alpha_{t'}}\, \hat x_0 + \sqrt{1 - \bar\alpha_{t'}}\, \epsilon(x_t, t)

        Reference: equation 12 with no variance, `Song et al. (2021) <https://arxiv.org/abs/2010.02502>`_.
        """
        times = self.schedule.times(steps)
        values = self.standard_normal(check_whole("count", count), rng)
        with torch.no_grad():
            for time, later in track(list(zip(times, (*times[1:], None), strict=True)), "drawing records"):
                noise = self.noise(values, time)
                share = float(self.schedule.signal[time])
                left = 1.0 if later is None else float(self.schedule.signal[later])
                clean = (values - (1 - share) ** 0.5 * noise) / share**0.5
                values = left**0.5 * clean + (1 - left) ** 0.5 * noise
        return self.records(values)

    def draw_in_steps(self, count: int, rng: torch.Generator, *, steps: int = 50) -> Tensor:
        r"""Draw records by the reverse diffusion, from noise alone; not clipped to the range.

        .. math:: x_T \sim N(0, I), \qquad x_0 \sim p(x_0 \mid x_T)

        Args:
            count: The number of records.
            rng: The only source of chance.
            steps: Steps of the diffusion; few give records that vary less than those the prior was trained on.

        Reference: Algorithm 2, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_, over fewer times.

        >>> from reconrisk.priors.gaussian import gaussian
        >>> prior = gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2)).diffusion
        >>> prior.draw_in_steps(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 2])
        """
        noisy = self.standard_normal(check_whole("count", count), rng)
        return draw_clean(self, noisy, len(self.schedule) - 1, steps=steps, rng=rng)

    def time_pass(self) -> float:
        """Measure the seconds that finding the noise of one record takes, derivative included."""
        begun, asked = clock.monotonic(), torch.zeros(1, *self.shape, requires_grad=True)
        return time_derivative(self.noise(asked, 0), asked, begun)

    def standard_normal(self, count: int, rng: torch.Generator) -> Tensor:
        """Noise alone, shaped as so many records, drawn on the generator's device and put where the prior is."""
        drawn = torch.randn(count, *self.shape, generator=rng, device=rng.device)
        return drawn.to(device_of(self.predict_noise, rng.device if self.mean is None else self.mean.device))

    def values(self, records: Tensor) -> Tensor:
        """Records in the prior's units."""
        return moved(records, self.data_range, self.units)

    def records(self, values: Tensor) -> Tensor:
        """What is in the prior's units as records."""
        return moved(values, self.units, self.data_range)

    def scaled_to(self, data_range: tuple[float, float]) -> DiffusionPrior:
        """The same prior for records that lie in another range, as 0 to 255 is that of a picture in [0, 1]."""
        mean = None if self.mean is None else moved(self.mean, self.data_range, data_range)
        return replace(self, data_range=data_range, mean=mean)


def denoiser(
    predict_noise: PredictNoise,
    shape: Sequence[int],
    *,
    schedule: NoiseSchedule | None = None,
    data_range: tuple[float, float] = (0.0, 1.0),
    units: tuple[float, float] = SYMMETRIC,
    name: str = "denoiser",
) -> DiffusionPrior:
    r"""A prior from any function that finds the noise in records.

    .. math:: \epsilon(x_t, t), \qquad x_t = \sqrt{\bar\alpha_t}\, x_0 + \sqrt{1 - \bar\alpha_t}\, \epsilon

    Assumes: ``predict_noise`` takes records (n, \*shape) in ``units`` and their times (n,), whole numbers from 0 to 999
    of :func:`linear_schedule` where no other ``schedule`` is stated, and is differentiable.
    Edge cases: a module in the mode of training with layers that answer differently there, such as batch norm, dropout
    or spectral norm, is refused, also later; and so is one whose weights are not in single precision.
    Reference: section 3.2, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> prior = denoiser(lambda noisy, times: noisy, (1, 2, 2))
    >>> prior.clean(torch.ones(1, 1, 2, 2), 0).flatten()[0].round(decimals=4)
    tensor(0.9900)
    """
    known = linear_schedule() if schedule is None else schedule
    return DiffusionPrior(name, tuple(shape), predict_noise, known, data_range, units)


def draw_clean(prior: DiffusionPrior, noisy: Tensor, time: int, *, steps: int = 50, rng: torch.Generator) -> Tensor:
    r"""One record for each ``noisy`` one of this ``time``, of those that it may come from, by the reverse diffusion.

    .. math:: x_s = \sqrt{\bar\alpha_s}\, \hat x_0 + \sqrt{1 - \bar\alpha_s - v}\, \epsilon(x_t) + \sqrt v\, z, \qquad
        v = \frac{1 - \bar\alpha_s}{1 - \bar\alpha_t} \Bigl(1 - \frac{\bar\alpha_t}{\bar\alpha_s}\Bigr)

    ``noisy`` is in the prior's units; the records are in those of the data.

    Guarantee: as exact as the denoiser and the number of steps are: it approximates :math:`p(x_0 \mid x_t)`, and lacks
    the variance within the last of the steps.
    Edge cases: at most one step for each of the ``time`` + 1 times that are left.
    Reference: equation 16 with :math:`\eta = 1`, `Song et al. (2021) <https://arxiv.org/abs/2010.02502>`_.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2)).diffusion
    >>> draw_clean(prior, torch.zeros(3, 2), 0, rng=torch.Generator().manual_seed(0))[0].tolist()
    [0.5, 0.5]
    """
    if not 0 <= check_whole("time", time, minimum=0) < len(prior.schedule):
        raise invalid_input("time", time, f"< {len(prior.schedule)}, the times of the prior")
    last = min(check_whole("steps", steps), time + 1) - 1  # times from this one down to the first, evenly spaced
    times = [round(time * (last - each) / last) for each in range(last + 1)] if last else [time]
    with torch.no_grad():
        for now, following in track(list(pairwise(times)), "drawing records"):
            clean = prior.clean(noisy, now)
            share, left = (float(prior.schedule.signal[each]) for each in (now, following))
            variance = (1 - left) / (1 - share) * (1 - share / left)
            noise = (noisy - share**0.5 * clean) / math.sqrt(1 - share)
            drawn = torch.randn(noisy.shape, generator=rng, device=rng.device).to(noisy)
            noisy = left**0.5 * clean + math.sqrt(max(0.0, 1 - left - variance)) * noise + math.sqrt(variance) * drawn
        return prior.records(prior.clean(noisy, times[-1]))
