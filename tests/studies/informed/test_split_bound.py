"""The Cramer-Rao bound of a record, which needs as many values as the record has."""

import math

import numpy as np
import pytest
import torch

from reconrisk.releases.fitted_estimators.estimators import LinearModel
from reconrisk.studies.informed.split import LARGEST, least_unbiased_mse, linear_bound


def test_a_singular_information_allows_no_unbiased_estimate():
    assert math.isinf(least_unbiased_mse(torch.diag(torch.tensor([1.0, 0.0]))))
    assert math.isinf(least_unbiased_mse(torch.zeros(2, 2)))


def test_the_bound_is_never_below_that_of_the_trace():
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
    information = rows.T @ rows
    # tr(I^-1)/d >= d/tr(I), with equality for multiples of the identity
    assert least_unbiased_mse(information) >= 4 / float(information.trace())
    assert least_unbiased_mse(2 * torch.eye(4)) == pytest.approx(0.5)


def model(weights):
    return LinearModel(np.ones((1, 2)), np.ones(1), "squared", np.array([0.0, 1.0, 2.0]), weights, 1.0)


def test_columns_that_are_known_make_the_others_easier():
    known, target = torch.tensor([[0.0, 1.0], [1.0, 0.5]]), torch.tensor([0.3, 0.2])
    every = linear_bound(model(np.ones(3)), known, target, noise_std=0.1)
    one = [
        linear_bound(model(np.ones(3)), known, target, noise_std=0.1, sought=sought) for sought in torch.eye(2).bool()
    ]
    assert sum(one) / 2 < every  # 1 / I_jj <= (I^-1)_jj


def test_weighted_and_large_records_have_none():
    known = torch.tensor([[0.0, 1.0], [1.0, 0.5]])
    assert linear_bound(model(np.array([1.0, 2.0, 1.0])), known, torch.zeros(2), noise_std=0.1) is None
    assert linear_bound(model(np.ones(3)), torch.zeros(2, LARGEST + 1), torch.zeros(LARGEST + 1), noise_std=0.1) is None
