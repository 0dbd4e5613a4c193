"""Which of two records was it? The truth is Phi(|g - g'| / (2 s)), and with opposite gradients it is the bound."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

import reconrisk as rr
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.audit.conclusion import ContradictedBound
from tests.soundness.seeded_audits import Claimed, tally

THREAT = ThreatModel(Sees.ONE_UPDATE, knows={Knows.PRIOR, Knows.DEFENSE})
OPPOSITE = torch.tensor([[1.2, 1.6], [-1.2, -1.6]])
CROSSED = torch.tensor([[2.0, 0.0], [0.0, 2.0]])


def sum_of_outputs(outputs, labels):
    """A loss whose gradient by the weights is the record itself."""
    return outputs.sum()


def network():
    linear = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def audit_of(records, defense, *, trials, subject=None, confidence=0.95, **settings):
    """Audits of the record as it is, which is also the gradient of :func:`network` but takes less time."""
    dataset = Dataset("two", records, torch.tensor([0, 1]), data_range=(-2.0, 2.0))
    itself = ForwardRelease(lambda inputs, labels: {"gradient": inputs.sum(0)}, records, dataset.labels)
    options = {"threat": THREAT, "attacks": ["best_candidate"], "goals": ["mse<=0.01"], "budget": None}
    return lambda seed: rr.audit(
        subject or itself,
        dataset,
        defenses=defense,
        trials=trials,
        options=rr.AuditOptions(seed=seed, confidence=confidence),
        **options | settings,
    )


def truth_of(records, noise_multiplier):
    clipped = records / records.norm(dim=1, keepdim=True).clamp_min(1.0)
    return float(stats.norm.cdf(float((clipped[0] - clipped[1]).norm()) / (2 * noise_multiplier)))


@pytest.mark.parametrize(("records", "audits"), [(OPPOSITE, 60), (CROSSED, 20)], ids=["opposite", "crossed"])
def test_intervals_bracket_the_truth_and_the_bound_is_never_beaten(records, audits):
    noise, trials = 1.5, 24
    truth = truth_of(records, noise)
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=1.0)
    audit = audit_of(records, defense, trials=trials, confidence=0.7)
    counted = tally(audit, audits=audits, attack="best_candidate", truth=truth)
    counted.check()
    (bound,) = counted.bounds
    assert bound == pytest.approx(stats.norm.cdf(1 / noise), abs=1e-6)
    if records is OPPOSITE:  # the bound is the truth: nobody could have proved less
        assert truth == pytest.approx(bound, abs=1e-6)


def test_a_mechanism_with_half_its_noise_is_caught_with_both_numbers():
    # Claimed: Phi(1/1.5) = 0.748. Done: Phi(2/1.5) = 0.909. The alarm level of each of three attacks is a third of one
    # in a thousand, which 90 of 100 successes pass; 160 trials reach what they need with probability above 0.99.
    broken = Claimed(rr.defenses.clip_and_noise(noise_multiplier=0.75, clip_norm=1.0), Gaussian(1.5, 1.0))
    audit = audit_of(OPPOSITE, {"broken": broken}, trials=160)
    for seed in range(3):
        with pytest.raises(ContradictedBound) as caught:
            audit(seed)
        ((line, comparison),) = caught.value.result.contradictions
        assert comparison.highest_attack == line.best_attack == "best_candidate"
        assert comparison.guarantee.value == pytest.approx(stats.norm.cdf(1 / 1.5), abs=1e-6)
        assert comparison.highest.low > comparison.guarantee.value
        words = str(caught.value)
        assert f"{comparison.highest.low:.4g}" in words
        assert str(comparison.guarantee) in words
        assert "broken" in words


def test_the_same_mechanism_with_its_noise_is_not_caught_by_as_many_trials():
    sound = Claimed(rr.defenses.clip_and_noise(noise_multiplier=1.5, clip_norm=1.0), Gaussian(1.5, 1.0))
    update = rr.UpdateRecipe(loss_fn=sum_of_outputs)
    audit = audit_of(OPPOSITE, {"sound": sound}, trials=160, subject=network(), update=update)
    (line,) = audit(0).lines
    (compared,) = (each for each in line.comparisons if each.is_compared)
    # within four standard errors of one: attack and bound meet
    assert compared.tightness == pytest.approx(1.0, abs=4 * math.sqrt(0.748 * 0.252 / 160) / 0.748)
