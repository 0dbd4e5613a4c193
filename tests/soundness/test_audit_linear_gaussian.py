"""Linear releases with Gaussian noise: the posterior mean is optimal, and its success is known in closed form."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import reconrisk as rr
from reconrisk.attacks.baselines import WITH_PRIOR
from reconrisk.bounds.gaussian_prior import linear_gaussian_success
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.audit.conclusion import ContradictedBound
from tests.soundness.seeded_audits import Claimed, tally

THREAT = ThreatModel(Sees.ONE_UPDATE, knows={Knows.PRIOR, Knows.DEFENSE})
MATRIX = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -0.5], [0.3, 0.0, 0.7], [0.2, -0.4, 0.1]])
NOISE, GOAL = 0.5, 0.25
DIMENSION = MATRIX.shape[1]
INFORMATION = (MATRIX.T @ MATRIX).double().numpy() / NOISE**2


def linear(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"y": MATRIX @ inputs.flatten(1).sum(0)}


@dataclass(frozen=True)
class PosteriorMean:
    """The mean of the record given y = A x + noise, for the prior N(0, I)."""

    needs: ThreatModel = WITH_PRIOR

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        begun = time.monotonic()
        precision = observation.noise_std["y"].square().reciprocal()
        normal = MATRIX.T @ (precision[:, None] * MATRIX) + torch.eye(DIMENSION)
        mean = torch.linalg.solve(normal, MATRIX.T @ (precision * observation.released["y"]))
        status = Status(Ending.CONVERGED, "closed form")
        return Reconstruction(mean[None], AttackReport(repr(self), status, (0.0,), Cost(time.monotonic() - begun, 1)))


def guaranteed(goal, label):
    return linear_gaussian_success(INFORMATION, prior_covariance=1.0, mse=goal.threshold)


def audit_of(defense, *, trials, attack, confidence=0.95):
    def audit(seed):
        # a new population for every seed, of which each record is used once: targets are draws from the prior
        records = torch.randn(trials, DIMENSION, generator=torch.Generator().manual_seed(10**6 + seed))
        dataset = Dataset("normal", records, torch.zeros(trials, dtype=torch.int64), data_range=(-9.0, 9.0))
        release = ForwardRelease(linear, records, dataset.labels)
        options = {
            "threat": THREAT,
            "goals": [rr.goals.mse_at_most(GOAL)],
            "training": rr.TrainingRun(guarantees=[guaranteed]),
            "budget": None,
        }
        return rr.audit(
            release,
            dataset,
            defenses=defense,
            attacks=[attack],
            trials=trials,
            options=rr.AuditOptions(seed=seed, confidence=confidence),
            **options,
        )

    return audit


def test_the_posterior_mean_is_bracketed_and_never_beats_its_own_law():
    truth = linear_gaussian_success(INFORMATION, prior_covariance=1.0, mse=GOAL).value
    audit = audit_of(rr.defenses.gaussian_noise(NOISE), trials=10, attack=PosteriorMean(), confidence=0.6)
    counted = tally(audit, audits=80, attack="PosteriorMean", truth=truth)
    counted.check()
    assert counted.bounds == {truth}


def test_gauss_newton_with_the_prior_is_as_good_as_the_posterior_mean():
    newton = rr.attacks.gauss_newton(prior_mean=0.0, prior_std=1.0, restarts=1)
    settings = {"trials": 15, "confidence": 0.9}
    one, other = (
        audit_of(rr.defenses.gaussian_noise(NOISE), attack=attack, **settings)(0)
        for attack in (newton, PosteriorMean())
    )
    assert one.lines[0].success.value == other.lines[0].success.value
    assert one.exposures[0].score == pytest.approx(other.exposures[0].score, rel=1e-2, abs=1e-6)


def test_half_the_noise_beats_the_law():
    # The law at full noise is 0.62, at half of it 0.93: 60 trials tell them apart with probability above 0.99.
    broken = {"half": rr.defenses.gaussian_noise(NOISE / 2)}
    for seed in range(3):
        with pytest.raises(ContradictedBound, match=r"PosteriorMean reaches mse<=0\.25 under half"):
            audit_of(broken, trials=80, attack=PosteriorMean())(seed)


CANDIDATES = torch.randn(6, DIMENSION, generator=torch.Generator().manual_seed(5)).double()


def success_among_candidates(noise_multiplier, *, draws=400_000):
    """Success of the nearest clipped release among equally likely candidates, by simulation without the library."""
    means = CANDIDATES.numpy() @ MATRIX.double().numpy().T
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1.0)
    rng = np.random.default_rng(3)
    chosen = rng.integers(len(means), size=draws)
    seen = means[chosen] + noise_multiplier * rng.normal(size=(draws, means.shape[1]))
    nearest = (((seen[:, None] - means[None]) ** 2).sum(2)).argmin(1)
    return float((nearest == chosen).mean())


def test_the_best_of_finitely_many_candidates_is_bracketed_below_the_bound_of_its_mechanism():
    truth = success_among_candidates(0.8)
    records = CANDIDATES.float()
    dataset = Dataset("six", records, torch.zeros(6, dtype=torch.int64), data_range=(-9.0, 9.0))
    release = ForwardRelease(linear, records, dataset.labels)
    defense = Claimed(rr.defenses.clip_and_noise(noise_multiplier=0.8, clip_norm=1.0), Gaussian(0.8, 1.0))
    options = {"threat": THREAT, "goals": ["mse<=0.001"], "attacks": ["best_candidate"], "budget": None}
    audit = lambda seed: rr.audit(  # noqa: E731  # one line per option reads best
        release,
        dataset,
        defenses={"noise": defense},
        trials=10,
        options=rr.AuditOptions(seed=seed, confidence=0.6),
        **options,
    )
    counted = tally(audit, audits=40, attack="best_candidate", truth=truth)
    counted.check(truth_error=math.sqrt(truth * (1 - truth) / 400_000))
    (bound,) = counted.bounds
    assert 1 / 6 < truth < bound < 1
