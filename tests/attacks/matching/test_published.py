"""Batch norm in train and in eval mode, and the value of its statistics to an attack."""

import dataclasses
import math
from functools import cache

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset

KNOWN = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
WITH_STATISTICS = KNOWN.with_knowledge(Knows.BATCH_STATISTICS)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, inputs):
        hidden = torch.tanh(self.norms[0](self.first(inputs)))
        return torch.tanh(inputs + self.norms[1](self.second(hidden)))


@cache
def pictures():
    """The natural crops of the wheel, grey and 8 x 8, with their classes."""
    crops = load_dataset("crops")
    return nn.functional.interpolate(crops.inputs, (8, 8), mode="area").mean(1, keepdim=True), crops.labels


def residual_network(*, train):
    """A small residual network whose running statistics are those of all pictures."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8, momentum=1.0),
        nn.Tanh(),
        nn.AvgPool2d(2),
        Residual(8),
        nn.Flatten(),
        nn.Linear(128, 16),
    ).train()
    with torch.no_grad():
        model(pictures()[0])
    return model.train(train)


def observed(rows, *, train, threat=KNOWN):
    images, labels = (values[rows] for values in pictures())
    release = rr.releases.GradientRelease(residual_network(train=train), nn.functional.cross_entropy, images, labels)
    return images, rr.observe(release, threat=threat)


def decibels(found, images):
    return -10 * math.log10(float((found.estimates - images).square().mean()))


@cache
def solved(rows, train, threat, **settings):
    """How near grad_inversion comes, computed once for the tests that compare."""
    images, observation = observed(list(rows), train=train, threat=threat)
    attack = rr.attacks.grad_inversion(steps=100, restarts=1, **settings)
    return decibels(attack(observation, rng=torch.Generator().manual_seed(0)), images)


def relative_change(one, other):
    away = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return math.sqrt(away / sum(float(value.square().sum()) for value in one.values()))


@pytest.mark.parametrize("train", [True, False])
def test_in_train_mode_the_gradient_hardly_changes_with_contrast(train):
    images, observation = observed([0, 1], train=train)
    half = observation.forward(images / 2, observation.labels)
    change = relative_change(observation.released, half)
    assert change < 0.01 if train else change > 0.3  # what is left is the epsilon of batch norm


@pytest.mark.parametrize("rows", [(3,), (5, 9)])
def test_inverting_gradients_rebuilds_pictures_up_to_contrast_in_train_mode(rows):
    images, observation = observed(list(rows), train=True)
    found = rr.attacks.inverting_gradients(steps=100)(observation, rng=torch.Generator().manual_seed(0))
    correlations = rr.metrics.ncc()(found.estimates, images)
    assert float(correlations.min()) > 0.93, correlations
    assert decibels(found, images) < 20  # the contrast is not to be had


@pytest.mark.parametrize("attack", [rr.attacks.inverting_gradients(steps=100), rr.attacks.idlg(steps=40, restarts=1)])
def test_records_are_rebuilt_in_eval_mode(attack):
    images, observation = observed([3], train=False)
    found = attack(observation, rng=torch.Generator().manual_seed(0))
    assert decibels(found, images) > 30


@pytest.mark.parametrize("rows", [(3,), (5, 9)])
def test_known_statistics_give_the_contrast_in_train_mode(rows):
    known, unknown = solved(rows, True, WITH_STATISTICS), solved(rows, True, KNOWN, batch_norm=0.0)
    assert known > 26
    assert known > unknown + 10


def test_known_statistics_speed_up_the_search_in_eval_mode():
    """On this smooth network by 10 dB; networks of ReLU gain nothing in this many steps."""
    rows = (3,)
    assert solved(rows, False, WITH_STATISTICS) > solved(rows, False, KNOWN, batch_norm=0.0) + 3


def test_running_statistics_are_worth_less_than_those_of_the_batch_but_something_in_train_mode():
    rows = (5, 9)
    running = solved(rows, True, KNOWN)
    assert solved(rows, True, KNOWN, batch_norm=0.0) < running < solved(rows, True, WITH_STATISTICS)


@pytest.mark.parametrize("train", [True, False])
def test_restarts_work_together_in_both_modes_and_the_model_stays_as_it_is(train):
    images, observation = observed([3], train=train, threat=WITH_STATISTICS)
    model = observation.forward.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = rr.attacks.grad_inversion(steps=40, restarts=3)(observation, rng=torch.Generator().manual_seed(1))
    assert decibels(found, images) > 18
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.account.cost.evaluations == 3 * 41
    assert found.status.ending is Ending.BUDGET_SPENT


@dataclasses.dataclass(frozen=True)
class Watch:
    """A penalty of zero that notes the candidates it is shown."""

    places: list
    weight: float = 1.0
    prior_weight: float = 1.0
    final_share: float = 1.0

    def bind(self, observation):
        def penalty(inputs):
            self.places.append(inputs.detach())
            return inputs.new_zeros(len(inputs))

        return penalty


def test_the_group_draws_restarts_together():
    _, observation = observed([3], train=False)
    spreads = []
    for group in (0.0, 10.0):
        watch = Watch([])
        attack = rr.attacks.grad_inversion(steps=20, restarts=3, group=group)
        attack = dataclasses.replace(attack, regularizers=(*attack.regularizers, watch))
        attack(observation, rng=torch.Generator().manual_seed(0))
        spreads.append(float(torch.func.debug_unwrap(watch.places[-1], recurse=True).std(0).mean()))
    assert spreads[1] < 0.7 * spreads[0]


def test_labels_are_inferred_where_they_are_not_known():
    _, observation = observed([3], train=False, threat=HONEST_BUT_CURIOUS)
    found = rr.attacks.grad_inversion(steps=1, restarts=1)(observation, rng=torch.Generator().manual_seed(0))
    assert found.labels == (int(pictures()[1][3]),)


def test_a_network_without_batch_norm_and_records_without_rows_are_served():
    rng = torch.Generator().manual_seed(0)
    table = torch.rand(1, 6, generator=rng)
    model = rr.models.mlp(6, (12,), 3, activation=nn.Tanh, rng=rng)
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, table, torch.tensor([2]))
    with pytest.raises(InvalidInput, match="total_variation=0"):
        rr.attacks.grad_inversion()(rr.observe(release), rng=rng)
    attack = rr.attacks.grad_inversion(steps=200, restarts=1, total_variation=0)
    assert decibels(attack(rr.observe(release), rng=rng), table) > 30
