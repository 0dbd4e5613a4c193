"""Verdicts of ``verify_mechanism`` as results, and its rules of stopping."""

import math

import pytest
import torch
from scipy.stats import chi2
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.defenses import clip, clip_and_noise, gaussian_noise
from reconrisk.studies.verify_mechanism import evidence as tests
from reconrisk.studies.verify_mechanism.claims import gaussian_of_one_release
from reconrisk.studies.verify_mechanism.evidence import Evidence, Plan
from reconrisk.studies.verify_mechanism.result import Verdict
from reconrisk.studies.verify_mechanism.sources import UNTESTED_BITS, choose_canary

SOUND = clip_and_noise(noise_multiplier=1.0, clip_norm=1.0)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def small(size=200):
    return {"w": torch.randn(size, generator=rng())}


def test_a_verdict_is_a_result(tmp_path):
    found = rr.verify_mechanism(SOUND, small(), rng=rng(7))
    assert isinstance(found, rr.results.MechanismVerdict)
    assert from_json(found.to_json()) == found
    assert rr.load(found.save(tmp_path / "verdict.json")) == found
    assert [row["test"] for row in found.to_rows()] == [test.name for test in found.tests]
    text = str(found)
    for words in ("within the family of the claimed mechanism", "shape-free lower bound", "claimed upper bound"):
        assert words in text
    assert found.seed == 7
    assert found.exit_code == 0


def unscaled_step(noise_multiplier):
    """A step whose noise is not multiplied by the clip norm."""

    def step(inputs, labels):
        return {"w": inputs.sum(0) + noise_multiplier * torch.randn(inputs.shape[1], generator=draws)}

    draws = rng(5)
    return step


@pytest.mark.parametrize(("clip_norm", "verdict"), [(4.0, Verdict.CONTRADICTED), (0.5, Verdict.CONSISTENT)])
def test_noise_without_the_factor_of_the_clip_norm_is_named(clip_norm, verdict):
    claim = rr.mechanisms.dp_sgd(noise_multiplier=1.0, clip_norm=clip_norm, sampling_probability=0.1, steps=10)
    records = nn.functional.normalize(torch.randn(6, 400, generator=rng())) * 0.5, torch.zeros(6)
    found = rr.verify_mechanism(unscaled_step(1.0), records, claimed=claim, rng=rng())
    assert found.verdict is verdict
    assert f"The noise ratio fits 1 / clip_norm ({1 / clip_norm:g})" in found.sentence
    assert ("epsilon is at least" in found.sentence) == found.is_contradicted
    assert "for one release" not in found.table()


def test_a_right_or_otherwise_wrong_scale_is_not_called_a_forgotten_clip_norm():
    assert "1 / clip_norm" not in rr.verify_mechanism(SOUND, small(), rng=rng()).sentence
    found = rr.verify_mechanism(SOUND, small(), claimed=rr.mechanisms.Gaussian(2.0, 1.0), rng=rng())
    assert found.is_contradicted
    assert "1 / clip_norm" not in found.sentence
    assert "for one release" in found.table()


def test_only_exact_noise_has_no_caveat_about_low_bits():
    records = nn.functional.normalize(torch.randn(6, 400, generator=rng())) * 0.5, torch.zeros(6)
    by_hand = rr.verify_mechanism(
        unscaled_step(1.0), records, claimed=rr.mechanisms.dp_sgd(noise_multiplier=1.0), rng=rng()
    )
    assert UNTESTED_BITS in by_hand.assumptions
    assert UNTESTED_BITS not in rr.verify_mechanism(SOUND, small(), rng=rng()).assumptions


def test_the_same_seed_gives_the_same_verdict():
    assert rr.verify_mechanism(SOUND, small(), rng=rng(3)) == rr.verify_mechanism(SOUND, small(), rng=rng(3))


def test_consistent_is_earned():
    found = rr.verify_mechanism(SOUND, small(), releases=2, rng=rng())
    assert found.verdict is Verdict.NOT_ENOUGH
    assert found.exit_code == 4
    assert found.releases_needed > 2
    found = rr.verify_mechanism(SOUND, small(), rng=rng())
    assert found.verdict is Verdict.CONSISTENT
    assert found.noise_ratio_low >= found.smallest_ratio
    contribution = next(test for test in found.tests if test.name == tests.CONTRIBUTION)
    assert contribution.low < 1 < contribution.high


def test_a_few_values_are_never_enough():
    found = rr.verify_mechanism(SOUND, small(7), releases=400, rng=rng())
    assert found.verdict is Verdict.NOT_ENOUGH
    assert found.releases_needed is None
    assert "too short" in found.reason


def test_the_number_of_missing_releases_is_about_right():
    short = rr.verify_mechanism(SOUND, small(), releases=4, rng=rng())
    found = rr.verify_mechanism(SOUND, small(), rng=rng())
    assert 0.3 < (4 + short.releases_needed) / found.releases < 3


def test_a_fixed_number_is_neither_exceeded_nor_cut_short():
    found = rr.verify_mechanism(
        SOUND, small(), releases=9, stopping="fixed", claimed=rr.mechanisms.Gaussian(9.0), rng=rng()
    )
    assert found.releases == found.requested == 9
    assert found.is_contradicted


def test_fixed_evidence_is_the_exact_p_value():
    plan = Plan({"w": 0}, 50, 1.0, 1, 1, has_mean=True, repeats=False, fixed=True, alpha=0.05)
    found = Evidence(plan)
    values = torch.randn(50, generator=rng(), dtype=torch.float64).numpy() * 0.8
    found.add_release(values, arm=None, mean=0 * values)
    scale = next(row for row in found.rows() if row.name == tests.SCALE)
    assert math.exp(-scale.evidence) == pytest.approx(chi2.cdf(values @ values, 50))
    ends = (values @ values / chi2.ppf(0.975, 50)) ** 0.5, (values @ values / chi2.ppf(0.025, 50)) ** 0.5
    assert (scale.low, scale.high) == pytest.approx(ends)


def test_a_difference_counts_only_at_the_end_of_a_round():
    """Otherwise the time of stopping could depend on one half of a difference."""
    plan = Plan({"w": 0}, 50, 1.0, 1, 1, has_mean=False, repeats=True, fixed=False, alpha=0.05)
    direction = torch.ones(50, dtype=torch.float64).numpy()
    found = Evidence(plan, direction, direction)
    found.add_release(0 * direction, arm=0, mean=None)
    found.add_difference(100 * direction)
    inside = found.combined()
    found.end_round()
    assert found.combined() > inside + 10


def test_ctrl_c_returns_the_releases_so_far():
    class Interrupting:
        mechanism = SOUND.mechanism
        calls = 0

        def __call__(self, released, *, rng):
            self.calls += 1
            if self.calls == 6:
                raise KeyboardInterrupt
            return SOUND(released, rng=rng)

    found = rr.verify_mechanism(Interrupting(), small(), rng=rng())
    assert found.was_interrupted
    assert found.releases == 5
    at_once = Interrupting()
    at_once.calls = 5
    with pytest.raises(KeyboardInterrupt):
        rr.verify_mechanism(at_once, small(), rng=rng())


def test_a_model_gives_the_update_of_a_defense():
    data = rr.load_dataset("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = rr.verify_mechanism(SOUND, data, model=model, rng=rng())
    assert found.verdict is Verdict.CONSISTENT
    deferred = rr.verify_mechanism(
        rr.defenses.clip(1.0) >> gaussian_noise(1.0), data.subset(range(5)), model=model, releases=1, rng=rng()
    )
    assert deferred.releases == 1


def test_later_parts_of_a_chain_are_post_processing():
    chain = clip(1.0) >> gaussian_noise(1.0) >> rr.defenses.quantise(levels=2)
    assert not rr.verify_mechanism(chain, small(), releases=12, rng=rng()).is_contradicted


def test_phases_with_different_noise_are_refused():
    phases = [rr.mechanisms.dp_sgd(noise_multiplier=noise, steps=2) for noise in (1.0, 2.0)]
    with pytest.raises(InvalidInput, match="same noise"):
        gaussian_of_one_release(rr.mechanisms.Composed(tuple(phases)))
    assert gaussian_of_one_release(rr.mechanisms.Composed((phases[0], phases[0]))).noise_multiplier == 1.0


def test_the_canary_is_long_in_every_parameter():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    inputs, labels = torch.randn(6, 3, generator=rng()), torch.zeros(6, dtype=torch.int64)
    record, label = choose_canary(model, nn.functional.cross_entropy, inputs, labels)
    assert (record.shape, label.shape) == ((1, 3), (1,))
    model.zero_grad()
    nn.functional.cross_entropy(model(record), label).backward()
    assert all(float(value.grad.norm()) > 0 for value in model.parameters())
    tokens = torch.randint(0, 5, (6, 3))
    embedding = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    assert choose_canary(embedding, nn.functional.cross_entropy, tokens, labels)[0].dtype == torch.int64


def test_one_record_is_not_enough():
    def step(inputs, labels):
        return {"w": torch.zeros(9)}

    with pytest.raises(InvalidInput, match=">= 2"):
        rr.verify_mechanism(step, (torch.zeros(1, 2), torch.zeros(1)), claimed=SOUND.mechanism, rng=rng())
