import math

import pytest
import torch

from reconrisk.attacks.gauss_newton.problem import GaussianPrior, Likelihood, working_precision
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.DEFENSE)


def forward(inputs, labels):
    return {"large": 4 * inputs[0], "small": inputs[0] / 4}


def observation(values=(0.5, 0.5), **given):
    record = torch.tensor([values], dtype=torch.float32)
    return Observation(forward(record, None), forward, THREAT, (2,), (0.0, 1.0), labels=torch.tensor([0]), **given)


def test_known_noise_is_the_unit():
    std = {"large": torch.tensor([2.0, math.inf]), "small": torch.tensor([0.5, 0.25])}
    likelihood = Likelihood(observation(noise_std=std), torch.tensor([0]))
    chi_square = likelihood.chi_square(torch.zeros(1, 2, dtype=torch.float64))
    assert chi_square == pytest.approx((2 / 2) ** 2 + (0.125 / 0.5) ** 2 + (0.125 / 0.25) ** 2)
    assert likelihood.rows == 3
    assert likelihood.knows_noise
    assert not likelihood.rounding_only


def test_values_that_were_not_sent_are_no_equations():
    kept = {"large": torch.tensor([True, False]), "small": torch.tensor([False, True])}
    likelihood = Likelihood(observation(kept=kept), torch.tensor([0]))
    assert likelihood.rows == 2
    moved = torch.tensor([[0.5, 0.0]], dtype=torch.float64)  # the second value of "large" would show it
    expected = 0.125**2 / (2**2 + 0.125**2)
    assert likelihood.relative_residual(moved) == pytest.approx(expected)


def test_without_noise_errors_lie_between_equal_and_relative_ones():
    likelihood = Likelihood(observation(), torch.tensor([0]))
    assert likelihood.rounding_only
    large, small = likelihood.observed[:2].norm(), likelihood.observed[2:].norm()
    assert float(large / small) == pytest.approx(4)  # the values differ by 16, relative errors would make it 1
    likelihood.weigh(equally=True)
    assert not likelihood.rounding_only
    large, small = likelihood.observed[:2].norm(), likelihood.observed[2:].norm()
    assert float(large / small) == pytest.approx(16)


def test_one_in_the_units_of_rounding_is_the_precision_of_the_release():
    likelihood = Likelihood(observation(), torch.tensor([0]))
    likelihood.weigh(equally=True)
    size = math.sqrt((2 * 2**2 + 2 * 0.125**2) / 4)
    assert float(likelihood.observed[0]) == pytest.approx(2 / (size * torch.finfo(torch.float32).eps))


def test_a_prior_adds_one_equation_per_coordinate():
    prior = GaussianPrior(torch.full((1, 2), 0.25).double(), torch.full((1, 2), 0.5).double())
    std = {"large": torch.full((2,), math.inf), "small": torch.full((2,), math.inf)}
    likelihood = Likelihood(observation(noise_std=std), torch.tensor([0]), prior)
    assert likelihood.rows == 2
    assert likelihood.chi_square(torch.ones(1, 2).double()) == pytest.approx(2 * 1.5**2)


def test_precision_is_double_where_the_forward_map_takes_it():
    inputs = torch.zeros(1, 2, dtype=torch.float64)
    assert working_precision(observation(), torch.tensor([0]), inputs) is torch.float64
    single = torch.eye(2)
    other = Observation(
        {"y": torch.ones(2)}, lambda x, _: {"y": single @ x[0]}, THREAT, (2,), (0.0, 1.0), labels=torch.tensor([0])
    )
    assert working_precision(other, torch.tensor([0]), inputs) is torch.float32
