import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.parameters import (
    chen2025_failure_probability,
    failure_probability,
    parameter_sensitivity,
)
from reconrisk.releases.updates.gradient import GradientRelease


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def linear_release(matrix, n=1):
    """y = A x for the n records x stacked: rows of A are the gradients of the released values."""
    d = matrix.shape[1] // n
    inputs = torch.ones(n, d, dtype=matrix.dtype)
    return ForwardRelease(lambda inputs, labels: {"y": matrix @ inputs.flatten()}, inputs, torch.zeros(n))


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3))
    inputs = torch.rand(2, 1, 6, 6, dtype=torch.float64, generator=rng(1))
    return GradientRelease(model, nn.functional.cross_entropy, inputs, torch.tensor([0, 2]), reduction="sum")


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), p=st.integers(1, 12), n=st.integers(1, 3), d=st.integers(1, 5))
def test_exact_values_are_the_squared_rows_from_either_side(seed, p, n, d):
    matrix = torch.randn(p, n * d, dtype=torch.float64, generator=rng(seed))
    found = parameter_sensitivity(linear_release(matrix, n), exact=True)
    torch.testing.assert_close(found.values["y"], matrix.square().sum(1))
    assert found.probes == min(p, n * d)
    assert found.low["y"].equal(found.values["y"])
    assert found.high["y"].equal(found.values["y"])


def test_a_network_agrees_with_its_dense_jacobian_and_estimates_are_unbiased(network):
    dense = torch.autograd.functional.jacobian(
        lambda x: tuple(network.forward(x, network.labels).values()), network.inputs
    )
    exact = parameter_sensitivity(network, exact=True)
    many = parameter_sensitivity(network, probes=71, rng=rng(2))
    for name, jacobian in zip(exact.values, dense, strict=True):
        truth = jacobian.square().sum((-4, -3, -2, -1))
        torch.testing.assert_close(exact.values[name], truth)
        ratio = (many.values[name] / truth)[truth > 0]
        assert (many.values[name][truth == 0] == 0).all()  # dead units
        assert ((ratio - 1).abs() < 5.5 * math.sqrt(2 / 71)).all()  # five and a half standard errors
    assert not many.exact
    assert exact.exact


@pytest.mark.parametrize(("probes", "confidence"), [(1, 0.9), (10, 0.95), (30, 0.5)])
def test_the_interval_covers_at_its_stated_rate(probes, confidence):
    """Orthogonal rows make the coordinates independent: 4000 trials in one release."""
    rows = 4000
    weights = torch.linspace(0.1, 10, rows).double()
    release = ForwardRelease(
        lambda inputs, labels: {"y": weights * inputs[0]}, torch.ones(1, rows).double(), torch.zeros(1)
    )
    found = parameter_sensitivity(release, probes=probes, confidence=confidence, rng=rng(probes))
    truth = weights.square()
    above, below = (found.low["y"] > truth).double().mean(), (found.high["y"] < truth).double().mean()
    tail = (1 - confidence) / 2
    for side in (above, below):  # four standard errors of a proportion of 4000
        assert abs(float(side) - tail) < 4 * math.sqrt(tail * (1 - tail) / rows)


def test_failure_probability_is_that_of_the_estimate():
    squares = np.random.default_rng(0).chisquare(7, 200_000) / 7
    for error in (0.1, 0.5, 1.2):
        measured = np.mean(np.abs(squares - 1) > error)
        assert failure_probability(7, error) == pytest.approx(measured, abs=5 * math.sqrt(0.25 / 200_000))


@given(probes=st.integers(1, 10_000), error=st.floats(1e-3, 10))
def test_the_exact_failure_never_exceeds_the_printed_limit(probes, error):
    assert failure_probability(probes, error) <= chen2025_failure_probability(probes, error) + 1e-12


def _poisson_below_five(mean):
    return math.exp(-mean) * sum(mean**count / math.factorial(count) for count in range(5))


def test_chen2025_chebyshev_says_nothing_at_its_own_ten_probes_below_447_per_mille():
    assert chen2025_failure_probability(10, 0.447) == 1
    assert chen2025_failure_probability(10, 0.448) < 1
    for error in (0.25, 0.447):  # ten degrees of freedom: the tail is that of five events of a Poisson process
        above, below = (_poisson_below_five(5 * (1 + sign * error)) for sign in (1, -1))
        assert failure_probability(10, error) == pytest.approx(above + 1 - below, rel=1e-12)
    release = linear_release(torch.eye(2000, dtype=torch.float64))
    found = parameter_sensitivity(release, probes=10, rng=rng())
    missed = float(((found.values["y"] - 1).abs() > 0.447).double().mean())
    assert abs(missed - 0.300) < 4 * math.sqrt(0.21 / 2000)


@settings(max_examples=20)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_it_scales_with_the_square_and_follows_a_permutation(scale, seed):
    matrix = torch.randn(15, 12, dtype=torch.float64, generator=rng(seed))
    order = torch.randperm(15, generator=rng(seed))
    base = parameter_sensitivity(linear_release(matrix), probes=3, rng=rng(7))
    scaled = parameter_sensitivity(linear_release(scale * matrix[order]), probes=3, rng=rng(7))
    torch.testing.assert_close(scaled.values["y"], scale**2 * base.values["y"][order])


def test_its_sum_is_the_trace_of_the_information(network):
    squares = parameter_sensitivity(network, exact=True).values
    linear, trace = network.linearize(), 0.0
    for index in range(network.inputs.numel()):
        tangent = torch.zeros(network.inputs.numel(), dtype=torch.float64)
        tangent[index] = 1
        trace += sum(float(v.square().sum()) for v in linear.push(tangent.reshape(network.inputs.shape)).values())
    assert sum(float(value.sum()) for value in squares.values()) == pytest.approx(trace)


def test_without_a_generator_the_same_directions_are_drawn_each_time():
    one, two = (parameter_sensitivity(linear_release(torch.ones(20, 20)), probes=2).values["y"] for _ in range(2))
    assert torch.equal(one, two)


def test_small_releases_are_exact():
    found = parameter_sensitivity(linear_release(torch.ones(3, 20)), probes=10)
    assert found.exact
    torch.testing.assert_close(found.values["y"], torch.full((3,), 20.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probes": 0}, "probes=0 >= 1"),
        ({"probes": 2.5}, "probes=2.5 to be a whole number"),
        ({"confidence": 1.0}, r"confidence=1.0 in \(0, 1\)"),
        ({"rng": 1}, r"rng=1 to be a torch\.Generator"),
    ],
)
def test_arguments_outside_their_domain_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        parameter_sensitivity(linear_release(torch.ones(20, 20)), **{"rng": rng(), **arguments})


def test_failure_probabilities_refuse_what_is_no_error():
    for function in (failure_probability, chen2025_failure_probability):
        with pytest.raises(InvalidInput, match=r"relative_error=0.0 > 0"):
            function(10, 0.0)
