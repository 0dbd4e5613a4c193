"""Shipped priors, and the choice of the one that fits given records."""

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
"""Names of the shipped diffusion priors, for :func:`diffusion`."""

SHIPPED_GAN: tuple[str, ...] = shipped_names(GAN)
"""Names of the shipped generators, for :func:`gan`."""

_RECORDS = 64  # enough to distinguish priors of different data


def choose_shipped(records: Tensor, data_range: tuple[float, float], *, kind: str = "diffusion") -> Prior | None:
    r"""Choose the shipped prior that fits records best.

    .. math:: \arg\min_p \sum_i |\epsilon_p(x_{i,t}, t) - n_i|^2 \qquad \text{or} \qquad
        \arg\min_p \sum_i \min_j |x_i - g_p(z_j)|^2

    Here p is a shipped prior, :math:`x_i` a record, :math:`n_i` the noise in :math:`x_{i,t}` at time t,
    :math:`\epsilon_p` the noise that p predicts, and :math:`g_p(z_j)` a draw of p.

    A diffusion prior is judged by the noise that it predicts in at most 64 of the records at three times, a GAN by the
    nearest of 256 draws.

    Args:
        records: Public records (n, \*shape) of the same kind as the attacked ones.
        data_range: Range of their values.
        kind: ``"diffusion"`` or ``"gan"``.

    Returns:
        The prior in the range of the records, None if no shipped prior has their shape.

    Raises:
        InvalidInput: If no prior of this kind is shipped, or the records are empty or outside ``data_range``.

    Assumes: the records are not the attacked ones, which an adversary does not have.
    Guarantee: the same choice for the same records.
    Edge cases: None if diffusers is not installed, which diffusion priors need.
    Reference: equation 14, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> choose_shipped(torch.zeros(1, 1, 5, 5), (0.0, 1.0)) is None
    True
    """
    check_is_shipped(kind)
    check_not_empty("records", records)
    check_all_within("records", records, data_range, "Pass the public range of the values as data_range.")
    # evenly spaced rows, not random ones: the choice is the same every time
    rows = torch.linspace(0, len(records) - 1, min(_RECORDS, len(records))).long()
    some, shape = records[rows], tuple(records.shape[1:])
    read, misfit = PRIORS[kind].load(), Info(kind, PRIORS[kind].misfit, "").load()
    names = [name for name in shipped_names(kind) if shipped_shape(kind, name) == shape]
    try:
        priors: list[Prior] = [read(name, data_range=data_range, device=records.device) for name in names]
    except MissingExtra:
        return None
    return min(priors, key=lambda prior: float(misfit(prior, some)), default=None)
