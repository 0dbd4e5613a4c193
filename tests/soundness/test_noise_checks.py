"""Audits notice noise that does not deliver its guarantee: too little of it, or added in floating point.

The defenses claim the Gaussian mechanism. The default audit, whose threat has no prior, must contradict the broken ones
and accept the sound one.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.float_noise import count_infeasible
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.threat import Knows
from reconrisk.releases.updates.gradient import GradientRelease

SIZE, COUNT = 64, 100
DATA = rr.data.Dataset(
    "toy", torch.rand(COUNT, SIZE, generator=torch.Generator().manual_seed(0)), torch.arange(COUNT) % 8
)


def network():
    """A network with 738 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 10), nn.Tanh(), nn.Linear(10, 8))


@dataclass(frozen=True)
class HandMade:
    """Clipping and a share of the claimed noise, drawn and added with torch in the precision of the tensors."""

    noise_multiplier: float
    share: float = 1.0
    precision: torch.dtype = torch.float32

    @property
    def mechanism(self):
        return Gaussian(self.noise_multiplier, 1.0)

    def __call__(self, released, *, rng):
        std = self.share * self.noise_multiplier
        noiseless = {name: value.to(self.precision) for name, value in self.replay(released).items()}
        noise = {
            name: torch.randn(value.shape, generator=rng, dtype=self.precision) for name, value in noiseless.items()
        }
        return {name: (value + std * noise[name]).to(released[name]) for name, value in noiseless.items()}

    def replay(self, released):
        norm = math.sqrt(sum(float(value.detach().double().square().sum()) for value in released.values()))
        return {name: value * min(1.0, 1 / norm) for name, value in released.items()}

    def noise_std(self, sent):
        return {name: torch.full_like(value, self.noise_multiplier) for name, value in sent.items()}

    def kept(self, sent):
        return None

    def __str__(self):
        return f"hand_made(noise_multiplier={self.noise_multiplier:g}, share={self.share:g})"


def audit(*defenses, **settings):
    """The result of the default audit, contradicted or not."""
    options = {"attacks": ["analytic"], "trials": 16, "budget": None, **settings}
    try:
        return rr.audit(network(), DATA, defenses=defenses, **options), None
    except rr.ContradictedBound as error:
        return error.result, error


@pytest.mark.parametrize("share", [0.1, 0.6, 0.9])
def test_the_default_audit_notices_missing_noise(share):
    # Drawn in float64 and cast: the last bits show nothing, so that the scale alone decides.
    result, error = audit(HandMade(1.0, share, torch.float64))
    (scale,) = result.noise_checks.scales
    assert scale.is_contradicted
    assert scale.low < share < scale.high
    assert f"the noise is {scale.ratio:.4g}" in str(error)
    assert {line.verdict.name for line in result.lines} == {"CONTRADICTION"}
    assert result.failures()
    assert str(scale) in result.sentence
    by_name = {check.attack: check for check in result.noise_checks.identifications}
    assert by_name["best_candidate"].is_contradicted == (share == 0.1)


def test_a_limit_is_not_proved_by_a_bound_whose_noise_is_missing():
    for defense, proved in ((HandMade(1.0, 0.6, torch.float64), False), (_sound(1.0), True)):
        result, _ = audit(defense, max_risk=["mse<=0.001: 50%"])
        (standing,) = (check.standing.name for line in result.lines for check in line.limits)
        assert (standing == "PROVED") == proved


@pytest.mark.parametrize("noise_multiplier", [1.0, 10.0])
def test_the_default_audit_notices_noise_that_was_added_in_floating_point(noise_multiplier):
    result, error = audit(HandMade(noise_multiplier))
    checks = {check.attack: check for check in result.noise_checks.identifications}
    assert checks["low_bits"].is_contradicted
    assert not checks["best_candidate"].is_contradicted
    assert not result.noise_checks.scales[0].is_contradicted
    assert "rr.defenses" in str(error)
    assert "never in the precision of a tensor" in str(error)
    assert Knows.PRIOR in checks["low_bits"].threat.knows
    assert Knows.PRIOR not in result.threat.knows  # the audited adversary has no list of candidates


def test_batches_with_known_records_are_checked_as_well():
    result, _ = audit(HandMade(1.0), attacks=["inverting_gradients(steps=5)"], update=rr.UpdateRecipe(batch_size=4))
    checks = {check.attack: check for check in result.noise_checks.identifications}
    assert checks["low_bits"].is_contradicted
    assert Knows.OTHER_RECORDS in checks["low_bits"].threat.knows


def _sound(noise_multiplier):
    return rr.defenses.clip_and_noise(noise_multiplier=noise_multiplier, clip_norm=1.0)


def test_our_noise_is_not_contradicted():
    result, error = audit(_sound(0.3), rr.defenses.clip(1.0) >> rr.defenses.gaussian_noise(2.0), trials=64)
    assert error is None
    assert [check.attack for check in result.noise_checks.identifications] == ["best_candidate"] * 2
    assert len(result.noise_checks.scales) == 2
    for check in result.noise_checks.scales:
        assert check.low < 1 < check.high


def test_sound_noise_raises_no_more_false_alarms_than_stated():
    alarms = sum(
        audit(_sound(1.0), options=rr.AuditOptions(seed=seed), trials=4, goals=["mse<=0.001"])[1] is not None
        for seed in range(10)
    )
    assert alarms == 0  # each audit raises one with a probability of at most 0.001


def test_the_last_bits_of_our_noise_name_no_more_records_than_the_guarantee_allows():
    model, loss, rng = network(), nn.functional.cross_entropy, torch.Generator().manual_seed(0)
    defense, releases, named = _sound(1.0), 60, 0
    updates = [GradientRelease(model, loss, DATA.inputs[[row]], DATA.labels[[row]]).value() for row in range(COUNT)]
    means = [defense.replay(update) for update in updates]
    flat = torch.stack([torch.cat([value.double().flatten() for value in mean.values()]) for mean in means])
    for _ in range(releases):
        row = int(torch.randint(COUNT, (1,), generator=rng))
        sent = defense(updates[row], rng=rng)
        infeasible = torch.tensor([count_infeasible(mean, sent) for mean in means])
        seen = torch.cat([value.double().flatten() for value in sent.values()])
        distances = (flat - seen).square().sum(1).masked_fill(infeasible > infeasible.min(), math.inf)
        named += int(distances.argmin()) == row
    bound = rr.success_upper_bound(Gaussian(1.0), prior_success=1 / COUNT).value
    assert named / releases <= bound + 3 * math.sqrt(bound * (1 - bound) / releases)


def test_the_sentence_about_a_bound_names_noise_of_other_code():
    caveat = "low bits of the noise not counted"
    result, error = audit(HandMade(1.0, precision=torch.float64), trials=2)
    assert error is None
    assert caveat in result.sentence
    result, _ = audit(rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), trials=2)
    assert caveat not in result.sentence


def test_a_contradicted_scale_says_what_to_do():
    result, error = audit(HandMade(1.0, 0.6, torch.float64))
    assert "rr.verify_mechanism" in str(error)
    assert result.lines[0].verdict.value == "the guarantee is contradicted"
