from dataclasses import dataclass

import pytest
import torch

import reconrisk as rr
from reconrisk.bounds.gaussian_prior import linear_gaussian_success
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import EXACT_NOISE, IDEAL_NOISE
from reconrisk.core.mechanism import Gaussian, GaussianDP, PoissonSampled, Repeated, dp_sgd
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.metrics.goals import mse_at_most, ncc_at_least, psnr_at_least
from reconrisk.studies.common.guarantees import GuaranteeFinder
from reconrisk.studies.common.population import draw_population

DATA = Dataset("toy", torch.tensor([[0.0, 0.1], [0.5, 0.5], [1.0, 0.9], [0.2, 0.8]]), torch.tensor([0, 0, 1, 1]))
THREAT = ThreatModel(Sees.ONE_UPDATE)
GOAL = mse_at_most(1e-4)


@dataclass(frozen=True)
class Claims:
    mechanism: object


@dataclass(frozen=True)
class ExactClaims(Claims):
    exact_noise: bool


def prover(*, threat=THREAT, batch_size=1, stated=(), training=None):
    return GuaranteeFinder(draw_population(DATA, None, torch.Generator()), threat, batch_size, tuple(stated), training)


def test_a_mechanism_is_asked_with_the_prior_of_the_population():
    first, *others = prover().find_bounds(
        GOAL, "noise", rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=2.0)
    )
    assert first.is_about_targets
    assert first.guarantee.value == pytest.approx(success_upper_bound(Gaussian(1.0), prior_success=1 / 4).value)
    assert not any(each.is_about_targets for each in others)


@pytest.mark.parametrize("defense", [None, rr.defenses.gaussian_noise(0.1), rr.defenses.prune(0.5)])
def test_heuristics_prove_nothing(defense):
    assert prover().find_bounds(GOAL, "heuristic", defense) == ()


def test_a_similarity_has_no_guarantee_from_noise():
    assert prover().find_bounds(ncc_at_least(0.9), "noise", Claims(Gaussian(1.0))) == ()


@pytest.mark.parametrize(
    "mechanism",
    [PoissonSampled(Gaussian(1.0), 0.01), Repeated(PoissonSampled(Gaussian(1.0), 0.01), 5)],
)
def test_sampling_does_not_protect_a_record_that_is_known_to_be_in_the_update(mechanism):
    answers = prover().find_bounds(GOAL, "sampled", Claims(mechanism))
    assert answers
    assert not any(each.is_about_targets for each in answers)
    assert "always contains the target" in answers[0].why


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Repeated(Gaussian(1.0), 3), GaussianDP(1.0)])
def test_without_sampling_the_bound_is_about_the_targets(mechanism):
    assert prover().find_bounds(GOAL, "noise", Claims(mechanism))[0].is_about_targets


def test_the_whole_run_is_shown_and_not_compared():
    answers = prover(training=dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=9)).find_bounds(
        GOAL, "none", None
    )
    assert answers
    assert not any(each.is_about_targets for each in answers)
    assert all("it is about the whole run" in each.why for each in answers)


def test_what_the_caller_states_comes_first_and_for_its_goals_only():
    stated = success_upper_bound(GaussianDP(1.0), prior_success=0.1)
    source = lambda goal, label: stated if (goal, label) == (GOAL, "noise") else None  # noqa: E731  # a source
    asked = prover(stated=[source])
    first = asked.find_bounds(GOAL, "noise", Claims(Gaussian(1.0)))[0]
    assert first.guarantee is stated
    assert first.is_about_targets
    assert stated not in [each.guarantee for each in asked.find_bounds(GOAL, "other", Claims(Gaussian(1.0)))]
    assert asked.find_bounds(psnr_at_least(10), "noise", None) == ()


def test_what_the_threat_knows_and_how_many_guesses_it_has_raise_the_prior():
    one = prover().prior(GOAL).value
    assert one == pytest.approx(1 / 4)
    assert prover(threat=THREAT.with_knowledge(Knows.LABELS)).prior(GOAL).value == pytest.approx(1 / 2)
    assert prover(batch_size=2).prior(GOAL).value == pytest.approx(2 / 3)
    assert prover(threat=THREAT.with_knowledge(Knows.RECORD_NORM)).prior(GOAL).value == 1
    assert prover().prior(ncc_at_least(0.5)) is None


@pytest.mark.parametrize(
    ("defense", "is_exact"),
    [
        (Claims(Gaussian(1.0)), False),
        (ExactClaims(Gaussian(1.0), False), False),
        (ExactClaims(Gaussian(1.0), True), True),
    ],
)
def test_guarantees_state_how_the_noise_of_a_defense_is_added(defense, is_exact):
    answers = prover(training=Gaussian(2.0)).find_bounds(GOAL, "noise", defense)
    of_defense = [each.guarantee.assumptions for each in answers if each.guarantee.mechanism == Gaussian(1.0)]
    assert len(of_defense) == 3
    assert all((IDEAL_NOISE in found) is not is_exact for found in of_defense)
    assert all((set(EXACT_NOISE) <= set(found)) is is_exact for found in of_defense)
    of_training = [each.guarantee.assumptions for each in answers if each.guarantee.mechanism == Gaussian(2.0)]
    assert of_training
    assert all(IDEAL_NOISE in found for found in of_training)  # other code may have added that noise


def test_a_stated_guarantee_for_the_direction_of_a_record_covers_no_update():
    narrow = from_scratch_success(Gaussian(1.0), dimension=2, norm=1.0, mse=1e-4)
    linear = linear_gaussian_success([1.0, 2.0], prior_covariance=1.0, mse=1e-4)
    answers = prover(stated=[lambda goal, label: narrow, lambda goal, label: linear]).find_bounds(GOAL, "none", None)
    assert [each.guarantee.covers(THREAT, release=each.release) for each in answers] == [False, True]
