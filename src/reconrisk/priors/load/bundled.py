"""The priors that are shipped, and which of them fits records at hand."""

from __future__ import annotations

import torch
from torch import Tensor

from reconrisk.core.errors import MissingExtra
from reconrisk.core.validation import check_all_within, check_not_empty, refuse
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.load.diffusers import diffusion
from reconrisk.priors.load.folders import shipped_names, shipped_shape
from reconrisk.priors.load.gan import gan
from reconrisk.priors.quality import denoising_loss, nearest_distance

SHIPPED_DIFFUSION: tuple[str, ...] = shipped_names("diffusion")
"""The names that :func:`diffusion` knows."""

SHIPPED_GAN: tuple[str, ...] = shipped_names("gan")
"""The names that :func:`gan` knows."""

_RECORDS, _DRAWS = 64, 256  # enough to tell priors of different data apart
_TIMES = (100, 300, 500)
_SEED = 0


def fitting(
    records: Tensor, data_range: tuple[float, float], *, kind: str = "diffusion"
) -> DiffusionPrior | GeneratorPrior | None:
    r"""The shipped prior that explains records best, in their range; None where none has their shape.

    .. math:: \arg\min_p \sum_i |\epsilon_p(x_{i,t}, t) - n_i|^2 \qquad \text{or} \qquad
        \arg\min_p \sum_i \min_j |x_i - g_p(z_j)|^2

    ``kind`` is ``"diffusion"``, judged by the noise it finds in at most 64 of the records at three times, or ``"gan"``,
    judged by the nearest of 256 draws.

    Assumes: ``records`` (n, \*shape) of the same kind as those that are attacked, not those themselves: an adversary
    does not have them to choose by.
    Guarantee: the same choice for the same records.
    Edge cases: None where diffusers is not installed, which diffusion priors need.
    Reference: equation 14, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> fitting(torch.zeros(1, 1, 5, 5), (0.0, 1.0)) is None
    True
    """
    if kind not in ("diffusion", "gan"):
        raise refuse("kind", kind, "to be diffusion or gan")
    check_not_empty("records", records)
    check_all_within("records", records, data_range, "State the public range of the values.")
    rows = torch.linspace(0, len(records) - 1, min(_RECORDS, len(records))).long()
    try:
        return _diffusion(records[rows], data_range) if kind == "diffusion" else _gan(records[rows], data_range)
    except MissingExtra:
        return None


def _diffusion(records: Tensor, data_range: tuple[float, float]) -> DiffusionPrior | None:
    names = _of_shape(SHIPPED_DIFFUSION, "diffusion", records)

    def loss(prior: DiffusionPrior) -> float:
        rng = torch.Generator().manual_seed(_SEED)
        return float(denoising_loss(prior, records, rng=rng, times=_TIMES).mean())

    priors = (diffusion(name, data_range=data_range, device=records.device) for name in names)
    return min(priors, key=loss, default=None)


def _gan(records: Tensor, data_range: tuple[float, float]) -> GeneratorPrior | None:
    names = _of_shape(SHIPPED_GAN, "gan", records)

    def distance(prior: GeneratorPrior) -> float:
        return float(nearest_distance(records, prior.draw(_DRAWS, torch.Generator().manual_seed(_SEED))).mean())

    priors = (gan(name, data_range=data_range, device=records.device) for name in names)
    return min(priors, key=distance, default=None)


def _of_shape(names: tuple[str, ...], kind: str, records: Tensor) -> list[str]:
    return [name for name in names if shipped_shape(kind, name) == tuple(records.shape[1:])]
