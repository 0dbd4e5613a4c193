"""Diffusion priors from any function that predicts the noise in a record.

A :class:`NoiseSchedule` states the noise at each time. :func:`draw_clean` samples clean records given noisy ones.
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
    precision_of,
    rescale_range,
)
from reconrisk.priors.prior import BasePrior, time_derivative
from reconrisk.priors.registry import DIFFUSION


@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    r"""Share of the signal that remains at each time; it falls from almost one to almost zero.

    .. math:: x_t = \sqrt{\bar\alpha_t}\, x_0 + \sqrt{1 - \bar\alpha_t}\, \epsilon, \qquad \epsilon \sim N(0, I)

    Here :math:`x_0` is a record and :math:`x_t` the noisy record at time t. ``times(steps)`` returns evenly spaced
    times, and ``noise_level(time)`` the standard deviation of the noise divided by the factor of the signal.

    Attributes:
        signal: :math:`\bar\alpha_t` for t from 0 to T - 1, strictly decreasing between 1 and 0.

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
            raise invalid_input("signal.shape", tuple(values.shape), "to be (times,) with at least 2 times")
        if not bool((values > 0).all()) or not bool((values < 1).all()) or not bool((values.diff() < 0).all()):
            raise InvalidInput(
                "Expected signal to decrease strictly, between 1 and 0. Pass the alphas_cumprod of the training."
            )
        object.__setattr__(
            self, "signal", values.detach().double().cpu()
        )  # on the CPU: single numbers are read from it

    def __len__(self) -> int:
        """Return the number of times T."""
        return len(self.signal)

    def times(self, steps: int) -> tuple[int, ...]:
        """Return ``steps`` evenly spaced times, from the last one down; after them a step leads to no noise."""
        if check_whole("steps", steps) > len(self):
            raise invalid_input("steps", steps, f"<= {len(self)}, the number of time steps of the prior")
        last = len(self) - 1
        return tuple(round(last - each * len(self) / steps) for each in range(steps))

    def shares(self, times: Tensor, like: Tensor) -> Tensor:
        """Return the signal at ``times``, broadcastable to ``like``, in its precision and on its device."""
        found: Tensor = self.signal.to(like)[times]
        return found.reshape(-1, *[1] * (like.ndim - 1))

    def noise_level(self, time: int) -> float:
        r"""Return the noise in units of the signal, :math:`\sqrt{(1 - \bar\alpha_t) / \bar\alpha_t}`."""
        share = float(self.signal[time])
        return math.sqrt((1 - share) / share)

    def nearest_time(self, noise_level: float) -> int:
        """Return the time of the nearest noise level, in units of the signal, on a logarithmic scale."""
        levels = ((1 - self.signal) / self.signal).sqrt().log()
        return int((levels - math.log(check_positive("noise_level", noise_level))).abs().argmin())


def check_schedule(schedule: object) -> None:
    """Refuse objects that are not a :class:`NoiseSchedule`, such as a scheduler of diffusers.

    Args:
        schedule: Object to check.

    Raises:
        InvalidInput: If it is not a :class:`NoiseSchedule`.
    """
    if not isinstance(schedule, NoiseSchedule):
        remedy = "Pass rr.priors.NoiseSchedule(scheduler.alphas_cumprod)."
        raise invalid_input("schedule", type(schedule).__name__, "to be a NoiseSchedule", remedy)


def linear_schedule(times: int = 1000, *, first: float = 1e-4, last: float = 0.02) -> NoiseSchedule:
    r"""Build the schedule whose step variances rise linearly.

    .. math:: \bar\alpha_t = \prod_{s \le t} (1 - \beta_s), \qquad \beta_s \text{ evenly from first to last}

    Here :math:`\bar\alpha_t` is the share of the signal at time t, and :math:`\beta_s` the variance of the noise that
    step s adds.

    Args:
        times: Number of times T.
        first: Variance of the first step.
        last: Variance of the last step.

    Returns:
        The schedule.

    Raises:
        InvalidInput: If a variance is not in (0, 1) or there are fewer than two times.

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
"""Function from noisy records and their times to the noise."""


@dataclass(frozen=True, eq=False)
class DiffusionPrior(BasePrior):
    r"""Prior given by a function that predicts the noise in a noisy record.

    .. math:: \epsilon(x_t, t) \approx E[\epsilon \mid x_t], \qquad
        E[x_0 \mid x_t] \approx \hat x_0 = (x_t - \sqrt{1 - \bar\alpha_t}\, \epsilon(x_t, t)) / \sqrt{\bar\alpha_t}

    Here :math:`x_0` is a record, :math:`x_t` the noisy record at time t with noise :math:`\epsilon`, and
    :math:`\bar\alpha_t` the share of the signal (:class:`NoiseSchedule`). ``noise(noisy, time)`` calls the function and
    checks its result.

    Attributes:
        name: Name in reports.
        shape: Shape of a record.
        predict_noise: Function of noisy records (n, \*``shape``) and their times (n,), in the prior's units.
        schedule: Noise at each time.
        data_range: Range of the values of records.
        units: Values in the prior's units that correspond to the two ends of ``data_range``.
        mean: Mean of the records in the units of the data, None if it is not known exactly.

    Guarantee: noise that is not finite or does not have the shape of the records is refused; the error names the prior.
    A network gets records in the precision of its weights. The returned noise has the precision of the records.
    Reference: equation 12, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_; equation 10 of meng2025, as printed,
    lacks the square root of the signal.

    >>> DiffusionPrior("none", (2,), lambda noisy, times: 0 * noisy).noise(torch.ones(1, 2), 5)
    tensor([[0., 0.]])
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
                "predict_noise", type(self.predict_noise).__name__, "to be a function of noisy records and their times"
            )
        check_network("predict_noise", self.predict_noise)
        check_schedule(self.schedule)

    @property
    def fingerprint(self) -> str:
        """Short digest of the denoiser and its units."""
        return short_digest((repr(self), function_digest(self.predict_noise), self.schedule.signal, self.mean))

    def noise(self, noisy: Tensor, time: int) -> Tensor:
        """Predict the noise in ``noisy`` records ``(n, *shape)`` of one ``time``, in the prior's units."""
        if tuple(noisy.shape[1:]) != self.shape:
            raise invalid_input(
                "noisy.shape",
                tuple(noisy.shape),
                f"to be {(*noisy.shape[:1], *self.shape)}, since records of {self.name} are {self.shape}",
            )
        check_mode("predict_noise", self.predict_noise)  # checked again: .train() may have been called in the meantime
        asked = noisy.to(precision_of(self.predict_noise, noisy.dtype))
        found = self.predict_noise(asked, torch.full((len(noisy),), time, dtype=torch.int64, device=noisy.device))
        if not isinstance(found, Tensor) or found.shape != noisy.shape:
            given = f"of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            wanted = f"a tensor of shape {tuple(noisy.shape)}"
            raise InvalidInput(f"Expected the noise of {self.name} to be {wanted}, as the records have. It is {given}.")
        if not bool(found.isfinite().all()):
            remedy = "Check its weights and the units that it was trained in."
            raise InvalidInput(f"Expected the noise of {self.name} at time {time} to be finite. {remedy}")
        return found.to(noisy.dtype)

    def clean(self, noisy: Tensor, time: int) -> Tensor:
        """Return the expected clean records given ``noisy`` ones, in the prior's units; differentiable."""
        share = float(self.schedule.signal[time])
        clean: Tensor = (noisy - (1 - share) ** 0.5 * self.noise(noisy, time)) / share**0.5
        return clean

    def denoise(self, records: Tensor, noise_std: float) -> Tensor:
        """Remove noise of a known standard deviation, in the units of the data, from records."""
        low, high = self.units
        width = (high - low) / (self.data_range[1] - self.data_range[0])  # prior's units per unit of the data
        time = self.schedule.nearest_time(noise_std * width)
        # x_t is the noisy record times the root of the signal share
        return self.records(self.clean(self.values(records) * float(self.schedule.signal[time]) ** 0.5, time))

    def draw(self, count: int, rng: torch.Generator, *, steps: int = 50) -> Tensor:
        r"""Draw records by deterministic reverse steps from pure noise; not clipped to the range.

        .. math:: x_{t'} = \sqrt{\bar\alpha_{t'}}\, \hat x_0 + \sqrt{1 - \bar\alpha_{t'}}\, \epsilon(x_t, t)

        Args:
            count: Number of records.
            rng: Source of randomness.
            steps: Number of reverse steps.

        Returns:
            Records (count, \*shape) in the units of the data.

        Reference: equation 12 with no variance, `Song et al. (2021) <https://arxiv.org/abs/2010.02502>`_.
        """
        times = self.schedule.times(steps)
        values = self.standard_normal(check_whole("count", count), rng)
        with torch.no_grad():
            for time, later in track(list(zip(times, (*times[1:], None), strict=True)), "drawing records"):
                noise = self.noise(values, time)
                share = float(self.schedule.signal[time])
                left = 1.0 if later is None else float(self.schedule.signal[later])
                # DDIM: estimate the clean record, then add back the same noise at the next level
                clean = (values - (1 - share) ** 0.5 * noise) / share**0.5
                values = left**0.5 * clean + (1 - left) ** 0.5 * noise
        return self.records(values)

    def draw_in_steps(self, count: int, rng: torch.Generator, *, steps: int = 50) -> Tensor:
        r"""Draw records by stochastic reverse steps from pure noise; not clipped to the range.

        .. math:: x_T \sim N(0, I), \qquad x_0 \sim p(x_0 \mid x_T)

        Args:
            count: Number of records.
            rng: Source of randomness.
            steps: Number of reverse steps; few steps give records that vary less than the training records.

        Returns:
            Records (count, \*shape) in the units of the data.

        Reference: Algorithm 2, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_, over fewer times.

        >>> from reconrisk.priors.gaussian import gaussian
        >>> prior = gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2)).diffusion
        >>> prior.draw_in_steps(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 2])
        """
        noisy = self.standard_normal(check_whole("count", count), rng)
        return draw_clean(self, noisy, len(self.schedule) - 1, steps=steps, rng=rng)

    def time_pass(self) -> float:
        """Measure the seconds to predict the noise of one record, derivative included."""
        begun, asked = clock.monotonic(), torch.zeros(1, *self.shape, requires_grad=True)
        return time_derivative(self.noise(asked, 0), asked, begun)

    def standard_normal(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw standard normal noise in the shape of ``count`` records, on the device of the prior."""
        drawn = torch.randn(count, *self.shape, generator=rng, device=rng.device)
        return drawn.to(device_of(self.predict_noise, rng.device if self.mean is None else self.mean.device))

    def values(self, records: Tensor) -> Tensor:
        """Convert records to the prior's units."""
        return rescale_range(records, self.data_range, self.units)

    def records(self, values: Tensor) -> Tensor:
        """Convert values in the prior's units to records."""
        return rescale_range(values, self.units, self.data_range)

    def scaled_to(self, data_range: tuple[float, float]) -> DiffusionPrior:
        """Return the same prior for records in another range, such as 0 to 255 for pictures in [0, 1]."""
        mean = None if self.mean is None else rescale_range(self.mean, self.data_range, data_range)
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
    r"""Build a prior from any function that predicts the noise in records.

    .. math:: \epsilon(x_t, t), \qquad x_t = \sqrt{\bar\alpha_t}\, x_0 + \sqrt{1 - \bar\alpha_t}\, \epsilon

    Here :math:`x_0` is a record, :math:`x_t` the noisy record at time t, and :math:`\bar\alpha_t` the share of the
    signal (:class:`NoiseSchedule`). ``prior.clean(noisy, time)`` returns the expected clean records.

    Args:
        predict_noise: Differentiable function of noisy records (n, \*shape) in ``units`` and their times (n,).
        shape: Shape of a record.
        schedule: Noise at each time, by default :func:`linear_schedule` with times from 0 to 999.
        data_range: Range of the values of records.
        units: Values in the units of the function that correspond to the two ends of ``data_range``.
        name: Name in reports.

    Returns:
        The prior.

    Raises:
        InvalidInput: If the function is not callable, the ranges are invalid, or a network is in training mode or not
            in single precision.

    Edge cases: a module in training mode is refused, also later, if it has layers that behave differently there, such
    as batch norm, dropout or spectral norm. A module whose weights are not in single precision is refused too.
    Reference: section 3.2, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> prior = denoiser(lambda noisy, times: noisy, (1, 2, 2))
    >>> prior.clean(torch.ones(1, 1, 2, 2), 0).flatten()[0].round(decimals=4)
    tensor(0.9900)
    """
    known = linear_schedule() if schedule is None else schedule
    return DiffusionPrior(name, tuple(shape), predict_noise, known, data_range, units)


def draw_clean(prior: DiffusionPrior, noisy: Tensor, time: int, *, steps: int = 50, rng: torch.Generator) -> Tensor:
    r"""Sample one clean record for each noisy record by the reverse diffusion.

    .. math:: x_s = \sqrt{\bar\alpha_s}\, \hat x_0 + \sqrt{1 - \bar\alpha_s - v}\, \epsilon(x_t) + \sqrt v\, z, \qquad
        v = \frac{1 - \bar\alpha_s}{1 - \bar\alpha_t} \Bigl(1 - \frac{\bar\alpha_t}{\bar\alpha_s}\Bigr)

    Here s is the time after t in the reverse order, :math:`\bar\alpha` the share of the signal, :math:`\hat x_0` the
    expected clean record, :math:`\epsilon(x_t)` the predicted noise, and z standard normal noise.

    Args:
        prior: Diffusion prior.
        noisy: Noisy records (n, \*shape) in the prior's units.
        time: Time of the noisy records.
        steps: Number of reverse steps.
        rng: Source of randomness.

    Returns:
        Records (n, \*shape) in the units of the data.

    Raises:
        InvalidInput: If ``time`` is not a time of the prior or ``steps`` is below 1.

    Guarantee: approximates :math:`p(x_0 \mid x_t)` as exactly as the denoiser and the number of steps allow; the
    variance within the last step is missing.
    Edge cases: at most one step for each of the ``time`` + 1 remaining times.
    Reference: equation 16 with :math:`\eta = 1`, `Song et al. (2021) <https://arxiv.org/abs/2010.02502>`_.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2)).diffusion
    >>> draw_clean(prior, torch.zeros(3, 2), 0, rng=torch.Generator().manual_seed(0))[0].tolist()
    [0.5, 0.5]
    """
    if not 0 <= check_whole("time", time, minimum=0) < len(prior.schedule):
        raise invalid_input("time", time, f"< {len(prior.schedule)}, the number of time steps of the prior")
    # evenly spaced times from this one down to the first
    last = min(check_whole("steps", steps), time + 1) - 1
    times = [round(time * (last - each) / last) for each in range(last + 1)] if last else [time]
    with torch.no_grad():
        for now, following in track(list(pairwise(times)), "drawing records"):
            clean = prior.clean(noisy, now)
            share, left = (float(prior.schedule.signal[each]) for each in (now, following))
            variance = (1 - left) / (1 - share) * (1 - share / left)  # v of the docstring, eta = 1
            noise = (noisy - share**0.5 * clean) / math.sqrt(1 - share)
            drawn = torch.randn(noisy.shape, generator=rng, device=rng.device).to(noisy)
            noisy = left**0.5 * clean + math.sqrt(max(0.0, 1 - left - variance)) * noise + math.sqrt(variance) * drawn
        return prior.records(prior.clean(noisy, times[-1]))
