"""Guided sampling of many records at once, each with a gradient and a stop of its own, and what is said of results.

The direction in which a record is guided has length one for itself, so that gradients of several batches may be fitted
in one run: only the draws are other ones than of runs for each. The stop of each batch is found from its own residuals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from reconrisk.attacks.matching.distances import sum_of_squares
from reconrisk.attacks.matching.loop import whiten_and_mask
from reconrisk.attacks.with_prior.guided_diffusion import GuidedSampling, GuidedTrajectory
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.progress import track
from reconrisk.data import data_folders
from reconrisk.metrics import lpips, mse, psnr, score, ssim
from reproductions.gradient_inversion import generator, mean_over

BACKBONE = "weights/alexnet_imagenet_features_fp32.npz"
TOGETHER = 10
"""Batches in one run: graphs of their gradients take memory."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Estimates in the order of the targets, processor seconds of a batch; ``peaks`` are what an oracle would take."""

    estimates: Tensor
    seconds: float
    batches: int
    peaks: Tensor | None = None
    trajectories: tuple[GuidedTrajectory, ...] = ()


@dataclass(frozen=True, eq=False)
class JointMap:
    """The maps of several batches as one of all their records; ``seen`` keeps each one's residual at every call."""

    parts: Sequence[Observation]
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The releases of all batches, named by their places."""
        sizes = [part.batch_size for part in self.parts]
        pieces = zip(self.parts, inputs.split(sizes), labels.split(sizes), strict=True)
        caused = [part.forward(some, named) for part, some, named in pieces]
        self.seen.append(_residuals(self.parts, caused))
        return {f"{place}/{name}": value for place, each in enumerate(caused) for name, value in each.items()}


def joint(parts: Sequence[Observation], forward: JointMap | None = None) -> Observation:
    """Observations under one threat as one."""
    first = parts[0]

    def together(tensors: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {f"{place}/{name}": value for place, each in enumerate(tensors) for name, value in each.items()}

    known = [part.noise_std for part in parts if part.noise_std is not None]
    masks = [part.kept for part in parts if part.kept is not None]
    return Observation(
        together([part.released for part in parts]),
        forward or JointMap(parts),
        first.threat,
        first.input_shape,
        first.data_range,
        batch_size=sum(part.batch_size for part in parts),
        labels=torch.cat([part.labels for part in parts if part.labels is not None]),
        noise_std=together(known) if known else None,
        kept=together(masks) if masks else None,
        noise_law=first.noise_law,
    )


def guided(
    attack: GuidedSampling, parts: Sequence[Observation], targets: Tensor, *, seed: int = 0, together: int = TOGETHER
) -> Outcome:
    """The attacker's choice for every batch, and the oracle's."""
    begun, found = time.process_time(), list[GuidedTrajectory]()
    for first in track(range(0, len(parts), together), "guided sampling"):
        found += trajectories(attack, parts[first : first + together], seed=seed + first)
    seconds = (time.process_time() - begun) / len(parts)
    rows = targets.split([part.batch_size for part in parts])
    peaks = [each.oracle_peak(some)[1] for each, some in zip(found, rows, strict=True)]
    return Outcome(
        torch.cat([each.estimates_at_stop for each in found]), seconds, len(parts), torch.cat(peaks), tuple(found)
    )


def trajectories(attack: GuidedSampling, parts: Sequence[Observation], *, seed: int) -> list[GuidedTrajectory]:
    """One run for all ``parts``, as the trajectory of each, in the units of the run."""
    forward = JointMap(parts)
    trace = attack.trace(joint(parts, forward), rng=generator("start", seed))
    sizes = [part.batch_size for part in parts]
    found = []
    for place, rows in enumerate(torch.arange(sum(sizes)).split(sizes)):
        own = replace(
            trace,
            residuals=torch.stack([step[place] for step in forward.seen]).double().cpu(),
            estimates=trace.estimates[:, rows],
            values=sum(value.numel() for value in parts[place].released.values()),
            pulls=trace.pulls[:, rows],
            noise_pulls=trace.noise_pulls[:, rows],
            overshoots=trace.overshoots[:, rows],
        )
        found.append(own)
    return found


def attacked(attack: Attack, parts: Sequence[Observation], targets: Tensor, name: str, *, seed: int = 0) -> Outcome:
    """What any other attack finds, one batch after the other, in the order that fits the targets best."""
    begun, found = time.process_time(), list[Tensor]()
    rows = targets.split([part.batch_size for part in parts])
    for place, part in enumerate(track(parts, name)):
        estimate = attack(part, rng=generator("start", seed + place))
        matched = score(estimate, rows[place], mse()).matched
        found.append(estimate.estimates[matched])
    return Outcome(torch.cat(found), (time.process_time() - begun) / len(parts), len(parts))


@cache
def metrics() -> tuple[Metric, ...]:
    """MSE, PSNR, SSIM, and LPIPS where the data folder holds AlexNet's weights."""
    places = (Path(folder.path) / BACKBONE for folder in data_folders())
    backbone = next((path for path in places if path.is_file()), None)
    extra = () if backbone is None else (lpips(backbone, data_range=(0.0, 1.0)),)
    return (mse(), psnr(data_range=1.0), ssim(data_range=(0.0, 1.0)), *extra)


def decibels(estimates: Tensor, targets: Tensor, batches: int) -> Tensor:
    """Mean PSNR of each batch."""
    return psnr(data_range=1.0)(estimates, targets).view(batches, -1).mean(1)


def described(estimates: Tensor, targets: Tensor, batches: int) -> str:
    """PSNR with its interval over batches, then means of the other scores."""
    values = mean_over(decibels(estimates, targets, batches), "batches")
    others = [f"{metric.name} {float(metric(estimates, targets).mean()):.3g}" for metric in metrics()]
    interval = f" [{values.low:.2f}, {values.high:.2f}]" if math.isfinite(values.low) else ""
    return f"{values.value:.2f}{interval} dB, {', '.join(each for each in others if not each.startswith('psnr'))}"


def words(outcome: Outcome, targets: Tensor) -> str:
    """The attacker's own stop, then the oracle's peak, and the processor time of one batch."""
    text = described(outcome.estimates, targets, outcome.batches)
    if outcome.peaks is not None:
        text = f"own stop {text}; oracle's peak {described(outcome.peaks, targets, outcome.batches)}"
    return f"{text}; {outcome.seconds:.1f} s each"


def _residuals(parts: Sequence[Observation], caused: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Sums of squares in units of the noise where it is known, else of all observations together."""
    with torch.no_grad():
        observed = [whiten_and_mask(part.released, part) for part in parts]
        made = [whiten_and_mask(each, part) for each, part in zip(caused, parts, strict=True)]
        left = [
            sum_of_squares({name: one[name] - value for name, value in other.items()})
            for one, other in zip(made, observed, strict=True)
        ]
        known = parts[0].noise_std is not None
        return torch.stack(left) / (1.0 if known else torch.stack([sum_of_squares(each) for each in observed]).sum())
