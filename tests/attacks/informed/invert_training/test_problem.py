"""What cannot be inverted is refused in words that say what can be, and what serves for the rest."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.informed.invert_training.problem import ClippedProblem, problem_for
from reconrisk.core.errors import InvalidInput

BATCHES = [[0, 1, 20], [2, 3, 20]]
INVERTED = (
    r"Private training can be inverted if rr\.releases\.sgd takes all records in every step \(batches=None\), "
    r"with or without"
)
INSTEAD = r"rr\.attacks\.reconstructor with rr\.attacks\.ShadowKnowledge handles other optimizers and batches"


def training(optimizer=None, **settings):
    rng = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3)
    settings = {"private": rr.mechanisms.Gaussian(0.1, 1.0), "steps": 3} | settings
    labels = torch.arange(20) % 3
    return rr.releases.ShadowTraining(
        model, torch.rand(20, 4, generator=rng), labels, optimizer or rr.releases.sgd(0.2), **settings
    )


@pytest.mark.parametrize("optimizer", [rr.releases.sgd(0.2), rr.releases.sgd(0.2, 0.9)])
def test_what_the_words_say_is_inverted_is(optimizer):
    assert isinstance(problem_for(training(optimizer)), ClippedProblem)


REFUSED = {
    "Adam": {"optimizer": rr.releases.adam(0.01)},
    "Nesterov": {"optimizer": rr.releases.sgd(0.2, 0.9, nesterov=True)},
    "batches": {"batches": BATCHES, "steps": None},
}


@pytest.mark.parametrize("how", REFUSED)
def test_private_training_of_another_rule_is_refused_with_what_serves(how):
    refused = training(**REFUSED[how])
    message = f"training=.private, with .*{how}.* to be full-batch gradient descent. {INVERTED}.*{INSTEAD}"
    with pytest.raises(InvalidInput, match=message):
        problem_for(refused)
    data = rr.data.Dataset("records", torch.rand(30, 4), torch.arange(30) % 3, data_range=(0.0, 1.0))
    with pytest.raises(InvalidInput, match=message):
        rr.audit(refused, data, trials=1)


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_said_to_serve_does(how):
    rng = torch.Generator().manual_seed(1)  # other records than the fixed ones
    shadows, labels = torch.rand(60, 4, generator=rng), torch.arange(60) % 3
    knowledge = rr.attacks.ShadowKnowledge(training(**REFUSED[how]), shadows, labels)
    attack = rr.attacks.reconstructor(knowledge, rng=rng)
    victims = knowledge.training.train(shadows[:2], labels[:2], rng=rng)
    assert bool(attack.estimates(victims).isfinite().all())


@pytest.mark.parametrize(
    "change", [{"draw_start": lambda rng: nn.Linear(4, 3)}, {"batches": rr.releases.RandomBatches(5), "private": None}]
)
def test_a_drawn_start_or_order_is_refused_with_what_serves(change):
    message = (
        "random initialisation or order.* to be a function of the record.*reconstructor with .* handles unknown ones"
    )
    with pytest.raises(InvalidInput, match=message):
        problem_for(training(**change))
