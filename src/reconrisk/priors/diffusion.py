"""Diffusion priors from local folders, and those that are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.validation import refuse
from reconrisk.priors.diffusers_models import check_channels, noise_from_prediction, read_network, read_schedule
from reconrisk.priors.diffusion_prior import DiffusionPrior
from reconrisk.priors.folders import prior_folder, range_in
from reconrisk.priors.modules import put_on
from reconrisk.priors.schedule import NoiseSchedule


def diffusion(
    path_or_name: str | Path,
    *,
    data_range: tuple[float, float] | None = None,
    units: tuple[float, float] = (-1.0, 1.0),
    device: str | torch.device | None = None,
) -> DiffusionPrior:
    r"""The diffusion prior of a name, or in a folder: diffusers' ``UNet2DModel`` with its scheduler of training.

    .. math:: \epsilon(x_t, t), \quad x_0, \quad \text{or} \quad
        v = \sqrt{\bar\alpha_t}\, \epsilon - \sqrt{1 - \bar\alpha_t}\, x_0

    ``data_range`` is that of the records; if none is given, the one that the folder says it was trained on, else
    (0, 1). ``units`` are what its ends are to the network, and ``device`` is where that is put.

    Assumes: a folder as ``save_pretrained`` of a pipeline writes it (``unet`` and ``scheduler``), or both in one; or a
    shipped name, one of ``rr.priors.SHIPPED_DIFFUSION``, whose cards say what they were trained on.
    Guarantee: nothing is downloaded; networks that predict the noise, the clean record or v are understood, and so are
    those that predict variances beside it, which are not used.
    Edge cases: a name wins over a folder of that name; pass a ``Path``, or ``./mnist``, to mean the folder. Needs the
    extra ``diffusion``.
    Reference: `von Platen et al. (2022) <https://github.com/huggingface/diffusers>`_.

    >>> diffusion("no/such/folder")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidFile: no/such/folder, folder: There is none. Nothing is downloaded: pass a local one.
    """
    folder = prior_folder(path_or_name, "diffusion")
    schedule, predicts = read_schedule(folder)
    network = read_network(folder)
    settings: Any = network.config  # a mapping, which torch takes for a tensor or a module
    check_channels(folder, settings)
    noise = put_on(NoiseNetwork(network, schedule, predicts), device)
    ends = range_in(folder) if data_range is None else data_range
    return DiffusionPrior(folder.name or str(folder), _sides(settings), noise, schedule, ends, units)


class NoiseNetwork(nn.Module):
    """A network of diffusers as a function from noisy records and times to noise, whatever it predicts."""

    def __init__(self, network: nn.Module, schedule: NoiseSchedule, predicts: str) -> None:
        super().__init__()
        self.network, self._schedule, self._predicts = network, schedule, predicts

    def extra_repr(self) -> str:
        """What it predicts: part of what the prior is."""
        return f"predicts={self._predicts}"

    def forward(self, noisy: Tensor, times: Tensor) -> Tensor:
        """The noise, in the network's units."""
        precision = next(self.network.parameters()).dtype  # that of its weights, whatever the records have
        made: Tensor = self.network(noisy.to(precision), times).sample.to(noisy.dtype)
        predicted = made[:, : noisy.shape[1]]  # learned variances are in the other channels
        return noise_from_prediction(predicted, noisy, self._schedule.shares(times, noisy), self._predicts)


def _sides(settings: Mapping[str, Any]) -> tuple[int, int, int]:
    """The shape of a record, as the network's settings state it."""
    size = settings["sample_size"]
    if size is None:
        raise refuse("sample_size", None, "to be stated by the network", "Save it with its sample_size.")
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (list, tuple)) or len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise refuse("sample_size", size, "to be a whole number, or height and width")
    return int(settings["in_channels"]), *sides
