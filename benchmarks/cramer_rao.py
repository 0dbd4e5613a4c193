"""Gauss-Newton against a noisy gradient: mean squared error over the Cramer-Rao bound tr(I^-1)/d, which should be 1.

The result is the mean ratio over 100 draws of the noise and its standard error, at noise for which the bound is a root
mean square error of 0.001 and of 0.01 of the data range. The records lie inside the range, since an attacker who knows
the range does better than the bound, which is for unbiased estimators, on values at its ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from reconrisk.attacks.gauss_newton.attack import gauss_newton
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset
from reconrisk.defenses import gaussian_noise
from reconrisk.models import lenet
from reconrisk.models.building import dense
from reconrisk.releases.observe import observe
from reconrisk.releases.sensitivity.fisher import fisher_matrix
from reconrisk.releases.updates.gradient import GradientRelease

DRAWS = 100
ROOT_MEAN_SQUARES = (1e-3, 1e-2)
THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.DEFENSE)


def digit(side: int) -> tuple[Tensor, Tensor]:
    """A digit of 8 or 14 pixels a side, drawn into the middle half of the range."""
    if side == 8:
        data = load_dataset("digits")
        inputs = data.inputs[:1]
    else:
        data = load_dataset("mnist", split="test")
        inputs = nn.functional.avg_pool2d(data.inputs[:1], 2)
    return 0.25 + 0.5 * inputs.double(), data.class_labels[:1]


def multilayer() -> nn.Module:
    """64-32-10 with tanh; torch's weights scaled so that it saturates now and then."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), dense((64, 32, 10), nn.Tanh))
    for parameter in model.parameters():
        parameter.data *= 3
    return model


def ratios(build: Callable[[], nn.Module], side: int) -> Callable[[], str]:
    """Error over bound for each size of noise."""
    torch.set_num_threads(1)
    inputs, labels = digit(side)
    release = GradientRelease(build(), nn.functional.cross_entropy, inputs, labels)
    unit = float(torch.linalg.inv(fisher_matrix(release)).diagonal().mean())

    def at(root_mean_square: float) -> str:
        std = root_mean_square / math.sqrt(unit)
        errors = torch.tensor([_error(release, std, draw) for draw in range(DRAWS)])
        found = errors / root_mean_square**2
        return f"at {root_mean_square:g}: {found.mean():.3f} +- {found.std() / math.sqrt(DRAWS):.3f}"

    return lambda: ", ".join(at(root_mean_square) for root_mean_square in ROOT_MEAN_SQUARES)


def _error(release: GradientRelease, std: float, draw: int) -> float:
    rng = torch.Generator().manual_seed(draw)
    observation = observe(release, defense=gaussian_noise(std), threat=THREAT, rng=rng)
    estimate = gauss_newton()(observation, rng=rng).estimates.double()
    return float((estimate - release.inputs).square().mean())


def _lenet(activation: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: lenet((1, 14, 14), 10, activation=activation, rng=torch.Generator().manual_seed(0))


def tanh_multilayer() -> Callable[[], str]:
    """A perceptron on 8x8 digits."""
    return ratios(multilayer, 8)


def tanh_lenet() -> Callable[[], str]:
    """A convolutional network on 14x14 digits."""
    return ratios(_lenet(nn.Tanh), 14)


def sigmoid_lenet() -> Callable[[], str]:
    """The same with sigmoids."""
    return ratios(_lenet(nn.Sigmoid), 14)


def gelu_lenet() -> Callable[[], str]:
    """The same with GELU."""
    return ratios(_lenet(nn.GELU), 14)


CONTENDERS = {
    "tanh MLP, 8x8": tanh_multilayer,
    "tanh LeNet, 14x14": tanh_lenet,
    "sigmoid LeNet, 14x14": sigmoid_lenet,
    "GELU LeNet, 14x14": gelu_lenet,
}
