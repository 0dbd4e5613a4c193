import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import chi2

from reconrisk.bounds import prior_success
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json, to_json

PRIORS = {
    "ball": lambda mse, d: prior_success.uniform_ball(dimension=d, radius=2.0, mse=mse),
    "box": lambda mse, d: prior_success.uniform_box(sides=1.5, dimension=d, mse=mse),
    "gaussian": lambda mse, d: prior_success.gaussian(dimension=d, prior_std=0.7, mse=mse),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 50, 784])
def test_grows_from_zero_to_one_with_the_threshold(prior, dimension):
    logs = [prior(mse, dimension).log_value for mse in np.concatenate([[0.0], np.geomspace(1e-4, 50, 60)])]
    assert logs[0] == -math.inf
    assert logs == sorted(logs)
    assert logs[-1] == pytest.approx(0.0, abs=1e-6)
    assert max(logs) <= 0


@given(st.integers(1, 200), st.floats(1e-4, 5))
def test_the_gaussian_prior_is_the_chi_square(dimension, mse):
    exact = chi2.logcdf(dimension * mse, dimension)
    if exact > -600:
        got = prior_success.gaussian(dimension=dimension, prior_std=1.0, mse=mse).log_value
        assert exact - 1e-10 <= got <= exact + 2e-9 + 1e-9 * abs(exact)


def test_priors_reach_minus_ten_thousand():
    assert prior_success.gaussian(dimension=150_528, prior_std=1.0, mse=0.2).log_value < -1e4
    assert prior_success.uniform_ball(dimension=10_000, radius=300.0, mse=1.0).log_value < -1e4
    assert prior_success.uniform_box(sides=1.0, dimension=150_528, mse=0.05).log_value < -1e4
    assert prior_success.uniform_ball(dimension=10_000, radius=300.0, mse=1.0).value == math.ulp(0.0)


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_the_ball_is_a_ratio_of_volumes(dimension):
    assert prior_success.uniform_ball(dimension=dimension, radius=3.0, mse=1.0 / dimension).value == pytest.approx(
        3.0**-dimension
    )


@pytest.mark.parametrize(
    ("sides", "mse"),
    [([1.0] * 3, 0.12), ([1.0] * 5, 0.07), ([1.0, 2.0, 3.0, 0.5], 0.25), ([2.0, 1.0], 0.3), ([1.0] * 30, 0.065)],
)
def test_the_box_agrees_with_simulation(sides, mse):
    rng = np.random.default_rng(5)
    draws = 200_000
    points = (rng.random((draws, len(sides))) - 0.5) * sides
    rate = float(((points**2).mean(1) <= mse).mean())
    bound = prior_success.uniform_box(sides=sides, mse=mse).value
    assert abs(bound - rate) <= 5 * math.sqrt(rate * (1 - rate) / draws) + 1e-4 * bound


@pytest.mark.parametrize("radius", [0.51, 0.6, 0.7, 0.8])
def test_the_cube_agrees_with_integration_over_slices(radius):
    def slice_area(z):
        """Of the disc of the sphere's slice at height z within the unit square, by its half-chords."""
        square = radius**2 - z**2
        if square <= 0:
            return 0.0
        reach = min(0.5, math.sqrt(square))
        corner = math.sqrt(max(square - 0.25, 0.0))
        return (
            4 * quad(lambda x: min(0.5, math.sqrt(max(square - x * x, 0.0))), 0, reach, points=[min(corner, reach)])[0]
        )

    exact = 2 * quad(slice_area, 0, min(0.5, radius), limit=200)[0]
    bound = prior_success.uniform_box(sides=1.0, dimension=3, mse=radius**2 / 3).value
    assert exact - 1e-6 <= bound <= exact * (1 + 1e-4)


def test_the_box_is_continuous_where_the_ball_touches_its_sides():
    for d in (2, 3, 20):
        inside, outside = (
            prior_success.uniform_box(sides=1.0, dimension=d, mse=0.25 / d * (1 + shift)).log_value
            for shift in (-1e-7, 1e-7)
        )
        assert outside == pytest.approx(inside, abs=1e-4)


def test_the_centre_is_the_best_guess_in_a_box():
    rng = np.random.default_rng(6)
    points = rng.random((100_000, 3))
    bound = prior_success.uniform_box(sides=1.0, dimension=3, mse=0.1).value
    for guess in ([0.5, 0.5, 0.5], [0.3, 0.5, 0.6], [0.0, 0.0, 0.0]):
        rate = float((((points - guess) ** 2).mean(1) <= 0.1).mean())
        assert rate <= bound + 5 * math.sqrt(0.25 / 100_000)


def test_candidates_by_weight_and_by_distance():
    points = [[0.0, 0.0], [0.1, 0.0], [3.0, 0.0], [3.0, 0.3]]
    weights = [0.4, 0.1, 0.3, 0.2]
    assert prior_success.candidate_set(weights).value == pytest.approx(0.4)
    near = prior_success.candidate_set(weights, candidates=points, mse=0.02)
    assert near.value == pytest.approx(0.5)
    assert not near.exact
    assert prior_success.candidate_set(weights, candidates=points, mse=10.0).value == pytest.approx(1.0)


def test_the_certificate_covers_guesses_between_candidates():
    # Four corners of a square: the guess in the middle reaches all of them, no corner reaches another.
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    mse = 0.25  # distance sqrt(2 * .25) = .7071 from the middle to each corner
    assert prior_success.candidate_set([0.25] * 4, candidates=corners, mse=mse).value == pytest.approx(1.0)


def test_an_empirical_prior_covers_the_truth():
    truth = prior_success.gaussian(dimension=3, prior_std=1.0, mse=0.3).value
    rng = np.random.default_rng(8)
    intervals = [prior_success.empirical(rng.normal(size=(400, 3)), mse=0.3) for _ in range(60)]
    missed = sum(not interval.low <= truth <= interval.high for interval in intervals)
    assert missed <= 9  # binomial(60, .05) exceeds 9 with probability 1e-3
    assert all(interval.low <= interval.value <= interval.high for interval in intervals)


def test_an_empirical_prior_on_two_points_is_bounded_by_the_root_of_one_half():
    sample = np.random.default_rng(10).integers(0, 2, (2000, 1)) * 10.0
    measured = prior_success.empirical(sample, mse=0.1)
    assert measured.low <= 0.5 <= measured.high
    assert measured.high == pytest.approx(math.sqrt(0.5), abs=0.05)


def test_the_best_guess_of_the_sample_is_not_a_bound():
    # Why the upper end comes from pairs: an interval at the best guess seen misses the supremum if no guess was good.
    rng = np.random.default_rng(9)
    truth = prior_success.gaussian(dimension=20, prior_std=1.0, mse=0.6).value
    measured = prior_success.empirical(rng.normal(size=(1000, 20)), mse=0.6)
    assert measured.value < truth <= measured.high


def test_a_prior_survives_json():
    prior = PriorSuccess(-1e4, "uniform", exact=False)
    assert from_json(to_json(prior)) == prior


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PriorSuccess(0.1, "x"), "log_value"),
        (lambda: PriorSuccess(math.nan, "x"), "log_value"),
        (lambda: prior_success.uniform_ball(dimension=0, radius=1.0, mse=0.1), "dimension"),
        (lambda: prior_success.uniform_ball(dimension=2.5, radius=1.0, mse=0.1), "dimension"),
        (lambda: prior_success.uniform_ball(dimension=2, radius=0.0, mse=0.1), "radius"),
        (lambda: prior_success.uniform_ball(dimension=2, radius=1.0, mse=-0.1), "mse"),
        (lambda: prior_success.gaussian(dimension=2, prior_std=-1.0, mse=0.1), "prior_std"),
        (lambda: prior_success.gaussian(dimension=2, prior_std=1.0, mse=math.nan), "mse"),
        (lambda: prior_success.uniform_box(sides=[1.0, 0.0], mse=0.1), "sides"),
        (lambda: prior_success.uniform_box(sides=[1.0, 2.0], dimension=3, mse=0.1), "sides"),
        (lambda: prior_success.candidate_set([0.5, 0.6]), "weights"),
        (lambda: prior_success.candidate_set([1.5, -0.5]), "weights"),
        (lambda: prior_success.candidate_set([]), "weights"),
        (lambda: prior_success.candidate_set([1.0], mse=0.1), "candidates"),
        (lambda: prior_success.candidate_set([0.5, 0.5], candidates=[[0.0]], mse=0.1), "candidates"),
        (lambda: prior_success.candidate_set([1.0], candidates=[[math.nan]], mse=0.1), "candidates"),
        (lambda: prior_success.empirical([[0.0], [1.0]], mse=0.1), "sample"),
        (lambda: prior_success.empirical([0.0, 1.0], mse=0.1), "sample"),
    ],
)
def test_bad_input_is_refused_by_name(make, name):
    with pytest.raises(InvalidInput, match=name):
        make()


@pytest.mark.parametrize(
    ("dimension", "square", "expected"),
    [(10, 0.3, 6.614753e-4), (784, 0.95, 1.18374e-10), (2, 0.75, 1 / 3), (3, 0.75, 0.25)],
)
def test_the_largest_cap_has_its_share_of_the_sphere(dimension, square, expected):
    found = prior_success.uniform_sphere(dimension=dimension, norm=2.0, mse=4 * square / dimension)
    assert found.value == pytest.approx(expected, rel=1e-6)
    assert "uniform on the sphere of norm 2" in found.belief


@pytest.mark.parametrize(("dimension", "square"), [(3, 0.4), (6, 0.5), (12, 0.7)])
def test_no_guess_at_a_direction_beats_the_largest_cap(dimension, square):
    rng = np.random.default_rng(dimension)
    points = rng.normal(size=(200_000, dimension))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    bound = prior_success.uniform_sphere(dimension=dimension, norm=1.0, mse=square / dimension).value
    error = 4 * math.sqrt(bound / len(points))
    shares = []
    for length in (0.0, 0.5 * math.sqrt(1 - square), math.sqrt(1 - square), 1.0, 1.2):
        guess = np.zeros(dimension)
        guess[0] = length
        shares.append(float(np.mean(((points - guess) ** 2).sum(1) <= square)))
    assert max(shares) <= bound + error
    assert shares[2] >= bound - error  # the centre of the cap attains it


@pytest.mark.parametrize(("dimension", "square"), [(50, 0.2), (784, 0.3), (3072, 0.5), (20_000, 0.99), (3, 1e-220)])
def test_tiny_shares_keep_their_logarithm(dimension, square):
    with mpmath.workdps(60):
        exact = mpmath.betainc((dimension - 1) / 2, 0.5, 0, mpmath.mpf(square), regularized=True) / 2
        expected = float(mpmath.log(exact))
    found = prior_success.uniform_sphere(dimension=dimension, norm=1.0, mse=square / dimension).log_value
    assert expected <= found <= expected + 2e-3 + 1e-8


def test_a_sphere_has_two_points_in_one_dimension_and_is_guessed_beyond_its_radius():
    assert prior_success.uniform_sphere(dimension=1, norm=1.0, mse=0.0).value == 0.5
    assert prior_success.uniform_sphere(dimension=3, norm=1.0, mse=0.0).value == 0.0
    assert prior_success.uniform_sphere(dimension=3, norm=1.0, mse=1 / 3).value == 1.0
    with pytest.raises(InvalidInput, match="norm"):
        prior_success.uniform_sphere(dimension=3, norm=0.0, mse=0.1)
