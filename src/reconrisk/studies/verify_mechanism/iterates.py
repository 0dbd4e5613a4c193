"""Noise of a finished DP-SGD run, read from its iterates when all records are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reconrisk.attacks.informed.match_candidates import (
    DpSgdSettings,
    check_participation,
    clipped_gradients,
    flat_vector,
    read_trajectory,
)
from reconrisk.core.mechanism import NoisePhase, dp_sgd
from reconrisk.core.validation import invalid_input
from reconrisk.releases.model_state import LossFunction

Array = NDArray[np.float64]

_ROUNDINGS = 8  # units in the last place by which an iterate may be off
_LARGEST_ROUNDING = 0.1  # of the noise: it would hide less than 1 % of missing noise


class FinishedRun:
    """Steps of a finished DP-SGD run on known records, in units of the claimed noise.

    Args:
        model: Model that was trained.
        loss_fn: Training loss.
        iterates: Parameters before the first step and after each step.
        data: All records of the run and their labels.
        settings: Claimed settings of the run.

    Raises:
        InvalidInput: If records, iterates and settings do not fit together, or rounding hides the noise.

    Attributes:
        claimed: Mechanism of the run.
        blocks: First place of each parameter in a step, by name.
        size: Number of values of a step.
        steps: Number of steps.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        iterates: Sequence[Mapping[str, Tensor]],
        data: tuple[Tensor, Tensor],
        settings: DpSgdSettings,
    ) -> None:
        self._model, self._loss_fn, self._settings = model, loss_fn, settings
        self._iterates = read_trajectory(model, iterates)
        self._data, rate = data, settings.sampling_probability
        self.steps = len(self._iterates) - 1
        self._who = check_participation(settings.participation, self.steps, len(data[0]), rate)
        if settings.batch_size is None and rate < 1:
            remedy = (
                "Pass the divisor of the sums, under sampling usually the expected batch: records times probability."
            )
            raise invalid_input("batch_size", None, "to be given under sampling", remedy)
        divisor = float(len(data[0])) if settings.batch_size is None else settings.batch_size
        self._scale = divisor / settings.learning_rate  # turns a change of the parameters into a noisy sum
        self._std = settings.noise_multiplier * settings.clip_norm
        sizes = {name: value.numel() for name, value in self._iterates[0].items()}
        starts = np.cumsum([0, *sizes.values()])
        self.blocks, self.size = dict(zip(sizes, starts[:-1].tolist(), strict=True)), int(starts[-1])
        self.claimed: NoisePhase = dp_sgd(
            noise_multiplier=settings.noise_multiplier,
            clip_norm=settings.clip_norm,
            sampling_probability=rate,
            steps=self.steps,
        )
        self._check_rounding()

    def releases(self) -> Iterator[tuple[Array, Array]]:
        """Yield the noisy sum of each step, and the sum without noise at the weights before it."""
        inputs, labels = self._data
        for who, (before, after) in zip(self._who, itertools.pairwise(self._iterates), strict=True):
            clip_norm = self._settings.clip_norm
            own = clipped_gradients(self._model, self._loss_fn, before, inputs[who], labels[who], clip_norm)
            change = self._scale * (flat_vector(before) - flat_vector(after))
            yield (change / self._std).cpu().numpy(), (own.sum(0) / self._std).cpu().numpy()

    def _check_rounding(self) -> None:
        """Refuse iterates whose precision is too low to see the noise."""
        for iterate in self._iterates:
            unit = _ROUNDINGS * max(torch.finfo(value.dtype).eps for value in iterate.values())
            rounded = unit * self._scale * float(flat_vector(iterate).norm()) / math.sqrt(self.size) / self._std
            if rounded > _LARGEST_ROUNDING:
                remedy = "Store iterates in a higher precision, such as float32 or float64."
                raise invalid_input("rounding / noise", rounded, f"<= {_LARGEST_ROUNDING}", remedy)
