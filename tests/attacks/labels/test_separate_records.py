import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.attacks.labels.separate_records import separate


def summed_gradient(seed, records, *, classes=10, features=20, width=2.0, factors=None):
    """The gradient of a linear layer with bias, its parameters, and the labels."""
    rng = torch.Generator().manual_seed(seed)
    parameters = width * torch.randn(classes, features + 1, generator=rng, dtype=torch.float64) / features**0.5
    inputs = torch.randn(records, features + 1, generator=rng, dtype=torch.float64)
    inputs[:, -1] = 1
    labels = torch.randint(classes, (records,), generator=rng)
    errors = (inputs @ parameters.T).softmax(1) - nn.functional.one_hot(labels, classes)
    if factors is not None:
        errors = errors * factors[:, None]
    return errors.T @ inputs, parameters, labels


def bias_column(parameters):
    return nn.functional.one_hot(torch.tensor(parameters.shape[1] - 1), parameters.shape[1]).double()


@given(seed=st.integers(0, 500), records=st.integers(1, 4))
def test_records_up_to_four_tenths_of_the_classes_are_told_apart(seed, records):
    gradient, parameters, labels = summed_gradient(seed, records)
    found = separate(gradient, parameters, records, direction=bias_column(parameters))
    assert set(found.labels) <= set(labels.tolist())
    if len(found.labels) == records:
        assert sorted(found.labels) == sorted(labels.tolist())
        assert float(found.rest.norm()) < 1e-4 * float(gradient.norm())


def test_nearly_all_are_found():
    complete = 0
    for seed in range(30):
        gradient, parameters, labels = summed_gradient(seed, 4)
        found = separate(gradient, parameters, 4, direction=bias_column(parameters))
        complete += sorted(found.labels) == sorted(labels.tolist())
    assert complete >= 28  # measured 30


def test_every_record_may_be_scaled_by_its_own_factor():
    complete = 0
    for seed in range(20):
        factors = torch.tensor([0.9, 0.3, 0.05], dtype=torch.float64)
        gradient, parameters, labels = summed_gradient(seed, 3, factors=factors)
        found = separate(gradient, parameters, 3, direction=bias_column(parameters), sized=False)
        if sorted(found.labels) == sorted(labels.tolist()):
            complete += 1
            assert sorted(1 / each for each in found.divisors) == pytest.approx(sorted(factors.tolist()), rel=1e-3)
    assert complete >= 18  # measured 20


def test_without_bias_a_rough_direction_is_enough():
    complete = 0
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        parameters = torch.randn(10, 12, generator=rng, dtype=torch.float64)
        inputs = torch.rand(3, 12, generator=rng, dtype=torch.float64)
        labels = torch.randint(10, (3,), generator=rng)
        errors = (inputs @ parameters.T).softmax(1) - nn.functional.one_hot(labels, 10)
        direction = torch.full((12,), 1 / 6, dtype=torch.float64)  # maps the mean features, all one half, to one
        found = separate(errors.T @ inputs, parameters, 3, direction=direction, biased=False)
        complete += sorted(found.labels) == sorted(labels.tolist())
    assert complete >= 18  # measured 20


def test_noise_alone_holds_no_records():
    noise = torch.randn(10, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, parameters, _ = summed_gradient(0, 1)
    assert separate(noise, parameters, 3, direction=bias_column(parameters), noise_std=1.0).labels == []


def test_a_gradient_of_zero_holds_no_records():
    _, parameters, _ = summed_gradient(0, 1)
    found = separate(torch.zeros(10, 21, dtype=torch.float64), parameters, 2, direction=bias_column(parameters))
    assert found.labels == []


def test_effort_is_bounded_for_many_classes():
    gradient, parameters, _ = summed_gradient(0, 40, classes=400, features=60)
    assert separate(gradient, parameters, 40, direction=bias_column(parameters)).labels == []
