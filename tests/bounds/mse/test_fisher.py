"""guo2022 Theorem 2 against linear Gaussian releases, where least squares attains it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.bounds.mse.fisher import mse_lower_bound_from_fisher
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Scope
from reconrisk.core.mechanism import Gaussian


def _linear_release(seed, rows=6, columns=3, noise=0.5):
    rng = np.random.default_rng(seed)
    jacobian = rng.standard_normal((rows, columns))
    return jacobian, jacobian.T @ jacobian / noise**2


def test_least_squares_attains_the_matrix_form():
    rng = np.random.default_rng(1)
    jacobian, information = _linear_release(0)
    record = rng.standard_normal(3)
    released = jacobian @ record + 0.5 * rng.standard_normal((100_000, 6))
    errors = ((released @ np.linalg.pinv(jacobian).T - record) ** 2).mean(1)
    bound = mse_lower_bound_from_fisher(information).value
    assert errors.mean() == pytest.approx(bound, abs=5 * errors.std() / math.sqrt(100_000))


def test_shrunken_least_squares_attains_the_biased_form():
    rng = np.random.default_rng(2)
    jacobian, information = _linear_release(0)
    record = rng.standard_normal(3)
    matrix = np.diag([0.2, 0.5, 1.0])
    released = jacobian @ record + 0.5 * rng.standard_normal((100_000, 6))
    errors = ((released @ np.linalg.pinv(jacobian).T @ matrix.T - record) ** 2).mean(1)
    bound = mse_lower_bound_from_fisher(information, mean_jacobian=matrix, bias=matrix @ record - record).value
    assert errors.mean() == pytest.approx(bound, abs=5 * errors.std() / math.sqrt(100_000))


@given(seed=st.integers(0, 10_000), columns=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_matrix_trace_and_spectral_forms_are_ordered(seed, columns):
    _, information = _linear_release(seed, rows=columns + 2, columns=columns)
    matrix = mse_lower_bound_from_fisher(information).value
    trace = mse_lower_bound_from_fisher(trace=float(np.trace(information)), dimension=columns).value
    spectral = mse_lower_bound_from_fisher(spectral_norm=float(np.linalg.norm(information, 2))).value
    assert matrix >= trace * (1 - 1e-9)
    assert trace >= spectral * (1 - 1e-9)


def test_more_information_is_a_lower_bound_still():
    _, information = _linear_release(3)
    assert mse_lower_bound_from_fisher(2 * information).value < mse_lower_bound_from_fisher(information).value


@pytest.mark.parametrize("information", [[[1.0, 1.0], [1.0, 1.0]], np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])])
def test_what_rounding_hides_counts_as_large_as_it_may_be(information):
    assert 1e10 < mse_lower_bound_from_fisher(information).value < math.inf


def test_a_badly_conditioned_information_never_gives_more_than_the_truth():
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    information = turn.T @ np.diag([1e15, 1.0]) @ turn
    assert mse_lower_bound_from_fisher(information).value <= (1 + 1e-15) / 2


@pytest.mark.parametrize("information", [[1.0, 0.0], [0.0, 0.0, 3.0]])
def test_exactly_singular_information_is_infinite_and_says_so(information):
    bound = mse_lower_bound_from_fisher(information)
    assert bound.value == math.inf
    assert any("singular" in text for text in bound.assumptions)
    capped = mse_lower_bound_from_fisher(information, constant_guess_mse=0.25)
    assert capped.value == 0.25


def test_an_estimate_that_ignores_the_kernel_is_not_infinite():
    bound = mse_lower_bound_from_fisher([4.0, 0.0], mean_jacobian=np.diag([1.0, 0.0]), bias=[0.0, 0.6])
    assert bound.value == pytest.approx(0.25 / 2 + 0.36 / 2)


def test_tiny_eigenvalues_of_a_diagonal_are_believed():
    assert mse_lower_bound_from_fisher([1.0, 1e-20]).value == pytest.approx(0.5e20)


def test_nothing_released():
    assert mse_lower_bound_from_fisher(trace=0.0, dimension=3).value == math.inf
    assert mse_lower_bound_from_fisher(spectral_norm=0.0).value == math.inf


def test_what_it_says_about_itself():
    bound = mse_lower_bound_from_fisher([1.0], mechanism=Gaussian(2.0), constant_guess_mse=0.25)
    assert bound.scope is Scope.UNBIASED_ESTIMATORS
    assert bound.mechanism == Gaussian(2.0)
    assert any("unbiased" in text for text in bound.assumptions)
    assert any("constant guess" in text for text in bound.assumptions)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mse_lower_bound_from_fisher(), "exactly one value"),
        (lambda: mse_lower_bound_from_fisher([1.0], trace=1.0), "exactly one value"),
        (lambda: mse_lower_bound_from_fisher(trace=1.0), "dimension=None"),
        (lambda: mse_lower_bound_from_fisher(trace=-1.0, dimension=2), "trace=-1.0 >= 0"),
        (lambda: mse_lower_bound_from_fisher(trace=1.0, dimension=0), "dimension=0 >= 1"),
        (lambda: mse_lower_bound_from_fisher(spectral_norm=math.nan), "spectral_norm=nan"),
        (lambda: mse_lower_bound_from_fisher([[1.0, 0.0]]), "to be square"),
        (lambda: mse_lower_bound_from_fisher([-1.0]), "semidefinite"),
        (lambda: mse_lower_bound_from_fisher([1.0, math.inf]), "finite"),
        (lambda: mse_lower_bound_from_fisher([1.0], bias=[0.0, 1.0]), "bias.shape"),
        (lambda: mse_lower_bound_from_fisher([1.0], mean_jacobian=[[1.0, 0.0]]), "mean_jacobian.shape"),
        (lambda: mse_lower_bound_from_fisher(trace=1.0, dimension=2, bias=0.5), "information=None to be a matrix"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
