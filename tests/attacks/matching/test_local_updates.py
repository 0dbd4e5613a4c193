"""Updates of several local steps are inverted through the training that made them."""

import math
from functools import cache

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset

KNOWN = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)


@cache
def pictures():
    crops = load_dataset("crops")
    return nn.functional.interpolate(crops.inputs, (8, 8), mode="area").mean(1, keepdim=True)


def network(norm=None):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.Identity() if norm is None else norm(6),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(96, 5),
    )


def update_of(records, *, model=None, threat=KNOWN, labels=None, **training):
    training = {"learning_rate": 0.1, **training} if "optimizer" not in training else training
    labels = torch.arange(records) if labels is None else torch.tensor(labels)
    images = pictures()[:records]
    model = network() if model is None else model
    release = rr.releases.LocalUpdateRelease(model, nn.functional.cross_entropy, images, labels, **training)
    return images, rr.observe(release, threat=threat)


def decibels(found, images):
    """Of the worst record."""
    return -10 * math.log10(float((found.estimates - images).square().flatten(1).mean(1).max()))


def solve(attack, observation):
    return attack(observation, rng=torch.Generator().manual_seed(0))


TRAININGS = {
    "one record, two steps": (1, {"steps": 2}),
    "one record, five steps": (1, {"steps": 5}),
    "two records, three steps on both": (2, {"steps": 3}),
    "three records, two epochs of batches of two and one": (3, {"epochs": 2, "batch_size": 2}),
    "four records, one epoch of single ones": (4, {"epochs": 1, "batch_size": 1}),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_idlg_inverts_smooth_networks(name):
    records, training = TRAININGS[name]
    images, observation = update_of(records, **training)
    assert decibels(solve(rr.attacks.idlg(steps=120, restarts=1), observation), images) > 45


def test_inverting_gradients_inverts_them_too():
    images, observation = update_of(2, steps=3)
    assert decibels(solve(rr.attacks.inverting_gradients(steps=100), observation), images) > 40


def test_taking_the_update_for_one_gradient_fails_where_the_steps_are_long():
    """The steps are not a detail: what inverts them must go through them."""
    images, observation = update_of(1, learning_rate=1.0, steps=4)
    one_step = rr.releases.LocalUpdateRelease(
        network(), nn.functional.cross_entropy, images, torch.tensor([0]), learning_rate=4.0, steps=1
    )
    attack = rr.attacks.idlg(steps=60, restarts=1)
    through = decibels(solve(attack, observation), images)
    naive = rr.Observation(
        observation.released, one_step.forward, KNOWN, (1, 8, 8), (0.0, 1.0), labels=observation.labels
    )
    assert through > 40
    assert decibels(solve(attack, naive), images) < through - 20


@pytest.mark.parametrize(
    "optimizer", [rr.releases.sgd(0.1, momentum=0.9), rr.releases.adam(0.01)], ids=["momentum", "adam"]
)
def test_the_optimizer_of_the_client_is_replayed(optimizer):
    images, observation = update_of(1, optimizer=optimizer, steps=3)
    assert decibels(solve(rr.attacks.inverting_gradients(steps=100), observation), images) > 25


def test_running_statistics_that_are_sent_along_give_the_contrast():
    """In train mode the update holds the running statistics, so that batch norm hides nothing."""
    images, observation = update_of(2, model=network(nn.BatchNorm2d).train(), steps=2)
    assert {"1.running_mean", "1.running_var"} <= set(observation.released)
    assert decibels(solve(rr.attacks.idlg(steps=80, restarts=1), observation), images) > 30


def test_restarts_are_run_at_once_through_the_local_steps():
    images, observation = update_of(1, steps=2)
    found = solve(rr.attacks.idlg(steps=60, restarts=3), observation)
    assert decibels(found, images) > 50


def test_the_label_is_read_off_an_update_whose_sign_is_opposite_to_the_gradient():
    images, observation = update_of(1, threat=HONEST_BUT_CURIOUS, labels=[3], steps=3)
    found = solve(rr.attacks.idlg(steps=60, restarts=1), observation)
    assert found.labels == (3,)
    assert decibels(found, images) > 50


def test_candidates_of_another_number_than_the_batches_were_cut_for_are_refused():
    _, observation = update_of(3, epochs=1, batch_size=2)
    with pytest.raises(InvalidInput, match=r"Expected len\(inputs\)=2 to be 3"):
        observation.forward(pictures()[:2], torch.tensor([0, 1]))
