"""Least squares whose gradients are all clipped: the information of a step is known in closed form."""

import torch
from torch import nn

from reconrisk.accounting.subsampled_fisher import subsampled_information

STEP = {"noise_multiplier": 0.8, "clip_norm": 0.5, "sampling_probability": 0.25}


def half_square(output, label):
    return (output[:, 0] - label).square().sum() / 2


def linear_task(records=12, dimension=20, seed=0):
    """Least squares with residuals so large that every gradient is clipped: the information is known."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(records, dimension, generator=rng, dtype=torch.float64)
    model = nn.Linear(dimension, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(0.1 * torch.randn(1, dimension, generator=rng))
    return model, inputs, torch.full((records,), 100.0, dtype=torch.float64)


def clipped_linear_trace(inputs, factor, step=STEP):
    """The clipped gradient is C x/|x|: |J|^2 = C^2 (d-1)/|x|^2 and nothing along it."""
    dimension = inputs.shape[1]
    scale = step["sampling_probability"] * factor / step["noise_multiplier"] ** 2
    return scale * (dimension - 1) / inputs.square().sum(1)


def across(step=STEP):
    return float(subsampled_information(1 / step["noise_multiplier"], step["sampling_probability"]).across)
