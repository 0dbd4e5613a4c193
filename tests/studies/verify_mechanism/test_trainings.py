"""Final models: canaries are guessed from a training with a known answer."""

import math

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Neighbouring
from reconrisk.statistics.privacy_lower_bounds import gaussian_cap, gaussian_epsilon, one_run_epsilon, one_run_mu
from reconrisk.studies.verify_mechanism.claims import epsilon_with_less_noise, scale_noise, trade_off_of
from reconrisk.studies.verify_mechanism.result import Verdict

DIMENSION = 40
RECORDS = (torch.zeros(3, DIMENSION), torch.zeros(3))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


class Mean(nn.Module):
    """Released noisy sum; its "loss" of a record is minus the product with it, the optimal score."""

    def __init__(self, total):
        super().__init__()
        self.total = total

    def forward(self, records):
        return records @ self.total


def product_loss(outputs, labels):
    return -outputs.sum()


def training(noise, seed=0):
    """Sum of records of norm at most one, plus noise: the Gaussian mechanism."""
    source = rng(seed)

    def train(inputs, labels):
        return Mean(inputs.sum(0) + noise * torch.randn(DIMENSION, generator=source))

    return train


def canaries(count):
    return torch.eye(DIMENSION)[:count], torch.zeros(count)


def verify(noise, claimed, count=1, **given):
    return rr.verify_mechanism(
        training(noise),
        RECORDS,
        claimed=claimed,
        loss_fn=product_loss,
        canary=canaries(count),
        **{"rng": rng(1), **given},
    )


def test_a_sound_training_is_never_called_consistent():
    found = verify(1.0, rr.mechanisms.Gaussian(1.0))
    assert found.verdict is Verdict.NOT_ENOUGH
    assert found.releases == found.requested == 100
    assert f"<= {gaussian_cap(1.0):.4g}" in found.tests[0].claim
    assert found.epsilon_within_family < found.epsilon_claimed
    assert found.epsilon_shape_free < found.epsilon_claimed
    assert "can only contradict" in found.reason


def test_missing_noise_shows_in_guesses():
    found = verify(0.1, rr.mechanisms.Gaussian(1.0))
    assert found.is_contradicted
    assert found.releases < 100
    assert found.epsilon_within_family > found.epsilon_claimed


def test_a_fixed_number_of_trainings_is_kept():
    found = verify(0.1, rr.mechanisms.Gaussian(1.0), releases=40, stopping="fixed")
    assert found.is_contradicted
    assert found.releases == 40


def test_many_canaries_need_one_training():
    found = verify(0.05, rr.mechanisms.Gaussian(3.0), DIMENSION)
    assert found.releases == 1
    assert found.tests[0].observations == 8
    assert found.epsilon_shape_free == one_run_epsilon(DIMENSION, 8, 8, delta=1e-5)
    assert found.epsilon_within_family == gaussian_epsilon(one_run_mu(DIMENSION, 8, 8), 1e-5)


def test_the_bound_within_a_sampled_family_inverts_the_cap():
    """With sampling probability one in all but name, it equals the bound within Gaussian DP."""
    nearly = rr.mechanisms.dp_sgd(noise_multiplier=1.0, sampling_probability=1 - 1e-9)
    exact, found = (verify(0.3, claim, releases=30) for claim in (rr.mechanisms.Gaussian(1.0), nearly))
    assert found.tests[0].estimate == exact.tests[0].estimate
    assert found.epsilon_within_family == pytest.approx(exact.epsilon_within_family, rel=0.01)


def test_trainings_with_many_canaries_are_pooled():
    found = verify(0.05, rr.mechanisms.Gaussian(3.0), DIMENSION, releases=6)
    assert (found.releases, found.tests[0].observations) == (6, 48)
    assert found.is_contradicted
    assert verify(3.0, rr.mechanisms.Gaussian(3.0), DIMENSION, releases=6).verdict is Verdict.NOT_ENOUGH


def test_an_interrupted_audit_returns_what_it_knows():
    calls = []

    def train(inputs, labels):
        calls.append(len(inputs))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return training(1.0)(inputs, labels)

    given = {"claimed": rr.mechanisms.Gaussian(1.0), "loss_fn": product_loss, "canary": canaries(1), "rng": rng()}
    found = rr.verify_mechanism(train, RECORDS, **given)
    assert found.was_interrupted
    assert found.releases == 3
    calls.clear()
    found = rr.verify_mechanism(train, RECORDS, stopping="fixed", **given)
    assert found.verdict is Verdict.NOT_ENOUGH
    assert found.epsilon_within_family is None
    assert "interrupted" in found.reason


@pytest.mark.parametrize(
    ("claimed", "match"),
    [(None, "claimed"), (rr.mechanisms.PureDP(1.0, Neighbouring.REPLACE_ONE), "added or removed")],
)
def test_claims_that_do_not_fit_are_refused(claimed, match):
    with pytest.raises(InvalidInput, match=match):
        verify(1.0, claimed)


def test_a_training_that_diverges_is_refused():
    with pytest.raises(InvalidInput, match="loss of a canary"):
        verify(math.nan, rr.mechanisms.Gaussian(1.0))


def test_claims_of_epsilon_are_tested_too():
    found = verify(0.05, rr.mechanisms.PureDP(0.5, Neighbouring.ADD_OR_REMOVE))
    assert found.is_contradicted
    assert found.epsilon_claimed == 0.5
    assert found.epsilon_within_family is None
    assert found.epsilon_shape_free > 0.5


def test_the_family_of_a_mechanism():
    run = rr.mechanisms.dp_sgd(noise_multiplier=2.0, sampling_probability=0.1, steps=5)
    half = rr.mechanisms.dp_sgd(noise_multiplier=1.0, sampling_probability=0.1, steps=5)
    assert scale_noise(run, 0.5) == half
    assert scale_noise(rr.mechanisms.Composed((run, half)), 0.5).mechanisms[0] == half
    assert scale_noise(rr.mechanisms.GaussianDP(1.0), 0.5) is None
    assert epsilon_with_less_noise(rr.mechanisms.GaussianDP(1.0), 0.5, 1e-5) is None
    assert epsilon_with_less_noise(run, 0.0, 1e-5) == math.inf
    assert trade_off_of(run)(0.0) == pytest.approx(1.0)
