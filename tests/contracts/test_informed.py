"""One row per attack on a trained model: what every informed attack promises, whatever it does inside."""

import dataclasses
import inspect
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

import reconrisk as rr
from reconrisk.attacks.informed.glm.attack import NEEDS as GLM_NEEDS
from reconrisk.attacks.informed.invert_training.attack import NEEDS as INVERT_NEEDS
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import Knows, Sees
from reconrisk.testing import check_attack


@dataclasses.dataclass(frozen=True)
class Solved:
    """What an informed attack found, and the record it was after, which it never saw.

    ``attack`` is the function, or the configured attack with the ``observation`` that it met.
    """

    reconstruction: Reconstruction
    target: torch.Tensor
    again: Reconstruction
    attack: Callable
    observation: rr.Observation | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """An attack on a problem it must solve, and the largest mean squared error."""

    solve: Callable[[], Solved]
    largest_mse: float


def cancer(count=200):
    features, labels = load_breast_cancer(return_X_y=True)
    return (features[:count] - features[:200].mean(0)) / features[:200].std(0), labels[:count]


def attacked(**settings):
    features, labels = cancer()
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(features, labels)
    first, again = (rr.attacks.glm(model, features[1:], labels[1:], **settings).reconstruction for _ in range(2))
    return Solved(first, torch.as_tensor(features[:1]), again, rr.attacks.glm)


def observed():
    features, labels = cancer()
    low, width = torch.as_tensor(features.min(0)), torch.as_tensor(np.ptp(features, axis=0))
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(features, labels)
    rows, answers = torch.as_tensor(features), torch.as_tensor(labels)
    given = {"known_inputs": rows[1:], "known_labels": answers[1:], "low": low, "width": width}
    release = rr.releases.EstimatorRelease(model, (rows[:1] - low) / width, answers[:1], **given)
    observation = rr.observe(release, threat=GLM_NEEDS)
    attack = rr.attacks.glm_observed()
    first, again = (attack(observation, rng=torch.Generator()) for _ in range(2))
    return Solved(first, release.inputs, again, attack, observation)


def matched():
    features, labels = load_digits(return_X_y=True)
    inputs, labels = torch.as_tensor(features[:14] / 16, dtype=torch.float32), torch.as_tensor(labels[:14])
    model = nn.Linear(64, 10, bias=False)
    start = {"weight": torch.zeros(10, 64)}
    # at zero weights the gradient of a record is (softmax - onehot) x^T with a uniform softmax
    contributions = [
        torch.outer(torch.full((10,), 0.1) - torch.eye(10)[label], x) for x, label in zip(inputs, labels, strict=True)
    ]
    clipped = [value / max(1.0, float(value.norm())) for value in contributions]
    noise = 0.01 * torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    trained = {"weight": -(sum(clipped[:10]) + clipped[12] + noise) / 11}
    given = {
        "known_inputs": inputs[:10],
        "known_labels": labels[:10],
        "settings": rr.attacks.DpSgdSettings(learning_rate=1.0, clip_norm=1.0, noise_multiplier=0.01),
    }
    first, again = (
        rr.attacks.match_candidates(
            model, nn.functional.cross_entropy, [start, trained], inputs[10:], labels[10:], **given
        ).reconstruction
        for _ in range(2)
    )
    return Solved(first, inputs[12:13], again, rr.attacks.match_candidates)


def inverted():
    features, labels = load_digits(return_X_y=True)
    inputs, labels = torch.as_tensor(features[:31] / 16), torch.as_tensor(labels[:31])
    model = rr.models.mlp(64, (6,), 10, activation=nn.ELU, rng=torch.Generator().manual_seed(0))
    given = {
        "fixed_inputs": inputs[1:],
        "fixed_labels": labels[1:],
        "optimizer": rr.releases.sgd(0.2, 0.9),
        "steps": 10,
    }
    release = rr.releases.TrainedModelRelease(model, nn.functional.cross_entropy, inputs[:1], labels[:1], **given)
    observation = rr.observe(release, threat=INVERT_NEEDS)
    attack = rr.attacks.invert_training()
    first, again = (attack(observation, rng=torch.Generator()) for _ in range(2))
    return Solved(first, inputs[:1], again, attack, observation)


def read_off(queries=None):
    features, labels = load_digits(return_X_y=True)
    inputs, labels = torch.as_tensor(features[:601] / 16, dtype=torch.float32), torch.as_tensor(labels[:601])
    model = rr.models.mlp(64, (6,), 10, activation=nn.ELU, rng=torch.Generator().manual_seed(0))
    training = rr.releases.ShadowTraining(model, inputs[1:51], labels[1:51], rr.releases.sgd(0.2, 0.9), steps=20)
    knowledge = rr.attacks.ShadowKnowledge(training, inputs[51:], labels[51:])
    asked = None if queries is None else inputs[-queries:]
    attack = rr.attacks.reconstructor(knowledge, queries=asked, rng=torch.Generator().manual_seed(0))
    released = training.unflatten(training.train(inputs[:1], labels[:1])[0])
    if asked is not None:
        released = {"logits": torch.func.functional_call(model, released, (asked,)).detach()}
    observation = rr.Observation(released, lambda x, y: {}, attack.needs, (64,), (0.0, 1.0))
    first, again = (attack(observation, rng=torch.Generator()) for _ in range(2))
    return Solved(first, inputs[:1], again, attack, observation)


ROWS = {
    "glm": Row(attacked, 1e-16),
    "glm under noise": Row(lambda: attacked(noise_std=1e-8), 1e-8),
    "glm by observation": Row(observed, 1e-13),
    "invert_training": Row(inverted, 1e-12),
    "match_candidates": Row(matched, 0.0),
    # the nearest of the 600 other digits is at 0.011
    "reconstructor": Row(read_off, 0.005),
    "reconstructor, black box": Row(lambda: read_off(queries=100), 0.01),
}


@pytest.fixture(scope="module", params=ROWS)
def solved(request):
    row = ROWS[request.param]
    return row, row.solve()


def test_estimates_have_the_shape_of_records_and_are_finite(solved):
    _, found = solved
    assert found.reconstruction.estimates.shape == found.target.shape
    assert bool(found.reconstruction.estimates.isfinite().all())
    assert not found.reconstruction.estimates.requires_grad


def test_a_problem_with_a_known_answer_is_solved(solved):
    row, found = solved
    assert not found.reconstruction.status.is_failure
    scores = rr.metrics.score(found.reconstruction, found.target, rr.metrics.mse())["mse"]
    assert float(scores.max()) <= row.largest_mse


def test_the_account_tells_attack_cost_and_objective(solved):
    _, found = solved
    account = found.reconstruction.account
    assert len(account.objective) == len(found.target)
    assert np.isfinite(account.objective).all()
    assert account.cost.seconds >= 0
    assert re.match(r"\w+\(.*\)$", account.attack, re.DOTALL)
    assert rr.from_json(rr.to_json(account)) == account


def test_the_same_problem_gives_the_same_estimates(solved):
    _, found = solved
    assert torch.equal(found.reconstruction.estimates, found.again.estimates)


def test_a_configured_attack_keeps_the_rules_for_attacks(solved):
    _, found = solved
    if found.observation is None:
        pytest.skip("a function that is handed all it reads")
    report = check_attack(found.attack, found.observation, records=found.target)
    assert "refuses_weaker_adversaries" in report.passed


def weaker(needs):
    """Every threat that lacks one thing of what an attack needs."""
    for power in needs.knows:
        yield dataclasses.replace(needs, knows=needs.knows - {power})
    yield dataclasses.replace(needs, sees=Sees.ONE_UPDATE)


def test_it_needs_an_informed_adversary_and_refuses_every_weaker_one(solved):
    _, found = solved
    if found.observation is None:  # a function is handed what it needs to know: no default stands for other records
        needed = [inspect.signature(found.attack).parameters[name] for name in ("known_inputs", "known_labels")]
        assert all(parameter.default is inspect.Parameter.empty for parameter in needed)
        return
    needs = found.attack.needs
    assert needs.sees is Sees.FINAL_MODEL
    assert Knows.OTHER_RECORDS in needs.knows
    for threat in weaker(needs):
        with pytest.raises(rr.InvalidInput, match="to cover what the attack needs"):
            found.attack(dataclasses.replace(found.observation, threat=threat), rng=torch.Generator())


def candidates_of(features, labels, trained):
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(features[trained], labels[trained])
    return rr.attacks.glm_candidates(model, features[10:200], labels[10:200], features[:10], labels[:10]).fits.tolist()


def attributes_of(features, labels, trained):
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(features[trained], labels[trained])
    unknown, own = np.where(np.arange(30) == 5, np.nan, features[3]), features[:10, 5:6]
    return rr.attacks.glm_attributes(model, features[10:200], labels[10:200], unknown, labels[3], own).fits.tolist()


def members_of(features, labels, trained):
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(features[trained], labels[trained])
    found = rr.attacks.glm(model, features[10:200], labels[10:200])
    decided = rr.attacks.informed_membership(found.reconstruction, features[:10], error=1e-4)
    return [place == decided.index for place in range(10)]


@pytest.mark.parametrize("decide", [candidates_of, attributes_of, members_of])
def test_who_decides_among_candidates_names_the_one_that_was_trained_on_and_no_other(decide):
    features, labels = cancer(201)
    known = list(range(10, 200))
    assert decide(features, labels, [3, *known]) == [place == 3 for place in range(10)]
    assert not any(decide(features, labels, [200, *known]))
