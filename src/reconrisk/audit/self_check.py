"""A one-second check that the installed parts work together: attack a layer whose answer is known."""

from __future__ import annotations

import torch
from torch import nn

from reconrisk.attacks.analytic import analytic
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reconrisk.releases.gradient import GradientMap


def self_check(*, features: int = 64, seed: int = 0) -> float:
    """The largest error of rebuilding a random record from the gradient of a linear layer; exact up to rounding.

    >>> self_check() < 1e-5
    True
    """
    rng = torch.Generator().manual_seed(seed)
    layer = nn.Linear(features, 10)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / features**0.5)
    target = torch.rand(1, features, generator=rng)
    forward = GradientMap(layer)
    observation = Observation(
        released={name: value.detach() for name, value in forward(target, torch.tensor([3])).items()},
        forward=forward,
        threat=HONEST_BUT_CURIOUS,
        input_shape=(features,),
        data_range=(0.0, 1.0),
    )
    return float((analytic()(observation, rng=rng).estimates - target).abs().max())
