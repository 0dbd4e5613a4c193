"""Figure 4 of riess2025: the error of its attack beside the chi-square law, alone and within larger networks.

The paper leaves open how the estimate is rescaled where other parameters share the clipped norm. Its deviation at small
noise, and the authors' program, fit the norm of the record alone; that comes first. It leaves the bias (|x|/G - 1) x
for a gradient of norm G. Two ways to avoid it follow: replaying the clip factor at a first estimate, which errs by how
much G varies around the record, and taking the direction at the known norm. As in the program the outputs of the
network beside are averaged into the loss, pictures for ResNet-101 are tiled to 3 x 224 x 224, and group norm stands for
batch norm. Estimates are not cut to a data range, which would bring the error below the law.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import kstest
from torch import Tensor, nn
from torch.nn.functional import interpolate

from reconrisk.attacks import known_norm, known_scale, optimal_analytic
from reconrisk.attacks.malicious_server.optimal_analytic import OptimalAnalytic, PlantedTraining
from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.threat import Knows
from reconrisk.data import load_dataset
from reconrisk.defenses import clip_and_noise
from reconrisk.models import group_norm, resnet101
from reconrisk.releases.observe import DefendedMap
from reconrisk.releases.updates.gradient import GradientRelease
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce

Floats = NDArray[np.float64]

NORM, CLIP_NORM = 1.01, 1.0
NOISES = (0.01, 0.1, 1.0, 10.0)
IMAGES = 500
REPLAYED = "rescaled by the replayed clip factor"
DIRECTED = "the direction at the known norm"
_LABEL = torch.tensor([0])
_GREY = torch.tensor([0.299, 0.587, 0.114])
_WIDE = (-1e6, 1e6)
_PLANTED = "planted.weight"


class Averaged(nn.Module):
    """A network beside the planted layer, whose outputs are averaged: on tiles of the picture, ``repeats`` each way."""

    def __init__(self, network: nn.Module, repeats: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.network, self.repeats = network, repeats

    def forward(self, inputs: Tensor) -> Tensor:
        """One number for each record."""
        tiled = inputs.repeat(1, *self.repeats) if self.repeats else inputs
        outputs: Tensor = self.network(tiled).mean(1, keepdim=True)
        return outputs


def total(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of what stands beside the planted layer."""
    del labels
    return outputs.sum(1).mean()


@dataclass(frozen=True, eq=False)
class Errors:
    """Mean squared errors at each noise multiplier, one row each, and the norm of the whole gradient of each image."""

    mse: Floats
    gradient_norms: Floats


def images(count: int) -> Tensor:
    """Random CIFAR-10 images, scaled to norm 1.01."""
    pictures = load_dataset("cifar-10", split="train").inputs
    chosen = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))[:count]
    return scaled(pictures[chosen])


def two_by_two(pictures: Tensor) -> Tensor:
    """Four grey values of each colour picture, scaled to norm 1.01."""
    grey = (pictures * _GREY.view(1, 3, 1, 1)).sum(1, keepdim=True)
    return scaled(interpolate(grey, size=(2, 2), mode="bilinear", antialias=True))


def scaled(pictures: Tensor) -> Tensor:
    """Each picture at norm 1.01."""
    norms = pictures.flatten(1).norm(dim=1)
    return NORM * pictures / norms.view(-1, *[1] * (pictures.ndim - 1))


def linear_beside(features: int) -> nn.Module:
    """A linear layer of a million parameters that does not help."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Linear(features, 1_000_000 // features, bias=False)
    return Averaged(nn.Sequential(nn.Flatten(), layer))


def resnet_beside(repeats: tuple[int, ...], side: int) -> nn.Module:
    """ResNet-101 with 1000 classes, untrained."""
    rng = torch.Generator().manual_seed(0)
    return Averaged(resnet101((3, side, side), 1000, norm=group_norm, rng=rng), repeats)


def measured(
    attack: OptimalAnalytic, beside: nn.Module | None, targets: Tensor, *, draws: int = 1, seed: int = 0
) -> Errors:
    """Errors of the attack on every target at every noise multiplier, ``draws`` of the noise each.

    Clipping acts on the whole gradient; noise is drawn for the planted layer alone, as the attack reads nothing else.
    """
    planted = attack.plant(targets.shape[1:], model=beside, loss_fn=total)
    rng, found, norms = torch.Generator().manual_seed(seed), [], []
    for target in track(targets, "Attacking"):
        gradient = GradientRelease(planted.module, planted.loss_fn, target[None], _LABEL).value()
        norms.append(math.sqrt(sum(float(value.square().sum()) for value in gradient.values())))
        found.append([_errors(attack, planted, gradient, target, noise, draws, rng) for noise in NOISES])
    return Errors(np.array(found).transpose(1, 0, 2).reshape(len(NOISES), -1), np.array(norms))


def _errors(
    attack: OptimalAnalytic,
    planted: PlantedTraining,
    gradient: dict[str, Tensor],
    target: Tensor,
    noise: float,
    draws: int,
    rng: torch.Generator,
) -> list[float]:
    defense = clip_and_noise(noise_multiplier=noise, clip_norm=CLIP_NORM)
    clipped = {_PLANTED: defense.replay(gradient)[_PLANTED]}
    forward = GradientRelease(planted.module, planted.loss_fn, target[None], _LABEL).forward
    errors = []
    for _ in range(draws):
        sent = defense(clipped, rng=rng)  # within the clip norm already: noise alone
        observation = Observation(
            released=sent,
            forward=DefendedMap(forward, defense),
            threat=attack.needs.with_knowledge(Knows.DEFENSE, Knows.RECORD_NORM, Knows.LABELS),
            input_shape=tuple(target.shape),
            data_range=_WIDE,
            labels=_LABEL,
            record_norms=torch.tensor([NORM]),
            noise_std=defense.noise_std(sent),
        )
        estimate = attack(observation, rng=rng).estimates[0]
        errors.append(float((estimate - target).double().square().mean()))
    return errors


def compared(name: str, errors: Errors, dimension: int, remark: str) -> list[Finding]:
    """Distance of the errors to the law, and their mean over that of the law, at every noise multiplier."""
    laws = [analytic_inversion_law(Gaussian(noise), dimension=dimension, norm=NORM) for noise in NOISES]
    distances = [kstest(row, law.cdf) for row, law in zip(errors.mse, laws, strict=True)]
    ratios = [float(row.mean()) / law.expected_mse for row, law in zip(errors.mse, laws, strict=True)]
    count = errors.mse.shape[1]
    noises = ", ".join(f"{noise:g}" for noise in NOISES)
    remark = f"sigma {noises}; {remark}, C 1, M 1"
    level = 1.358 / math.sqrt(count)
    far = "; lower quality at small sigma" if "ResNet" in name else ""
    return [
        Finding(
            f"{name}: Kolmogorov-Smirnov distance of {count} errors to the law, 5 % level {level:.3f}",
            f"close alignment{far}",
            ", ".join(f"{each.statistic:.3f} (p {each.pvalue:.2g})" for each in distances),
            remark,
        ),
        Finding(f"{name}: mean MSE over sigma^2 |x|^2", f"about 1{far}", ", ".join(f"{r:.4g}" for r in ratios), remark),
    ]


def against_whole(name: str, how: str, errors: Errors, remark: str) -> Finding:
    """The mean error over (sigma G)^2, the variance left where the whole gradient of norm G is clipped."""
    whole = float((errors.gradient_norms**2).mean())
    ratios = [float(row.mean()) / (noise**2 * whole) for row, noise in zip(errors.mse, NOISES, strict=True)]
    least, most = errors.gradient_norms.min(), errors.gradient_norms.max()
    return Finding(
        f"{name}: mean MSE over (sigma G)^2, gradient norm G {least:.3g} to {most:.3g}, {how}",
        "-",
        ", ".join(f"{ratio:.4g}" for ratio in ratios),
        f"sigma {', '.join(f'{noise:g}' for noise in NOISES)}; {remark}",
    )


def by_the_norm() -> OptimalAnalytic:
    """The paper's estimate: the one row, rescaled by the norm of the record over the clip norm."""
    return optimal_analytic(neurons=1, estimate=known_scale(), scales=CLIP_NORM / NORM)


def along_the_row() -> OptimalAnalytic:
    """The direction of the row at the known norm: no scale is needed."""
    return optimal_analytic(neurons=1, estimate=known_norm())


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Errors on 500 CIFAR-10 images of four grey values, against the law; ResNet-101 on few of them at small scale."""
    need_data()
    targets = two_by_two(images(IMAGES))
    alone = measured(optimal_analytic(neurons=1), None, targets, seed=1)
    linear = measured(by_the_norm(), linear_beside(4), targets, seed=2)
    few, draws = (targets[:6], 80) if scale == "small" else (targets, 1)
    resnet = resnet_beside((3, 112, 112), 224)
    deep = measured(by_the_norm(), resnet, few, draws=draws, seed=3)
    fewest = few[:3] if scale == "small" else few
    again = measured(optimal_analytic(neurons=1), resnet, fewest, seed=4)
    directed = measured(along_the_row(), resnet, few, draws=draws, seed=5)
    pictures = f"{IMAGES} images, 2x2 grey, norm 1.01"
    fewer = f"{len(few)} images, 2x2 grey tiled to 224x224, norm 1.01, {draws} draws of noise each"
    settings = {"Optimal": alone, "Linear (1M)": linear, "ResNet-101": deep}
    return [
        *compared("Figure 4, Optimal", alone, 4, pictures),
        *compared("Figure 4, Linear (1M)", linear, 4, f"{pictures}, rescaled by the norm"),
        *compared("Figure 4, ResNet-101", deep, 4, f"{fewer}, rescaled by the norm"),
        against_whole("Figure 4, ResNet-101", REPLAYED, again, f"{len(fewest)} images"),
        against_whole("Figure 4, ResNet-101", DIRECTED, directed, fewer),
        Drawing("figure4.png", partial(draw, settings, 4)),
    ]


def draw(settings: dict[str, Errors], dimension: int, path: Path) -> None:
    """Box plots of the errors over the law's quantiles, one panel for each setting."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(settings), figsize=(4 * len(settings), 3.2), sharey=True, layout="constrained")
    positions = np.log10(NOISES)
    fine = np.logspace(positions[0] - 0.4, positions[-1] + 0.4, 60)
    laws = [analytic_inversion_law(Gaussian(float(noise)), dimension=dimension, norm=NORM) for noise in fine]
    for axis, (name, errors) in zip(np.atleast_1d(axes), settings.items(), strict=True):
        for low, high in ((0.01, 0.99), (0.05, 0.95), (0.25, 0.75)):
            axis.fill_between(
                np.log10(fine), [law.quantile(low) for law in laws], [law.quantile(high) for law in laws], alpha=0.25
            )
        axis.boxplot(list(errors.mse), positions=positions, widths=0.3, sym=".")
        axis.set(yscale="log", title=name, xlabel="log10 of the noise multiplier")
    np.atleast_1d(axes)[0].set_ylabel("mean squared error")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(reproduce(run))
