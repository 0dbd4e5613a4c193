"""Families of defenses: stronger with the level, and made by the call that they print."""

import itertools

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.defenses.clipping import total_square
from reconrisk.defenses.families import Reference, round_level_up
from reconrisk.defenses.registry import FAMILIES, family_by_name

INPUTS = torch.rand(12, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def reference():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    loss = nn.functional.cross_entropy
    updates = tuple(
        rr.releases.GradientRelease(model, loss, INPUTS[i : i + 1], LABELS[i : i + 1]).value() for i in range(4)
    )
    rng = torch.Generator().manual_seed(1)
    return Reference(lambda: rr.sensitivity.reference_moments(model, loss, INPUTS, LABELS, rng=rng), updates)


REFERENCE = reference()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_printed_call_makes_the_defense(name):
    family = family_by_name(name)
    for level in (round_level_up(family.start(REFERENCE)), round_level_up(3 * family.start(REFERENCE))):
        defense, code = family.defense(REFERENCE, level)
        again = eval(code, {"rr": rr, "moments": REFERENCE.moments})  # noqa: S307  # text of ours
        sent, same = (each(REFERENCE.updates[0], rng=torch.Generator().manual_seed(2)) for each in (defense, again))
        for key, value in sent.items():
            torch.testing.assert_close(value, same[key])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_higher_level_distorts_more(name):
    family, update = family_by_name(name), REFERENCE.updates[0]
    low, high = family.levels(REFERENCE)
    distances = []
    for step in range(5):
        defense, _ = family.defense(REFERENCE, low * (high / low) ** (0.1 + 0.2 * step))
        sent = defense(update, rng=torch.Generator().manual_seed(3))  # the same draws: only the scale differs
        mean = update if defense.mechanism is None else defense.replay(update)  # a clip moves every update alike
        distances.append(float(total_square({key: sent[key] - value for key, value in mean.items()})))
    assert all(after >= before for before, after in itertools.pairwise(distances))
    assert distances[-1] > distances[0]


def test_levels_of_noise_are_equal_second_order_utilities():
    """The level is the deviation of equal noise of the same U2 = sum of variances times E g^2."""
    square = REFERENCE.moments.square
    for name in ("gaussian_noise", "laplace_noise", "optimal_noise"):
        defense, _ = family_by_name(name).defense(REFERENCE, 0.25)
        stds = defense.noise_std(REFERENCE.updates[0])
        cost = sum(float((stds[key].double().square() * value.double()).sum()) for key, value in square.items())
        assert cost == pytest.approx(0.25**2 * sum(float(value.double().sum()) for value in square.values()), rel=1e-4)


def test_clipping_families_have_a_mechanism_and_others_none():
    proved = {name for name in FAMILIES if family_by_name(name).defense(REFERENCE, 1.0)[0].mechanism is not None}
    assert proved == {"dp_sgd_noise", "clip_and_optimal_noise"}


def test_something_is_always_sent():
    for name in ("prune", "optimal_pruning"):
        family = family_by_name(name)
        defense, _ = family.defense(REFERENCE, family.levels(REFERENCE)[1])
        sent = defense(REFERENCE.updates[0], rng=torch.Generator())
        assert sum(int((value != 0).sum()) for value in sent.values()) >= 1


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match="Did you mean laplace_noise"):
        family_by_name("laplacian_noise")
    with pytest.raises(InvalidInput, match="level=0"):
        family_by_name("prune").defense(REFERENCE, 0.0)
    with pytest.raises(InvalidInput, match="updates"):
        Reference(lambda: REFERENCE.moments, ())
    with pytest.raises(InvalidInput, match="Check the model"):
        Reference(lambda: REFERENCE.moments, ({"w": torch.zeros(2)},))
