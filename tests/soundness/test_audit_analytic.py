"""Analytic inversion of a planted layer: its error follows riess2025's law where clipping binds."""

from __future__ import annotations

import math

import torch

import reconrisk as rr
from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.threat import MALICIOUS_SERVER, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.releases.updates.gradient import GradientRelease
from tests.soundness.seeded_audits import tally

DIMENSION, NORM, CLIP, NOISE, NEURONS = 4, 2.0, 1.0, 0.4, 2
RECORDS = torch.randn(24, DIMENSION, generator=torch.Generator().manual_seed(4))
RECORDS *= NORM / RECORDS.norm(dim=1, keepdim=True)
LABELS = torch.zeros(24, dtype=torch.int64)
LAW = analytic_inversion_law(Gaussian(NOISE, CLIP), dimension=DIMENSION, norm=NORM)
GOAL = 0.8 * LAW.expected_mse


def audit_of(attack, threat, *, trials, noise=NOISE, confidence=0.95):
    planted = attack.plant((DIMENSION,))
    release = GradientRelease(planted.module, planted.loss_fn, RECORDS[:1], LABELS[:1])
    dataset = Dataset("sphere", RECORDS, LABELS, data_range=(-30.0, 30.0))  # wide: nothing is cut off
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=CLIP)
    options = {"threat": threat, "attacks": [attack], "goals": [rr.goals.mse_at_most(GOAL)], "budget": None}
    return lambda seed: rr.audit(
        release,
        dataset,
        defenses=defense,
        trials=trials,
        options=rr.AuditOptions(seed=seed, confidence=confidence),
        **options,
    )


def test_the_law_is_bracketed_where_the_server_knows_the_scale():
    # All norms are equal, so that the scale of the clipped gradient is public, and the prior still means something.
    scale = CLIP / (math.sqrt(NEURONS) * NORM)
    attack = rr.attacks.optimal_analytic(neurons=NEURONS, scales=scale)
    threat = MALICIOUS_SERVER.with_knowledge(Knows.DEFENSE)
    counted = tally(
        audit_of(attack, threat, trials=10, confidence=0.6),
        audits=40,
        attack="OptimalAnalytic",
        truth=LAW.success(mse=GOAL),
    )
    counted.check()


def test_the_law_is_bracketed_where_the_server_knows_the_norm():
    attack = rr.attacks.optimal_analytic(neurons=NEURONS)
    threat = MALICIOUS_SERVER.with_knowledge(Knows.DEFENSE, Knows.RECORD_NORM)
    counted = tally(
        audit_of(attack, threat, trials=10, confidence=0.6),
        audits=12,
        attack="OptimalAnalytic",
        truth=LAW.success(mse=GOAL),
    )
    counted.check()
    assert counted.bounds == {1.0}  # norms may tell records apart: nothing is proved, and nothing is claimed


def test_a_law_is_of_one_attack_and_never_compared():
    attack = rr.attacks.optimal_analytic(neurons=NEURONS)
    threat = MALICIOUS_SERVER.with_knowledge(Knows.DEFENSE, Knows.RECORD_NORM)
    result = audit_of(attack, threat, trials=10)(0)
    compared = [each.guarantee for line in result.lines for each in line.comparisons if each.is_compared]
    assert [each.scope.value for each in compared] == ["any adversary with this prior"]
