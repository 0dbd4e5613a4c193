"""The measurements of balle2022's tables and figures on few records of the shipped digits."""

from dataclasses import replace

import pytest
import torch

import reconrisk as rr
from reconrisk.accounting.trade_off import epsilon_from_gaussian
from reproductions.balle2022 import figure9, figure21, table2
from reproductions.balle2022.table2 import DEFAULT, attacked, estimate, oracle, rows_of, trained

TINY = replace(DEFAULT, fixed=20, shadows=200, targets=10, steps=20)


@pytest.fixture
def digits(monkeypatch):
    data = rr.load_dataset("mnist")
    monkeypatch.setattr(table2, "pool", lambda: (data.inputs, data.labels))
    monkeypatch.setattr(figure9, "pool", lambda: (data.inputs, data.labels))
    trained.cache_clear()
    yield data
    trained.cache_clear()


def test_no_digit_is_target_and_known(digits):
    targets, fixed, shadows = rows_of(TINY, 3)
    assert [len(targets), len(fixed), len(shadows)] == [10, 20, 200]
    assert len(torch.cat([targets, fixed, shadows]).unique()) == 230


def test_shadow_models_are_kept_for_what_reads_them_otherwise(digits):
    whole = attacked(TINY)
    models = trained(TINY.trained, 0)
    part = attacked(replace(TINY, parameters=("layers.2",), learned_from=100))
    assert trained(TINY.trained, 0) is models
    assert len(whole.known) == 220
    assert len(part.known) == 120
    errors = (whole.estimates - whole.targets).square().mean()
    # the setting is easy: twenty steps on twenty fixed records; guessing the nearest known digit is far worse
    assert float(errors) < 0.8 * oracle(whole, TINY).ours.value


def test_one_released_model_is_that_of_a_plain_loop(digits):
    models = trained(TINY.trained, 0)
    training = models.knowledge.training
    model, fixed = training.model, (training.fixed_inputs, training.fixed_labels)
    model.load_state_dict(training.unflatten(training.start()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    inputs, labels = (torch.cat(pair) for pair in zip(fixed, (models.targets[:1], models.labels[:1]), strict=True))
    for _ in range(TINY.steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    row = training.flatten(dict(model.named_parameters()))
    # float32 through twenty steps
    assert torch.allclose(row, models.released[0], atol=1e-5)


def test_noise_gives_the_epsilon_asked_for():
    setting = figure9.protected(TINY, 10.0)
    assert setting.private is not None
    mu = TINY.steps**0.5 / setting.private.noise_multiplier
    assert epsilon_from_gaussian(mu, figure9.DELTA) == pytest.approx(10.0, rel=1e-6)
    assert figure9.protected(TINY, None) == TINY


def test_best_guess_found_is_no_better_than_the_certified_one(digits, monkeypatch):
    monkeypatch.setattr(figure9, "SAMPLE", 300)
    prior = figure9.prior_success(2, 0.0232)
    assert 1 / 300 <= prior.found <= prior.certified <= 1
    assert figure9.prior_success(2, 1.0).found == 1.0  # no two digits are farther apart


def test_gradient_norms_are_those_of_autograd(digits):
    models = trained(TINY.trained, 0)
    training = models.knowledge.training
    found = figure21.norms(training, models.released[:2], models.targets[:2], models.labels[:2])
    model = training.model
    model.load_state_dict(training.unflatten(models.released[1]))
    loss = torch.nn.functional.cross_entropy(model(models.targets[1:2]), models.labels[1:2])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert float(found[1]) == pytest.approx(float(norm), rel=1e-4)


def test_interval_of_a_mean():
    found = estimate(torch.tensor([1.0, 2.0, 3.0]))
    assert (found.value, found.samples) == (2.0, 3)
    assert found.high - found.value == pytest.approx(1.96 / 3**0.5)
