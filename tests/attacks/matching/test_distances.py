import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.attacks.matching.distances import Cosine, GaussianLikelihood, LayerwiseCosine, SquaredError
from reconrisk.core.errors import InvalidInput
from reconrisk.releases import GradientMap

DISTANCES = [SquaredError(), Cosine(), LayerwiseCosine(), LayerwiseCosine(ratio=0.5), GaussianLikelihood(7)]
SEEDS = st.integers(0, 2**31 - 1)
SCALES = st.floats(1e-3, 1e3)


def released(seed, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=rng, dtype=dtype),
        "bias": torch.randn(3, generator=rng, dtype=dtype),
        "head": torch.randn(2, 3, generator=rng, dtype=dtype),
    }


def flat(values):
    return np.concatenate([value.numpy().ravel() for value in values.values()])


def scaled(values, factor):
    return {name: factor * value for name, value in values.items()}


@given(SEEDS)
def test_the_squared_error_is_relative_to_the_size_of_what_was_observed(seed):
    candidate, observed = released(seed), released(seed + 1)
    expected = np.sum((flat(candidate) - flat(observed)) ** 2) / np.sum(flat(observed) ** 2)
    assert float(SquaredError()(candidate, observed)) == pytest.approx(expected, rel=1e-12)


@given(SEEDS)
def test_the_cosine_is_that_of_all_values_as_one_vector(seed):
    candidate, observed = released(seed), released(seed + 1)
    one, other = flat(candidate), flat(observed)
    expected = 1 - one @ other / np.sqrt((one @ one) * (other @ other))
    assert float(Cosine()(candidate, observed)) == pytest.approx(expected, rel=1e-10)


@given(SEEDS, st.floats(0.1, 2.0))
def test_the_layerwise_cosine_is_the_weighted_mean_over_tensors(seed, ratio):
    candidate, observed = released(seed), released(seed + 1)
    terms = [1 - torch.cosine_similarity(candidate[n].flatten(), observed[n].flatten(), dim=0) for n in observed]
    weights = [1.0, ratio, ratio**2]
    expected = float(sum(w * t for w, t in zip(weights, terms, strict=True))) / sum(weights)
    assert float(LayerwiseCosine(ratio)(candidate, observed)) == pytest.approx(expected, rel=1e-10)


@given(SEEDS)
def test_differences_of_the_likelihood_are_those_of_the_log_density_per_coordinate(seed):
    rng = torch.Generator().manual_seed(seed)
    observed, one, other = (torch.randn(5, generator=rng, dtype=torch.float64) for _ in range(3))
    std = 0.1 + torch.rand(5, generator=rng, dtype=torch.float64)

    def likelihood(mean):
        return float(GaussianLikelihood(3)({"w": mean / std}, {"w": observed / std}))

    def log_density(mean):
        return float(torch.distributions.Normal(mean, std).log_prob(observed).sum())

    expected = -(log_density(one) - log_density(other)) / 3
    assert likelihood(one) - likelihood(other) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("distance", DISTANCES, ids=repr)
def test_a_distance_is_zero_where_the_releases_agree_and_positive_elsewhere(distance):
    observed = released(0)
    assert float(distance(observed, observed)) == pytest.approx(0, abs=1e-30)
    assert float(distance(released(1), observed)) > 0.1


@given(SEEDS, SCALES, SCALES)
def test_the_cosines_do_not_see_the_scale_of_either_side(seed, factor, other):
    candidate, observed = released(seed), released(seed + 1)
    for distance in (Cosine(), LayerwiseCosine(0.7)):
        plain = float(distance(candidate, observed))
        assert float(distance(scaled(candidate, factor), scaled(observed, other))) == pytest.approx(plain, rel=1e-9)


@given(SEEDS, SCALES)
def test_the_squared_error_does_not_see_the_unit_of_the_update(seed, factor):
    candidate, observed = released(seed), released(seed + 1)
    plain = float(SquaredError()(candidate, observed))
    assert float(SquaredError()(scaled(candidate, factor), scaled(observed, factor))) == pytest.approx(plain, rel=1e-9)
    assert float(SquaredError()(scaled(candidate, 3.0), observed)) != pytest.approx(plain, rel=1e-2)


def test_the_cosine_keeps_its_digits_where_the_releases_almost_agree():
    observed = released(0, torch.float32)
    direction = released(1, torch.float64)
    close = {name: (value.double() + 1e-5 * direction[name]).float() for name, value in observed.items()}
    exact = float(Cosine()({n: v.double() for n, v in close.items()}, {n: v.double() for n, v in observed.items()}))
    assert exact < 1e-9  # below the float32 spacing at one, which one minus a cosine would round to
    assert float(Cosine()(close, observed)) == pytest.approx(exact, rel=0.05)  # 1e-7 / 1e-5 per value, averaged


def test_a_candidate_without_release_has_a_finite_cosine_and_derivative():
    observed = released(0)
    zero = {name: torch.zeros_like(value).requires_grad_() for name, value in observed.items()}
    value = Cosine()(zero, observed)
    value.backward()
    assert value.item() == pytest.approx(0.5, rel=1e-12)
    assert all(bool(tensor.grad.isfinite().all()) for tensor in zero.values())


def test_a_tensor_that_is_zero_in_the_observation_does_not_enter_the_layerwise_cosine():
    candidate, observed = released(0), released(1)
    without = float(LayerwiseCosine()(candidate, observed))
    more = {**candidate, "unused": torch.ones(5, dtype=torch.float64)}
    zeros = {**observed, "unused": torch.zeros(5, dtype=torch.float64)}
    assert float(LayerwiseCosine()(more, zeros)) == pytest.approx(without, rel=1e-12)


def test_a_gradient_that_is_rounding_alone_does_not_enter_the_layerwise_cosine():
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)).train()
    images = torch.rand(4, 1, 8, 8, generator=rng)
    one, other = (GradientMap(model)(batch, torch.tensor([0, 1])) for batch in images.split(2))
    assert 0 < float(other["0.bias"].norm()) < 1e-6  # batch norm takes any shift away
    without = float(LayerwiseCosine()(one, {n: v for n, v in other.items() if n != "0.bias"}))
    assert float(LayerwiseCosine()(one, other)) == pytest.approx(without, rel=1e-6)


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan")])
def test_a_ratio_that_is_not_positive_is_refused(ratio):
    with pytest.raises(InvalidInput, match="Expected ratio="):
        LayerwiseCosine(ratio)
