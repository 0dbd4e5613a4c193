"""Attack and bound certify each other: at small noise the error of maximum likelihood is the Cramer-Rao bound."""

import math

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.DEFENSE)
DRAWS = 30


def multilayer(rng):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=rng)
    return model


NETWORKS = {
    "multilayer tanh": multilayer,
    "convolutional tanh": lambda rng: rr.models.lenet((1, 8, 8), 10, activation=nn.Tanh, rng=rng),
    "convolutional sigmoid": lambda rng: rr.models.lenet((1, 8, 8), 10, rng=rng),
}


def release_of(name):
    digits = load_dataset("digits")
    inside = 0.25 + 0.5 * digits.inputs[:1].double()  # away from the ends of the range, which an attacker could use
    model = NETWORKS[name](torch.Generator().manual_seed(1))
    return rr.releases.GradientRelease(model, nn.functional.cross_entropy, inside, digits.class_labels[:1])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_squared_error_is_the_bound(name):
    release = release_of(name)
    inverse = torch.linalg.inv(rr.sensitivity.fisher_matrix(release))
    size = len(inverse)
    std = 1e-3 / math.sqrt(float(inverse.trace()) / size)  # so that the bound is a root mean square error of 1e-3
    bound = std**2 * float(inverse.trace()) / size
    errors = []
    for draw in range(DRAWS):
        rng = torch.Generator().manual_seed(draw)
        observation = rr.observe(release, defense=rr.defenses.gaussian_noise(std), threat=THREAT, rng=rng)
        estimate = rr.attacks.gauss_newton()(observation, rng=rng).estimates
        errors.append(float((estimate - release.inputs).square().mean()))
    # errors are sums of squares of normals with covariance I^-1: variance 2 tr(I^-2) / d^2
    deviation = std**2 * math.sqrt(2 * float((inverse @ inverse).trace()) / DRAWS) / size
    assert sum(errors) / DRAWS == pytest.approx(bound, abs=4 * deviation)
    assert 4 * deviation < 0.25 * bound  # the test can tell an attack that loses a fourth
