"""DP-SGD as guo2022 writes it: Poisson batches, smooth clipping, noise on the sum, momentum; accountants beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reconrisk.core.progress import track
from reconrisk.data.dataset import Dataset
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.releases.model_state import model_state
from reconrisk.releases.updates.clipping import Clip, SmoothClip
from reconrisk.releases.updates.per_example import LayerRecorder

_EVALUATED = 1000


@dataclass(frozen=True)
class Setting:
    """Hyperparameters of one training, as in Tables 3 and 4 of guo2022; ``batch`` is the expected size."""

    noise_multiplier: float
    step_size: float
    clip_norm: float
    batch: int
    momentum: float = 0.5

    def __str__(self) -> str:
        """The three that the paper varies besides the number of steps."""
        return f"sigma {self.noise_multiplier:g}, rho {self.step_size:g}, C {self.clip_norm:g}"


def private_steps(
    model: nn.Module,
    dataset: Dataset,
    setting: Setting,
    *,
    steps: int,
    accountants: Sequence[FisherAccountant],
    rng: torch.Generator,
) -> Iterator[int]:
    """Train ``model`` in place and yield the number of steps taken, after each; the accountants see every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.step_size, momentum=setting.momentum)
    clip, rate = SmoothClip(setting.clip_norm), setting.batch / len(dataset)
    for step in track(range(1, steps + 1), f"training, {setting}", total=steps):
        for accountant in accountants:
            accountant.step(
                noise_multiplier=setting.noise_multiplier, clip_norm=setting.clip_norm, sampling_probability=rate
            )
        rows = (torch.rand(len(dataset), generator=rng) < rate).nonzero().flatten()
        sums = clipped_sum(model, dataset.inputs[rows], dataset.class_labels[rows], clip)
        for parameter, total in zip(model.parameters(), sums, strict=True):
            noise = setting.noise_multiplier * setting.clip_norm * torch.randn(total.shape, generator=rng)
            parameter.grad = (total + noise) / setting.batch
        optimizer.step()
        yield step


def clipped_sum(model: nn.Module, inputs: Tensor, labels: Tensor, clip: Clip) -> list[Tensor]:
    """The sum of the records' clipped gradients, one tensor per parameter, from two backward passes over the batch.

    Assumes: a network of layers whose norms :class:`LayerRecorder` knows, each called in order.
    """
    parameters = list(model.parameters())
    if len(inputs) == 0:
        return [torch.zeros_like(parameter) for parameter in parameters]
    recorder = LayerRecorder(model_state(model, inputs.dtype))
    with recorder.recording():
        losses = cross_entropy(model(inputs), labels, reduction="none")
    gradients = torch.autograd.grad(losses.sum(), recorder.outputs, retain_graph=True)
    factors = clip.factor(recorder.squares(gradients).sqrt())
    return list(torch.autograd.grad((factors.detach() * losses).sum(), parameters))


@torch.no_grad()
def record_logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Outputs for many records, some at a time."""
    return torch.cat([model(part) for part in inputs.split(_EVALUATED)])


def accuracy(model: nn.Module, dataset: Dataset) -> float:
    """Share of the records whose label has the largest output."""
    return float((record_logits(model, dataset.inputs).argmax(1) == dataset.class_labels).float().mean())
