"""The precision attack on releases whose record is known."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks import best_candidate, low_bits
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.releases.updates.gradient import GradientMap

KNOWS = HONEST_BUT_CURIOUS.with_knowledge(*Knows)
COUNT, PLACE, SIZE = 40, 7, 60


def records(dtype=torch.float32, count=COUNT):
    return torch.rand(count, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 10), nn.Tanh(), nn.Linear(10, 8)).to(dtype)


def observe(forward, noise, dtype=torch.float32, others=None):
    """The update of the record at PLACE, after the other records, plus noise."""
    target, label = records(dtype)[[PLACE]], torch.tensor([PLACE % 8])
    inputs = target if others is None else torch.cat([others[0], target])
    labels = label if others is None else torch.cat([others[1], label])
    mean = {name: value.detach() for name, value in forward(inputs, labels).items()}
    released = {name: value + noise(value) for name, value in mean.items()}
    std = {name: torch.full_like(value, 3.0) for name, value in released.items()}
    return Observation(
        released, forward, KNOWS, (SIZE,), (0.0, 1.0), batch_size=len(inputs), labels=labels, noise_std=std
    )


def normals(rng, terms=1):
    """Noise of standard deviation 3 in the precision of a tensor, from sums of this many normal values."""
    return lambda value: (
        sum(3.0 * torch.randn(value.shape, generator=rng, dtype=value.dtype) for _ in range(terms)) / (terms**0.5)
    )


def found_by(attack, observation):
    estimate = attack(observation, rng=torch.Generator()).estimates
    (place,) = (attack.candidates.to(estimate) == estimate).all(1).nonzero().flatten().tolist()
    return place


@pytest.mark.parametrize("terms", [1, 4])  # four, as Opacus adds in its secure mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_float_noise_shows_the_record(dtype, terms):
    rng, labels = torch.Generator().manual_seed(1), torch.arange(COUNT) % 8
    attack = low_bits(records(dtype), labels=labels)
    ordinary = best_candidate(records(dtype), labels=labels)
    forward, right, plain = GradientMap(network(dtype)), 0, 0
    for _ in range(6):
        observation = observe(forward, normals(rng, terms), dtype)
        observation = Observation(**{**vars(observation), "labels": None})  # any label is possible
        right += found_by(attack, observation) == PLACE
        plain += found_by(ordinary, observation) == PLACE
    assert right == 6
    assert plain < 4


def test_the_status_says_how_many_candidates_are_left_and_how_to_mend_it():
    observation = observe(GradientMap(network()), normals(torch.Generator().manual_seed(1)))
    status = low_bits(records(), labels=torch.arange(COUNT) % 8)(observation, rng=torch.Generator()).status
    assert status.ending is Ending.CONVERGED
    assert status.cause.startswith(f"1 of {COUNT} candidates can have produced every value")
    assert "rr.defenses" in status.remedy


def test_if_every_candidate_is_possible_the_likelihood_decides():
    # Short values: every difference is a float, so the last bits exclude nobody.
    short, rng = (records() * 1024).round() / 1024, torch.Generator().manual_seed(1)

    def forward(inputs, labels):
        return {"y": inputs[0]}

    for _ in range(5):
        released = {"y": (short[PLACE] + torch.randn(SIZE, generator=rng)).mul(8).round() / 8}
        std = {"y": torch.ones(SIZE)}
        observation = Observation(
            released, forward, KNOWS, (SIZE,), (0.0, 1.0), labels=torch.tensor([0]), noise_std=std
        )
        result, best = (attack(short)(observation, rng=rng) for attack in (low_bits, best_candidate))
        assert result.status.cause == f"the last bits exclude none of {COUNT} candidates"
        assert torch.equal(result.estimates, best.estimates)


@pytest.mark.parametrize("first", [True, False])
def test_known_records_of_a_batch_are_placed_on_either_side(first):
    others = (records(count=COUNT + 7)[COUNT:], torch.arange(7))
    forward = GradientMap(network())

    def in_order(inputs, labels):  # the release puts the target first, or last as observe() does
        return forward(inputs.roll(1, 0), labels.roll(1, 0)) if first else forward(inputs, labels)

    seen = observe(in_order, normals(torch.Generator().manual_seed(1)), others=others)
    observation = Observation(**{**vars(seen), "forward": forward})
    labels = torch.arange(COUNT) % 8
    attack = low_bits(records(), labels=labels, known_inputs=others[0], known_labels=others[1])
    assert Knows.OTHER_RECORDS in attack.needs.knows
    assert found_by(attack, observation) == PLACE
    with pytest.raises(InvalidInput, match="batch_size=8 to be 1"):
        low_bits(records())(observation, rng=torch.Generator())


def test_the_stated_precision_is_that_of_the_noise():
    rng = torch.Generator().manual_seed(1)
    forward = GradientMap(network())
    noise = normals(rng)
    wide = observe(forward, noise)
    released = {name: value.double() for name, value in wide.released.items()}  # sent in another precision
    std = {name: value.double() for name, value in wide.noise_std.items()}

    def cast(inputs, labels):
        return {name: value.double() for name, value in forward(inputs.float(), labels).items()}

    observation = Observation(**{**vars(wide), "released": released, "forward": cast, "noise_std": std})
    assert found_by(low_bits(records(), labels=torch.arange(COUNT) % 8, precision="float32"), observation) == PLACE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "half"}, "precision='half' to be one of"),
        ({"known_inputs": torch.zeros(1, SIZE)}, "known_inputs and known_labels together"),
        ({"known_inputs": torch.zeros(1, SIZE), "known_labels": torch.zeros(1)}, "labels together with known_inputs"),
        (
            {"labels": torch.zeros(COUNT), "known_inputs": torch.zeros(1, SIZE), "known_labels": torch.zeros(2)},
            r"len\(known_labels\)=2 to be 1",
        ),
        ({"labels": torch.zeros(3)}, "to begin with 40"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        low_bits(records(), **settings)


def test_an_audit_runs_it_by_name():
    data = rr.data.Dataset("toy", records(), torch.arange(COUNT) % 8)
    threat = rr.ThreatModel(sees="one-update", knows={"defense", "prior"})
    result = rr.audit(network(), data, threat=threat, attacks=["low_bits"], trials=3)
    assert result.lines[0].success.value == 1.0
