"""Each estimate against its closed form under noise, and against laws that hold for every record."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reconrisk.attacks.analytic.estimates import (
    james_stein,
    known_norm,
    known_scale,
    least_squares,
    posterior_mean,
    ratio,
    total_least_squares,
)
from reconrisk.attacks.first_layer import LayerGradient
from reconrisk.bounds.corridor import compare_simple_guesses
from reconrisk.bounds.gaussian_prior import gaussian_prior_success
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.observation import Observation
from reconrisk.core.threat import STRONGEST

DRAWS = 700


def side(dimension, norm=None):
    """An observation of which estimates use shape, range and norm alone."""
    norms = None if norm is None else torch.tensor([norm], dtype=torch.float64)
    released = {"w": torch.ones(1)}
    return Observation(released, dict, STRONGEST, (dimension,), (-1e6, 2e6), record_norms=norms)


def layer(record, scales, noise, rng, *, bias=True, known=False, planted=False):
    """Rows s_j x and s_j with noise of one standard deviation."""
    scales = torch.as_tensor(scales, dtype=torch.float64)
    weight = scales[:, None] * record + noise * torch.randn(len(scales), len(record), generator=rng).double()
    one = scales + noise * torch.randn(len(scales), generator=rng).double()
    precision = 1 / noise**2 if noise else 1.0
    return LayerGradient(
        name="w",
        weight=weight,
        weight_precision=torch.full((len(scales), 1), precision, dtype=torch.float64),
        bias=one if bias else None,
        bias_precision=torch.full((len(scales),), precision, dtype=torch.float64) if bias else None,
        noisy=noise > 0,
        reads_record=True,
        planted=scales if planted else None,
        scales=scales if known else None,
    )


def errors(estimate, record, scales, noise, *, draws=DRAWS, norm=None, **options):
    rng, given_side = torch.Generator().manual_seed(0), side(len(record), norm)
    found = [estimate(layer(record, scales, noise, rng, **options), given_side) for _ in range(draws)]
    return (torch.stack(found) - record).square().mean(1).numpy()


def assert_mean(values, expected):
    assert values.mean() == pytest.approx(expected, abs=4.5 * values.std() / math.sqrt(len(values)))


def record(dimension, seed=0):
    return torch.rand(dimension, generator=torch.Generator().manual_seed(seed)).double()


def test_known_scales_of_unequal_size_have_the_least_variance():
    scales, noise, target = [1.0, 0.1, -2.0], 0.3, record(6)
    variance = noise**2 / (1 + 0.01 + 4)
    found = errors(known_scale(), target, scales, noise, known=True)
    assert stats.kstest(6 * found / variance, stats.chi2(6).cdf).pvalue > 0.01
    # equation 14 of riess2025, the plain mean of rows over scales, has 1/M^2 sum 1/s^2 instead
    assert noise**2 * (1 + 100 + 0.25) / 9 > 50 * variance


@pytest.mark.parametrize(("dimension", "noise"), [(3, 0.2), (64, 0.2), (64, 0.05)])
def test_shrinkage_has_the_error_of_james_and_stein(dimension, noise):
    target = record(dimension, seed=2)
    norm = float(target.norm())
    reach = compare_simple_guesses(Gaussian(noise), dimension=dimension, norm=norm, mse=1e-3)
    assert reach.shrinkage_mse < reach.attack_mse
    # the factor is positive in all but a few of these draws, where the positive part is the plain form
    found = errors(james_stein(), target, [1.0], noise * norm, known=True)
    assert_mean(found, reach.shrinkage_mse)


def test_shrinkage_by_hand():
    # rows 2x and x with noise .5: v = .25/5, y = (2 w_1 + w_2)/5
    seen = layer(record(5), [2.0, 1.0], 0.5, torch.Generator().manual_seed(5), known=True)
    mean, variance = seen.weighted_mean(seen.scales)
    rows = seen.weight.numpy()
    by_hand = (2 * rows[0] + rows[1]) / 5
    np.testing.assert_allclose(mean, by_hand)
    np.testing.assert_allclose(variance, np.full(5, 0.05))
    shrunk = 0.1 + (1 - 3 * 0.05 / ((by_hand - 0.1) ** 2).sum()) * (by_hand - 0.1)
    np.testing.assert_allclose(james_stein(toward=0.1)(seen, side(5)), shrunk)


def test_shrinkage_does_not_turn_a_record_of_all_noise_around():
    # Plain James-Stein has expected error 2v/d at zero; the positive part less.
    found = errors(james_stein(), torch.zeros(10).double(), [1.0], 1.0, known=True)
    assert found.mean() < 2 / 10


def test_shrinkage_goes_where_it_is_told_and_stays_in_two_dimensions():
    target = torch.full((50,), 0.5).double()
    told, untold = (errors(james_stein(toward=c), target, [1.0], 1.0, known=True, draws=300) for c in (0.5, 0.0))
    assert told.mean() < 0.2 * untold.mean()
    rng = torch.Generator().manual_seed(0)
    flat = layer(record(2), [1.0], 5.0, rng, known=True)
    torch.testing.assert_close(james_stein()(flat, side(2)), known_scale()(flat, side(2)))


@pytest.mark.parametrize("share", [0.6, 1.0, 1.3])
def test_the_posterior_mean_succeeds_as_often_as_any_attack_can(share):
    dimension, prior_std, noise, scales = 8, 0.5, 0.7, [1.0, 1.0, 0.5]
    deviation = noise / math.sqrt(2.25)
    expected = 1 / (1 / prior_std**2 + 1 / deviation**2)
    rng, found = torch.Generator().manual_seed(0), []
    estimate = posterior_mean(mean=0.3, std=prior_std)
    for _ in range(DRAWS):
        target = 0.3 + prior_std * torch.randn(dimension, generator=rng).double()
        seen = layer(target, scales, noise, rng, known=True)
        found.append(float((estimate(seen, side(dimension)) - target).square().mean()))
    assert_mean(np.array(found), expected)
    bound = gaussian_prior_success(deviation, dimension=dimension, prior_std=prior_std, mse=share * expected).value
    slack = 4.5 * math.sqrt(bound * (1 - bound) / DRAWS)
    assert np.mean(np.array(found) <= share * expected) == pytest.approx(bound, abs=slack)


def test_a_wide_prior_does_not_matter_and_a_narrow_one_decides():
    seen = layer(record(5), [1.0], 0.1, torch.Generator().manual_seed(0), known=True)
    plain = known_scale()(seen, side(5))
    torch.testing.assert_close(posterior_mean(mean=3.0, std=1e6)(seen, side(5)), plain, rtol=0, atol=1e-6)
    prior = torch.arange(5.0)
    narrow = posterior_mean(mean=prior, std=torch.full((5,), 1e-6))(seen, side(5))
    torch.testing.assert_close(narrow, prior.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dimension", "noise", "share"), [(4, 0.1, 0.3), (4, 0.5, 0.5), (40, 0.1, 0.7)])
def test_the_known_norm_estimate_attains_the_guarantee(dimension, noise, share):
    norm = 2.0
    threshold = share * noise**2 * norm**2
    bound = from_scratch_success(Gaussian(noise), dimension=dimension, norm=norm, mse=threshold).value
    rng, estimate, hits = torch.Generator().manual_seed(0), known_norm(success_mse=threshold), 0
    for _ in range(DRAWS):
        target = torch.randn(dimension, generator=rng).double()
        target = norm * target / target.norm()
        # riess2025 equation 19: the direction with noise sigma, here in three rows that share it
        seen = layer(target / norm, [3**-0.5] * 3, noise, rng, bias=False, planted=True)
        hits += float((estimate(seen, side(dimension, norm)) - target).square().mean()) <= threshold
    assert 0.1 < bound < 0.95
    assert hits / DRAWS == pytest.approx(bound, abs=4.5 * math.sqrt(bound * (1 - bound) / DRAWS))


def test_a_norm_within_the_threshold_gives_zero():
    seen = layer(record(3), [1.0], 0.1, torch.Generator().manual_seed(0))
    assert not bool(known_norm(success_mse=10.0)(seen, side(3, 1.0)).any())
    torch.testing.assert_close(float(known_norm()(seen, side(3, 1.7)).norm()), 1.7)


def ratio_cdf(value, mean, scale, noise):
    """P(W/b <= t) for independent W ~ N(mean, noise^2), b ~ N(scale, noise^2)."""
    difference, deviation = mean - value * scale, noise * math.sqrt(1 + value * value)
    correlation = -value / math.sqrt(1 + value * value)
    normal = stats.multivariate_normal(cov=[[1, correlation], [correlation, 1]])
    below, positive = -difference / deviation, scale / noise
    both_negative = normal.cdf([below, -positive])  # D <= 0 and b <= 0
    return float(stats.norm.cdf(below) - both_negative + stats.norm.cdf(-positive) - both_negative)


def test_riess2025_equation_13_is_a_ratio_of_normals_and_not_cauchy():
    # One neuron, one value. "The ratio of two Gaussian distributions follows the Cauchy distribution": only if both
    # means vanish.
    target, scale, noise, rng = 0.7, 1.0, 0.3, torch.Generator().manual_seed(0)
    one, empty = torch.tensor([target]).double(), side(1)
    drawn = np.array([float(ratio()(layer(one, [scale], noise, rng), empty)[0]) for _ in range(DRAWS)])
    exact = np.vectorize(lambda value: ratio_cdf(value, scale * target, scale, noise))
    points = np.quantile(drawn, [0.02, 0.2, 0.5, 0.8, 0.98])
    measured = np.array([(drawn <= point).mean() for point in points])
    slack = 4.5 * math.sqrt(0.25 / DRAWS)
    np.testing.assert_allclose(exact(points), measured, atol=slack)
    low, middle, high = np.quantile(drawn, [0.25, 0.5, 0.75])
    cauchy = stats.cauchy(middle, (high - low) / 2)
    assert abs(cauchy.cdf(points[-1]) - 0.98) > 4.5 * math.sqrt(0.98 * 0.02 / DRAWS)
    centred = np.array([float(ratio()(layer(0 * one, [1e-9], noise, rng), empty)[0]) for _ in range(DRAWS)])
    assert stats.kstest(centred, stats.cauchy.cdf).pvalue > 0.01


def test_the_ratio_takes_the_neuron_that_stands_out_of_its_noise():
    seen = layer(record(4), [0.1, 3.0, -0.5], 0.1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(ratio()(seen, side(4)), seen.weight[1] / seen.bias[1])


@pytest.mark.parametrize("neurons", [1, 5, 40])
def test_total_least_squares_is_the_leading_singular_vector(neurons):
    seen = layer(record(7), np.linspace(-1, 2, neurons) + 0.01, 0.2, torch.Generator().manual_seed(1))
    joined = np.concatenate([seen.weight.numpy(), seen.bias.numpy()[:, None]], 1)
    leading = np.linalg.svd(joined)[2][0]
    np.testing.assert_allclose(total_least_squares()(seen, side(7)), leading[:-1] / leading[-1], rtol=1e-8)


def test_total_least_squares_has_the_error_of_maximum_likelihood_where_least_squares_is_drawn_to_zero():
    # To first order in the noise: x_hat - x = sum s_j (n_j - x m_j) / |s|^2, of covariance tau^2/|s|^2 (I + x x^T).
    target, noise, neurons = record(10), 0.2, 400
    scales = torch.randn(neurons, generator=torch.Generator().manual_seed(3)).double()
    total = float(scales @ scales)
    expected = noise**2 / total * (1 + float(target @ target) / 10)
    found = errors(total_least_squares(), target, scales, noise, draws=300)
    # second order: relative 1/(signal to noise per value), here M tau^2/|s|^2 = 4 %
    assert found.mean() == pytest.approx(expected, rel=0.04 + 4.5 * found.std() / found.mean() / math.sqrt(300))
    drawn = errors(least_squares(), target, scales, noise, draws=300)
    bias = (1 / (1 + neurons * noise**2 / total) - 1) ** 2 * float(target @ target) / 10
    assert drawn.mean() > 1.5 * found.mean()
    assert drawn.mean() == pytest.approx(bias + expected, rel=0.15)


def test_entries_of_unequal_noise_are_weighted():
    # Oracle: a general optimiser on the weighted sum of squares over (scales, record).
    rng = torch.Generator().manual_seed(4)
    seen = layer(record(3), [1.0, -0.5, 0.8], 0.3, rng)
    precision = torch.rand(3, 3, generator=rng).double() + 0.1
    precision[0, 1] = 0.0
    uneven = LayerGradient("w", seen.weight, precision, seen.bias, torch.tensor([1.0, 4.0, 0.0]).double(), True, True)
    found = total_least_squares()(uneven, side(3))

    def loss(x):
        stretched = torch.cat([x, torch.ones(1).double()])
        values = torch.cat([uneven.weight, uneven.bias[:, None]], 1)
        weights = torch.cat([precision, uneven.bias_precision[:, None]], 1)
        scales = (weights * values) @ stretched / (weights @ stretched.square())
        return (weights * (values - scales[:, None] * stretched).square()).sum()

    start = found.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(start), start)
    assert float(slope.norm()) < 1e-6
    for step in 0.01 * torch.randn(20, 3, generator=rng).double():
        assert float(loss(found + step)) > float(loss(found))


ALL = [
    least_squares(),
    ratio(),
    total_least_squares(),
    known_scale(),
    james_stein(),
    known_norm(),
    known_norm(success_mse=0.01),
    posterior_mean(mean=0.0, std=0.5),
]


@pytest.mark.parametrize("estimate", ALL, ids=repr)
@given(seed=st.integers(0, 10_000), dimension=st.integers(1, 12), neurons=st.integers(1, 8))
def test_turning_the_record_turns_the_estimate_and_the_order_of_neurons_does_not_matter(
    estimate, seed, dimension, neurons
):
    rng = torch.Generator().manual_seed(seed)
    scales = torch.rand(neurons, generator=rng).double() + 0.5
    seen = layer(record(dimension, seed), scales, 0.1, rng, known=True)
    empty = side(dimension, 1.3)
    found = estimate(seen, empty)
    assert bool(found.isfinite().all())
    turn = torch.linalg.qr(torch.randn(dimension, dimension, generator=rng).double()).Q
    order = torch.randperm(neurons, generator=rng)
    moved = LayerGradient(
        "w",
        (seen.weight @ turn.T)[order],
        seen.weight_precision,
        seen.bias[order],
        seen.bias_precision,
        True,
        True,
        scales=scales[order],
    )
    torch.testing.assert_close(estimate(moved, empty), turn @ found, rtol=1e-6, atol=1e-8)


def test_bad_settings_are_refused():
    for make, message in (
        (lambda: known_norm(success_mse=-1.0), "success_mse=-1.0 >= 0"),
        (lambda: james_stein(toward=math.inf), "toward=inf to be finite"),
        (lambda: posterior_mean(mean=0.0, std=0.0), r"std=0.0 > 0. Pass the standard deviation"),
        (lambda: posterior_mean(mean=math.nan, std=1.0), "mean=nan to be a number"),
        (lambda: posterior_mean(mean=0.0, std=torch.tensor([1.0, 0.0])), r"std.min\(\)=0.0 > 0"),
        (lambda: posterior_mean(mean=torch.tensor([math.inf]), std=1.0), "mean to be finite"),
    ):
        with pytest.raises(InvalidInput, match=message):
            make()
    seen = layer(record(3), [1.0], 0.1, torch.Generator().manual_seed(0), known=True)
    with pytest.raises(InvalidInput, match=r"mean.shape=\(2,\) to be \(3,\)"):
        posterior_mean(mean=torch.zeros(2), std=1.0)(seen, side(3))
    assert repr(posterior_mean(mean=torch.zeros(2), std=1.0)) == "PosteriorMean(mean=tensor of shape (2,), std=1.0)"
