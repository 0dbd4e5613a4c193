"""Priors that know what noise in a record looks like: denoisers, whoever trained them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import track
from reconrisk.core.validation import check_whole, refuse
from reconrisk.priors.modules import check_mode, check_network, device_of, precision_of
from reconrisk.priors.schedule import NoiseSchedule, check_schedule, linear_schedule
from reconrisk.priors.units import SYMMETRIC, check_fits, check_range, moved

PredictNoise = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DiffusionPrior:
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
            raise refuse("predict_noise", self.predict_noise, "to be a function of noisy records and their times")
        check_network("predict_noise", self.predict_noise)
        check_schedule(self.schedule)

    def noise(self, noisy: Tensor, time: int) -> Tensor:
        """The noise in ``noisy`` records ``(n, *shape)`` of one ``time``, in the prior's units; differentiable."""
        if tuple(noisy.shape[1:]) != self.shape:
            raise refuse("noisy.shape", tuple(noisy.shape), f"to be records of shape {self.shape}, as {self.name}")
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

    def check_fits(self, shape: Sequence[int], data_range: tuple[float, float]) -> None:
        """Refuse records of another shape or range than the prior was made for."""
        check_fits(self.shape, self.data_range, shape, data_range)


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
