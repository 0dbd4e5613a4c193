"""Membership by reconstruction: the triangle inequality of balle2022, Section II-D, and what it leaves open."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import reconrisk as rr
from reconrisk.core.errors import InvalidInput


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.499))
def test_an_error_below_half_the_distance_always_names_the_right_candidate(seed, part):
    rng = np.random.default_rng(seed)
    pair = rng.standard_normal((2, 6))
    truth = int(rng.integers(2))
    direction = rng.standard_normal(6)
    reach = part * np.linalg.norm(pair[0] - pair[1])
    estimate = pair[truth] + reach * direction / np.linalg.norm(direction)
    decided = rr.attacks.informed_membership(estimate, pair, error=reach / np.sqrt(6) * (1 + 1e-9) + 1e-12)
    assert decided.index == truth
    assert decided.certain


def test_an_error_that_leaves_two_candidates_is_not_certain():
    decided = rr.attacks.informed_membership([0.4], [[0.0], [1.0]], error=0.7)
    assert decided.index == 0
    assert not decided.certain
    assert not rr.attacks.informed_membership([0.4], [[0.0], [1.0]]).certain


def test_a_candidate_farther_than_the_error_is_no_member():
    decided = rr.attacks.informed_membership([0.4], [[1.0]], error=0.5)
    assert decided.index is None
    assert decided.certain
    assert rr.attacks.informed_membership([0.4], [[1.0]], error=np.inf).index == 0


def test_distances_are_per_feature():
    decided = rr.attacks.informed_membership(torch.zeros(1, 2, 2), torch.ones(3, 2, 2) * torch.arange(3)[:, None, None])
    np.testing.assert_allclose(decided.distances, [0.0, 1.0, 2.0])


def test_membership_of_every_record_of_a_classifier_by_its_reconstruction():
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    features, labels, outsiders = features[:200], labels[:200], features[200:240]
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(features, labels)
    for target in range(0, 200, 5):
        found = rr.attacks.glm(model, np.delete(features, target, 0), np.delete(labels, target))
        pair = np.vstack([outsiders[target % 40], features[target]])
        decided = rr.attacks.informed_membership(found.reconstruction, pair, error=found.error_range[1])
        assert decided.index == 1
        assert decided.certain


def test_a_failed_reconstruction_decides_nothing():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((20, 3))
    objective = rr.attacks.LinearObjective("squared", penalty=1.0)
    found = rr.attacks.glm(np.zeros(3), features, np.zeros(20), intercept=0.0, objective=objective)
    assert found.status.is_failure
    assert rr.attacks.informed_membership(found.reconstruction, features[:2]).index is None


def test_bad_input_is_refused_in_words():
    with pytest.raises(InvalidInput, match="error=None to be given for one candidate"):
        rr.attacks.informed_membership([0.0], [[1.0]])
    with pytest.raises(InvalidInput, match=r"error=-1\.0 >= 0"):
        rr.attacks.informed_membership([0.0], [[1.0]], error=-1.0)
    with pytest.raises(InvalidInput, match=r"candidates\.shape=\(1, 2\) to be \(candidates, 1\)"):
        rr.attacks.informed_membership([0.0], [[1.0, 2.0]], error=1.0)
