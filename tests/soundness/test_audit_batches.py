"""Two records in one update: intervals over updates whose records succeed and fail together, and a bound that holds."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

import reconrisk as rr
from reconrisk.attacks.baselines import WITH_PRIOR
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease
from tests.soundness.seeded_audits import CHANCE

THREAT = ThreatModel(Sees.ONE_UPDATE, knows={Knows.PRIOR, Knows.DEFENSE})
RECORDS = 2 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.7, 0.7], [-0.7, 0.7]])
PAIRS = list(itertools.combinations(range(len(RECORDS)), 2))
NOISE, DRAWS = 0.5, 200_000


@dataclass(frozen=True)
class BestPair:
    """The two records whose clipped sum is nearest to what was sent: the most likely pair."""

    needs: ThreatModel = WITH_PRIOR

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        begun = time.monotonic()
        labels = torch.zeros(2, dtype=torch.int64)
        sums = torch.stack([observation.forward(RECORDS[list(pair)], labels)["sum"] for pair in PAIRS])
        best = int((sums - observation.released["sum"]).square().sum(1).argmin())
        account = AttackReport(
            repr(self), Status(Ending.CONVERGED, "nearest"), (0.0, 0.0), Cost(time.monotonic() - begun, 1)
        )
        return Reconstruction(RECORDS[list(PAIRS[best])], account)


def simulated_share():
    """The mean share of records found, without the library."""
    points = RECORDS.double().numpy()
    sums = np.array([points[list(pair)].sum(0) for pair in PAIRS])
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1.0)
    common = np.array([[len(set(one) & set(other)) for other in PAIRS] for one in PAIRS])
    rng = np.random.default_rng(6)
    chosen = rng.integers(len(PAIRS), size=DRAWS)
    seen = sums[chosen] + NOISE * rng.normal(size=(DRAWS, 2))
    nearest = ((seen[:, None] - sums) ** 2).sum(2).argmin(1)
    return float(common[chosen, nearest].mean()) / 2


def test_pairs_are_bracketed_and_the_bound_for_guesses_at_pairs_holds():
    labels = torch.zeros(len(RECORDS), dtype=torch.int64)
    dataset = Dataset("six", RECORDS, labels, data_range=(-2.0, 2.0))
    release = ForwardRelease(lambda inputs, labels: {"sum": inputs.sum(0)}, RECORDS[:2], labels[:2])
    defense = rr.defenses.clip_and_noise(noise_multiplier=NOISE, clip_norm=1.0)
    options = {"threat": THREAT, "attacks": [BestPair()], "goals": ["mse<=0.01"], "budget": None}
    options["update"] = rr.UpdateRecipe(batch_size=2)
    truth, audits, trials, missed, share = simulated_share(), 30, 8, 0, 0.0
    for seed in range(audits):
        result = rr.audit(
            release,
            dataset,
            defenses=defense,
            trials=trials,
            options=rr.AuditOptions(seed=seed, confidence=0.6),
            **options,
        )
        (line,) = result.lines
        (bound,) = (each.guarantee.value for each in line.comparisons if each.is_compared)
        assert truth < bound
        missed += not line.success.low <= truth <= line.success.high
        share += line.success.value / audits
    assert stats.binomtest(missed, audits, 0.4, alternative="greater").pvalue > CHANCE
    # the share of one update varies by a half at most, and updates are independent
    deviation = 0.5 / math.sqrt(audits * trials)
    assert abs(share - truth) < -stats.norm.ppf(CHANCE / 2) * deviation
