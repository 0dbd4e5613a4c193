"""A fitted classifier with noise on its coefficients: sensitivity as proved, truth from solutions computed apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize

import reconrisk as rr
from reconrisk.core.mechanism import output_perturbation
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.releases.fitted_estimators.glm import GlmRelease
from reconrisk.studies.audit.conclusion import ContradictedBound
from tests.soundness.seeded_audits import Claimed, tally

THREAT = ThreatModel(Sees.ONE_UPDATE, knows={Knows.PRIOR, Knows.DEFENSE, Knows.OTHER_RECORDS})
PENALTY, NOISE, DRAWS = 4.0, 0.25, 400_000
KNOWN = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
KNOWN /= KNOWN.norm(dim=1, keepdim=True).clamp_min(1.0)
KNOWN_LABELS = (KNOWN[:, 0] > 0).long()
RECORDS = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
LABELS = torch.ones(4, dtype=torch.int64)
CLAIM = output_perturbation(noise_std=NOISE, records=13, regularization=PENALTY / 13)


def solution(record):
    """The minimiser by a general optimiser: an oracle that shares nothing with the release."""
    inputs = np.vstack([KNOWN.double().numpy(), record])
    signs = 2 * np.append(KNOWN_LABELS.numpy(), 1) - 1

    def objective(w):
        margins = signs * (inputs @ w)
        slope = -(signs / (1 + np.exp(margins))) @ inputs
        return np.logaddexp(0, -margins).sum() + PENALTY / 2 * w @ w, slope + PENALTY * w

    return optimize.minimize(objective, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10}).x


def success_of_the_nearest(noise):
    """How often the nearest of the four solutions is the right one, by simulation."""
    solutions = np.array([solution(record) for record in RECORDS.double().numpy()])
    rng = np.random.default_rng(2)
    chosen = rng.integers(4, size=DRAWS)
    seen = solutions[chosen] + noise * rng.normal(size=(DRAWS, 2))
    return float(((((seen[:, None] - solutions) ** 2).sum(2)).argmin(1) == chosen).mean())


def audit_of(defense, *, trials, confidence=0.95):
    release = GlmRelease(
        RECORDS[:1], LABELS[:1], known_inputs=KNOWN, known_labels=KNOWN_LABELS, family="logistic", penalty=PENALTY
    )
    dataset = Dataset("four", RECORDS, LABELS, data_range=(-1.0, 1.0))
    options = {"threat": THREAT, "attacks": ["best_candidate"], "goals": ["mse<=0.01"], "budget": None}
    return lambda seed: rr.audit(
        release,
        dataset,
        defenses=defense,
        trials=trials,
        options=rr.AuditOptions(seed=seed, confidence=confidence),
        **options,
    )


def test_output_perturbation_is_bracketed_and_its_bound_holds():
    truth = success_of_the_nearest(NOISE)
    defense = Claimed(rr.defenses.gaussian_noise(NOISE), CLAIM)
    counted = tally(
        audit_of({"noise": defense}, trials=8, confidence=0.6), audits=40, attack="best_candidate", truth=truth
    )
    counted.check(truth_error=math.sqrt(truth * (1 - truth) / DRAWS))
    (bound,) = counted.bounds
    assert 1 / 4 < truth < bound < 1


def test_far_less_noise_than_claimed_is_caught():
    # The sensitivity is not attained by these records, so that half the noise stays below the bound of the claim. A
    # fifth of it is told from the bound by 110 trials.
    truth, bound = success_of_the_nearest(NOISE / 5), rr.success_upper_bound(CLAIM, prior_success=0.25).value
    assert truth > bound + 0.15
    broken = Claimed(rr.defenses.gaussian_noise(NOISE / 5), CLAIM)
    with pytest.raises(ContradictedBound, match="best_candidate reaches"):
        audit_of({"broken": broken}, trials=110)(0)
