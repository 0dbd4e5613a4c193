"""The law of riess2025's attack against simulation of the mechanism, and its inverses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from reconrisk.bounds.analytic_inversion import (
    analytic_inversion_law,
    neurons_needed,
    noise_multiplier_from_success,
    training_run_law,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate, Guarantee, Law
from reconrisk.core.mechanism import ApproximateDP, Composed, Gaussian, dp_sgd
from reconrisk.core.storage.serialization import from_json, to_json

DRAWS = 20_000


def _errors_of_the_attack(rng, target, noise_multiplier, observations=1):
    """Clip the gradient of a planted linear layer, add noise, rescale, average: the attack as riess2025 runs it."""
    norm = np.linalg.norm(target)
    released = target / norm + noise_multiplier * rng.standard_normal((observations, DRAWS, len(target)))
    return (((norm * released).mean(0) - target) ** 2).mean(1)


@pytest.mark.parametrize(("dimension", "observations"), [(1, 1), (4, 1), (64, 1), (16, 5)])
def test_law_is_that_of_the_simulated_attack(dimension, observations):
    rng = np.random.default_rng(7)
    target = rng.random(dimension) + 0.1
    law = analytic_inversion_law(
        Gaussian(0.3), dimension=dimension, norm=float(np.linalg.norm(target)), observations=observations
    )
    errors = _errors_of_the_attack(rng, target, 0.3, observations)
    # At a true null the Kolmogorov-Smirnov p-value is uniform: 1e-4 is the chance of a false alarm, the seed is fixed.
    assert stats.kstest(errors, lambda x: law.cdf(x)).pvalue > 1e-4
    assert errors.mean() == pytest.approx(law.expected_mse, rel=5 * math.sqrt(2 / dimension / DRAWS))


def test_law_of_a_run_is_that_of_the_simulated_run():
    rng = np.random.default_rng(3)
    norm, dimension = 2.0, 8
    run = dp_sgd(noise_multiplier=0.8, sampling_probability=0.1, steps=20)
    law = training_run_law(run, dimension=dimension, norm=norm)
    hits = rng.binomial(20, 0.1, DRAWS)
    noise = 0.8 * norm / np.sqrt(np.maximum(hits, 1))
    errors = np.where(hits > 0, noise**2 * rng.chisquare(dimension, DRAWS) / dimension, math.inf)
    for threshold in (0.1, 0.5, 1.0, 3.0):
        # Five standard errors of a binomial proportion.
        assert law.success(mse=threshold) == pytest.approx((errors <= threshold).mean(), abs=5 * 0.5 / math.sqrt(DRAWS))
    assert law.expected_mse == math.inf


def test_run_of_batches_of_one_record_equals_the_direct_sum():
    law = training_run_law(Gaussian(0.5), dimension=6, norm=1.0, attempts=300, hit_probability=1 / 50)
    counts = np.arange(1, 301)
    direct = stats.binom.pmf(counts, 300, 1 / 50) @ special.gammainc(3.0, counts * 3 * 0.02 / 0.25)
    assert law.success(mse=0.02) == pytest.approx(direct, rel=1e-11)


def test_certain_hits_are_repeated_observations():
    run = training_run_law(dp_sgd(noise_multiplier=0.5, steps=9), dimension=6, norm=1.0)
    repeated = analytic_inversion_law(dp_sgd(noise_multiplier=0.5, steps=9), dimension=6, norm=1.0, observations=9)
    assert run.log_success(mse=0.01) == pytest.approx(repeated.log_success(mse=0.01), rel=1e-12)
    assert run.expected_mse == pytest.approx(repeated.expected_mse)


def test_run_law_in_log_space_at_imagenet_size():
    law = training_run_law(
        dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=10_000), dimension=150_528, norm=100.0
    )
    value = law.log_success(mse=5.0)
    counts = np.arange(1, 10_001)
    one = analytic_inversion_law(Gaussian(1.0), dimension=150_528, norm=100.0)
    every = special.logsumexp(law.hits.log_pmf(counts) + one.log_cdf(5.0 * counts))
    assert value == pytest.approx(every, rel=1e-12)
    assert value < -3000


def test_density_integrates_to_the_distribution():
    law = analytic_inversion_law(Gaussian(0.4), dimension=5, norm=2.0)
    total, _ = integrate.quad(law.pdf, 0, 0.8)
    assert total == pytest.approx(law.success(mse=0.8), rel=1e-9)
    run = training_run_law(dp_sgd(noise_multiplier=0.4, sampling_probability=0.2, steps=5), dimension=5, norm=2.0)
    total, _ = integrate.quad(run.pdf, 0, 0.8)
    assert total == pytest.approx(run.success(mse=0.8), rel=1e-8)


@pytest.mark.parametrize(("dimension", "expected"), [(1, math.inf), (2, 1 / 0.25), (3, 0.0)])
def test_density_at_zero(dimension, expected):
    assert analytic_inversion_law(Gaussian(0.5), dimension=dimension, norm=1.0).pdf(0.0) == pytest.approx(expected)


@given(
    noise=st.floats(0.01, 10),
    dimension=st.integers(1, 150_528),
    norm=st.floats(0.1, 300),
    probability=st.floats(1e-9, 0.999),
)
@settings(max_examples=60, deadline=None)
def test_quantile_and_noise_undo_success(noise, dimension, norm, probability):
    law = analytic_inversion_law(Gaussian(noise), dimension=dimension, norm=norm)
    threshold = law.quantile(probability)
    assert law.success(mse=threshold) == pytest.approx(probability, rel=1e-8)
    back = noise_multiplier_from_success(probability, dimension=dimension, norm=norm, mse=threshold)
    assert back == pytest.approx(noise, rel=1e-9)


@given(probability=st.floats(1e-6, 0.8), steps=st.integers(1, 200))
@settings(max_examples=20, deadline=None)
def test_quantile_of_a_run(probability, steps):
    law = training_run_law(dp_sgd(noise_multiplier=1.0, sampling_probability=0.05, steps=steps), dimension=10, norm=1.0)
    threshold = law.quantile(probability)
    if math.isinf(threshold):
        assert 1 - 0.95**steps <= probability * (1 + 1e-12)
    else:
        assert law.success(mse=threshold) == pytest.approx(probability, rel=1e-9)


def test_tail_of_ten_to_the_minus_5000():
    law = analytic_inversion_law(Gaussian(1.0), dimension=150_528, norm=388.0)
    threshold = law.quantile_from_log(-5000 * math.log(10))
    assert law.log_success(mse=threshold) == pytest.approx(-5000 * math.log(10), rel=1e-12)
    assert law.success(mse=threshold) == 0


def test_psnr_is_the_same_threshold():
    law = analytic_inversion_law(Gaussian(0.05), dimension=12, norm=2.0)
    assert law.success(psnr=20.0) == law.success(mse=0.01)
    assert law.success(psnr=20.0, data_range=255.0) == law.success(mse=650.25)


def test_values_of_formulas_2():
    # d = 784, sigma = .05, eta = .6 v: the law gives 7e-21 where the guarantee is 1.
    law = analytic_inversion_law(Gaussian(0.05), dimension=784, norm=1.0)
    assert law.success(mse=0.6 * 0.0025) == pytest.approx(7e-21, rel=0.1)


def test_it_says_whose_law_it_is_and_is_no_bound():
    law = analytic_inversion_law(Gaussian(1.0), dimension=4, norm=1.0)
    for text in (str(law), repr(law)):
        assert "riess2025" in text
        assert "not a bound on other attacks" in text
    assert isinstance(law, Law)
    assert not isinstance(law, (Guarantee, Estimate))


def test_json_round_trip():
    law = training_run_law(dp_sgd(noise_multiplier=1.0, sampling_probability=0.05, steps=7), dimension=10, norm=1.0)
    assert from_json(to_json(law)) == law


def test_clip_norm_cancels():
    laws = [
        analytic_inversion_law(Gaussian(0.5, clip), dimension=3, norm=2.0).success(mse=0.5) for clip in (0.1, 1, 10)
    ]
    assert laws[0] == laws[1] == laws[2]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dimension": 0}, "dimension=0 >= 1"),
        ({"dimension": 2.5}, "dimension=2.5 to be a whole number"),
        ({"norm": 0.0}, "norm=0.0 > 0"),
        ({"norm": math.nan}, "norm=nan"),
        ({"observations": 0}, "observations=0 >= 1"),
        ({"mechanism": ApproximateDP(1.0, 1e-5)}, "mechanism=ApproximateDP"),
        ({"mechanism": Composed((Gaussian(1.0), Gaussian(2.0)))}, "to have one phase"),
        ({"mechanism": dp_sgd(noise_multiplier=1.0, steps=3), "observations": 4}, "observations=4 <= 3"),
    ],
)
def test_bad_input_is_named(setting, message):
    arguments = {"mechanism": Gaussian(1.0), "dimension": 4, "norm": 1.0} | setting
    with pytest.raises(InvalidInput, match=message):
        analytic_inversion_law(arguments.pop("mechanism"), **arguments)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_noise_for_an_impossible_probability_is_refused(bad):
    with pytest.raises(InvalidInput, match="success_probability"):
        noise_multiplier_from_success(bad, dimension=4, norm=1.0, mse=0.1)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, [0.1, -1.0]])
def test_errors_outside_the_scale_are_refused(bad):
    with pytest.raises(InvalidInput, match="mse"):
        analytic_inversion_law(Gaussian(1.0), dimension=4, norm=1.0).cdf(bad)


def test_a_record_that_is_never_sampled_has_no_run_law():
    with pytest.raises(InvalidInput, match="hit_probability"):
        training_run_law(Gaussian(1.0), dimension=2, norm=1.0, hit_probability=0.0)


def test_neurons_make_clipping_bind():
    assert neurons_needed(1.0, norm=2.0) == 1
    rng = np.random.default_rng(0)
    for clip in (0.5, 3.0, 7.3):
        target = rng.random(5)
        count = neurons_needed(clip, norm=float(np.linalg.norm(target)))
        gradient = np.tile(target, (count, 1))  # unit loss weights: every neuron's gradient is the record
        assert np.linalg.norm(gradient) >= clip
        if count > 1:
            assert np.linalg.norm(gradient[1:]) < clip
