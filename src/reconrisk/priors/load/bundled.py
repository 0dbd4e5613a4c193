"""The priors that are shipped, and which of them fits records at hand."""

from __future__ import annotations

import torch
from torch import Tensor

from reconrisk.core.errors import MissingExtra
from reconrisk.core.registry import Info
from reconrisk.core.validation import check_all_within, check_not_empty
from reconrisk.priors.load.folders import check_is_shipped, shipped_names, shipped_shape
from reconrisk.priors.prior import Prior
from reconrisk.priors.registry import DIFFUSION, GAN, PRIORS

SHIPPED_DIFFUSION: tuple[str, ...] = shipped_names(DIFFUSION)
"""The names that :func:`diffusion` knows."""

SHIPPED_GAN: tuple[str, ...] = shipped_names(GAN)
"""The names that :func:`gan` knows."""

_RECORDS = 64  # enough to tell priors of different data apart


def fitting(records: Tensor, data_range: tuple[float, float], *, kind: str = "diffusion") -> Prior | None:
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
    check_is_shipped(kind)
    check_not_empty("records", records)
    check_all_within("records", records, data_range, "State the public range of the values.")
    rows = torch.linspace(0, len(records) - 1, min(_RECORDS, len(records))).long()
    some, shape = records[rows], tuple(records.shape[1:])
    read, misfit = PRIORS[kind].load(), Info(kind, PRIORS[kind].misfit, "").load()
    names = [name for name in shipped_names(kind) if shipped_shape(kind, name) == shape]
    try:
        priors: list[Prior] = [read(name, data_range=data_range, device=records.device) for name in names]
    except MissingExtra:
        return None
    return min(priors, key=lambda prior: float(misfit(prior, some)), default=None)
