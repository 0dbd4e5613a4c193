"""The exact attack on linear models from an observation: the same as with arguments, and what it refuses."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

import reconrisk as rr
from reconrisk.attacks.informed.glm.attack import NEEDS, glm_observed
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import Knows

DRAWS = np.random.default_rng(2)
X = DRAWS.random((40, 4))
Y = X @ (2.0, -1.0, 0.5, 1.0) + DRAWS.normal(size=40)
CLASSES = (Y.mean() < Y).astype(int)
KNOWING = NEEDS.with_knowledge(Knows.DEFENSE)


def observed(estimator=None, labels=Y, threat=KNOWING, defense=None, seed=0):
    fitted = (estimator or Ridge()).fit(X, labels)
    rows, answers = torch.as_tensor(X), torch.as_tensor(labels)
    release = rr.releases.EstimatorRelease(
        fitted, rows[:1], answers[:1], known_inputs=rows[1:], known_labels=answers[1:]
    )
    rng = torch.Generator().manual_seed(seed)
    return fitted, rr.observe(release, threat=threat, defense=defense, rng=rng)


def run(observation):
    return glm_observed()(observation, rng=torch.Generator())


def test_it_is_glm_with_what_the_observation_holds():
    fitted, observation = observed()
    found = run(observation)
    assert found.status.ending is Ending.EXACT
    assert found.estimates.numpy() == pytest.approx(rr.attacks.glm(fitted, X[1:], Y[1:]).record[None], abs=1e-6)
    assert found.estimates.numpy() == pytest.approx(X[:1], abs=1e-6)
    assert repr(glm_observed()) == found.account.attack == "glm()"


def test_under_known_noise_it_is_the_most_likely_record_clipped_to_the_range():
    estimator = LogisticRegression(tol=1e-10, max_iter=1000)
    _, observation = observed(estimator, CLASSES, defense=rr.defenses.gaussian_noise(1e-4))
    seen = observation.forward.undefended.with_coefficients(observation.released)
    expected = rr.attacks.glm(seen, X[1:], CLASSES[1:], noise_std=1e-4).record.clip(0, 1)
    assert run(observation).estimates[0].numpy() == pytest.approx(expected, abs=1e-6)


def test_noise_that_hides_the_record_is_a_finding():
    estimator = LogisticRegression(tol=1e-10, max_iter=1000)
    _, observation = observed(estimator, CLASSES, defense=rr.defenses.gaussian_noise(1.0))
    seen = observation.forward.undefended.with_coefficients(observation.released)
    alone = rr.attacks.glm(seen, X[1:], CLASSES[1:], noise_std=1.0)
    found = run(observation)
    assert (alone.status.ending, found.status.ending) == (Ending.NOT_APPLICABLE, Ending.CONVERGED)
    assert "for a guess of the mean" in found.status.cause
    low, high = float(found.estimates.min()), float(found.estimates.max())
    assert 0.0 <= low <= high <= 1.0


def test_labels_that_the_threat_knows_decide_between_roots_and_one_of_two_is_not_exact():
    plain = LinearRegression(fit_intercept=False)
    with pytest.raises(rr.InvalidInput, match=r"to contain the labels\. Add Knows\.LABELS"):
        run(observed(plain)[1])
    found = run(observed(plain, threat=KNOWING.with_knowledge(Knows.LABELS))[1])
    assert found.status.ending is Ending.CONVERGED
    assert found.status.cause.startswith("one of 2 records that fit the model equally well")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"defense": rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=0.1)}, "to add noise and do nothing"),
        ({"defense": rr.defenses.prune(0.5)}, "to add noise and do nothing else"),
        ({"threat": rr.ThreatModel("final-model", knows={"defense"})}, "to cover what the attack needs"),
        ({"threat": rr.ThreatModel("one-update", knows={"other-records"})}, "to cover what the attack needs"),
    ],
)
def test_other_defenses_and_weaker_threats_are_refused(change, message):
    with pytest.raises(rr.InvalidInput, match=message):
        run(observed(**change)[1])


def test_noise_of_several_sizes_and_other_models_are_refused():
    _, observation = observed(defense=rr.defenses.gaussian_noise(0.1))
    uneven = {**observation.noise_std, "intercept": torch.tensor(0.3, dtype=torch.float64)}
    with pytest.raises(rr.InvalidInput, match="to be one number for all coefficients"):
        run(dataclasses.replace(observation, noise_std=uneven))
    with pytest.raises(rr.InvalidInput, match="to belong to a fitted scikit-learn estimator"):
        run(dataclasses.replace(observation, forward=torch.nn.Linear(4, 1)))
