"""Draws from a diffusion: of the prior itself, and of the clean records that noisy ones may come from."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from reconrisk.core.progress import track
from reconrisk.core.validation import check_whole, refuse
from reconrisk.priors.diffusion_prior import DiffusionPrior


def draw_records(prior: DiffusionPrior, count: int, *, steps: int = 50, rng: torch.Generator) -> Tensor:
    r"""So many records of a diffusion prior, from noise alone.

    .. math:: x_T \sim N(0, I), \qquad x_0 \sim p(x_0 \mid x_T)

    Guarantee: within the data range; nothing but ``rng`` decides.
    Edge cases: few ``steps`` give records that vary less than those the prior was trained on.
    Reference: Algorithm 2, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_, over fewer times.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2)).diffusion
    >>> draw_records(prior, 3, rng=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """
    noisy = prior.standard_normal(check_whole("count", count), rng)
    return draw_clean(prior, noisy, len(prior.schedule) - 1, steps=steps, rng=rng).clamp(*prior.data_range)


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
        raise refuse("time", time, f"< {len(prior.schedule)}, the times of the prior")
    times = _times_from(time, min(check_whole("steps", steps), time + 1))
    with torch.no_grad():
        for now, following in track(list(pairwise(times)), "drawing records"):
            clean = prior.clean(noisy, now)
            share, left = (float(prior.schedule.signal[each]) for each in (now, following))
            variance = (1 - left) / (1 - share) * (1 - share / left)
            noise = (noisy - share**0.5 * clean) / math.sqrt(1 - share)
            drawn = torch.randn(noisy.shape, generator=rng, device=rng.device).to(noisy)
            noisy = left**0.5 * clean + math.sqrt(max(0.0, 1 - left - variance)) * noise + math.sqrt(variance) * drawn
        return prior.records(prior.clean(noisy, times[-1]))


def _times_from(time: int, steps: int) -> tuple[int, ...]:
    """So many times from this one down to the first, evenly spaced."""
    if steps == 1:
        return (time,)
    return tuple(round(time * (steps - 1 - each) / (steps - 1)) for each in range(steps))
