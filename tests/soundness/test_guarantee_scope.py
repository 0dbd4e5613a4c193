"""Guarantees cover only what they cover: other releases, records that depend on the target, Laplace noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from torch import nn

import reconrisk as rr
from reconrisk.accounting.events import from_event
from reconrisk.bounds.known_norm import from_scratch_success, known_norm_success
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import INDEPENDENT_RECORDS, CoveredRelease
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reconrisk.statistics.intervals import clopper_pearson

NOISE, MSE, FREQUENCY, FEATURES, DRAWS, ANGLES = 0.3, 0.01, 8.0, 64, 400, 720


class FourierFeatures(nn.Module):
    """Cosines and sines of plane waves in all directions: their clipped gradient turns faster than the record."""

    def __init__(self):
        super().__init__()
        turns = 2 * math.pi * torch.arange(FEATURES, dtype=torch.float64) / FEATURES
        self.register_buffer("waves", FREQUENCY * torch.stack([turns.cos(), turns.sin()]))

    def forward(self, records):
        phases = records @ self.waves
        return torch.cat([phases.cos(), phases.sin()], 1)


def head_gradients(records):
    """Return the gradient of the head of the network for each record, by autograd."""
    network = nn.Sequential(FourierFeatures(), nn.Linear(2 * FEATURES, 1, bias=False, dtype=torch.float64))
    found = []
    for record in records:
        network.zero_grad()
        network(record[None]).sum().backward()
        found.append(network[1].weight.grad.flatten().clone())
    return torch.stack(found)


def on_circle(angles):
    return torch.stack([angles.cos(), angles.sin()], 1)


def fourier_successes():
    """Count draws in which the best cap of the posterior holds the record, for the clipped gradient with noise."""
    rng = torch.Generator().manual_seed(0)
    defense = rr.defenses.clip_and_noise(noise_multiplier=NOISE, clip_norm=1.0)
    records = on_circle(2 * math.pi * torch.rand(DRAWS, generator=rng, dtype=torch.float64))
    sent = torch.stack([defense({"head": each[None]}, rng=rng)["head"].flatten() for each in head_gradients(records)])
    angles = 2 * math.pi * torch.arange(ANGLES, dtype=torch.float64) / ANGLES
    candidates = nn.functional.normalize(head_gradients(on_circle(angles)))
    posterior = torch.softmax(sent.double() @ candidates.T / NOISE**2, 1)
    reach = math.sqrt(2 * MSE)
    gaps = (on_circle(angles) * math.sqrt(1 - reach * reach))[:, None] - on_circle(angles)
    best = (posterior @ (gaps.square().mean(2) <= MSE).double().T).argmax(1)
    estimates = on_circle(angles[best]) * math.sqrt(1 - reach * reach)
    return int(((estimates - records).square().mean(1) <= MSE).sum())


def test_the_bound_for_the_direction_covers_no_other_release():
    mechanism = Gaussian(noise_multiplier=NOISE)
    record = {"dimension": 2, "norm": 1.0, "mse": MSE}
    narrow, wide = from_scratch_success(mechanism, **record), known_norm_success(mechanism, **record)
    measured = clopper_pearson(fourier_successes(), DRAWS, 0.999)
    assert measured.low > 0.75 > 2 * narrow.value  # the network reveals more than twice what the direction does
    assert not narrow.covers(HONEST_BUT_CURIOUS)
    assert narrow.covers(HONEST_BUT_CURIOUS, release=CoveredRelease.DIRECTION)
    for text in (narrow.sentence, narrow.table(), str(narrow)):
        assert "only the release x/|x| plus Gaussian noise" in text
    assert wide.covers(HONEST_BUT_CURIOUS)
    assert not wide.is_contradicted_by(measured)
    assert wide.value < 0.96  # and it is not trivial


def test_an_audit_of_a_network_does_not_use_the_bound_for_the_direction():
    generator = torch.Generator().manual_seed(0)
    data = (torch.rand(12, 4, generator=generator), torch.arange(12) % 2)
    stated = from_scratch_success(Gaussian(NOISE), dimension=4, norm=1.0, mse=0.01)
    result = rr.audit(
        nn.Linear(4, 2),
        data,
        defenses=rr.defenses.clip_and_noise(noise_multiplier=NOISE, clip_norm=1.0),
        attacks=[rr.attacks.constant_guess()],
        trials=2,
        goals=[rr.goals.mse_at_most(0.01)],
        training=rr.TrainingRun(guarantees=[lambda goal, label: stated]),
        budget=None,
    )
    comparisons = [each for line in result.lines for each in line.comparisons]
    narrow = [each for each in comparisons if each.guarantee.release is CoveredRelease.DIRECTION]
    assert narrow
    assert all(not each.is_compared and "only the release x/|x|" in each.why for each in narrow)
    assert all(each.guarantee == stated for each in narrow)  # the audit adds none by itself


def test_the_words_of_a_risk_corridor_use_the_bound_for_any_release():
    corridor = rr.risk(Gaussian(NOISE), dimension=2, norm=1.0, mse=MSE, prior_success=0.1)
    assert "at most 0.95" in corridor.sentence  # 0.363 for the direction alone
    kinds = {kind for _, _, kind in corridor.adversaries()}
    assert {"guarantee for any release", "guarantee for the release x/|x| plus noise only"} <= kinds


def test_an_unknown_duplicate_needs_a_group():
    rng = np.random.default_rng(0)
    draws = 40_000
    target = rng.choice([-1.0, 1.0], size=draws)
    release = target + target + rng.normal(size=draws)  # the target and its duplicate, noise multiplier 1
    measured = clopper_pearson(int(np.sum(np.sign(release) == target)), draws, 0.999)
    assert measured.low < 0.97725 < measured.high
    alone = success_upper_bound(Gaussian(1.0), prior_success=0.5)
    assert alone.value == pytest.approx(0.841345, abs=1e-6)
    assert alone.is_contradicted_by(measured)  # the records are not independent, and the text says that they must be
    assert INDEPENDENT_RECORDS in alone.sentence
    group = success_upper_bound(Gaussian(1.0), prior_success=0.5, group_size=2)
    assert group.value == pytest.approx(0.97725, abs=1e-5)
    assert not group.is_contradicted_by(measured)
    assert "all but 2 records" in group.sentence


@pytest.mark.parametrize(
    "guarantee",
    [
        success_upper_bound(Gaussian(1.0), prior_success=0.1),
        from_scratch_success(Gaussian(1.0), dimension=3, norm=1.0, mse=0.01),
        known_norm_success(Gaussian(1.0), dimension=3, norm=1.0, mse=0.01),
        rr.bounds.gaussian_prior_success(1.0, dimension=2, prior_std=1.0, mse=0.5),
        rr.bounds.linear_gaussian_success([1.0, 2.0], prior_covariance=1.0, mse=0.5),
    ],
    ids=lambda each: str(each.reference),
)
def test_every_success_guarantee_states_that_the_other_records_are_independent(guarantee):
    assert INDEPENDENT_RECORDS in guarantee.assumptions


def test_ten_laplace_releases_have_the_success_of_the_best_attack():
    rng = np.random.default_rng(1)
    draws, prior = 100_000, 0.1
    noise = rng.laplace(scale=2.0, size=(2, draws, 10))
    scores = [(np.abs(sent) - np.abs(sent - 1)).sum(1) for sent in (noise[0], noise[1] + 1)]
    power = float(np.mean(scores[1] >= np.quantile(scores[0], 1 - prior)))
    event = dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(2.0), 10)
    bound = success_upper_bound(from_event(event), prior_success=prior).value
    assert power == pytest.approx(0.576, abs=0.01)  # the threshold is estimated too
    assert power - 0.01 <= bound <= 0.5761
