"""Private training in plain loops, as reproductions need it, against torch."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from reconrisk.data.dataset import Dataset
from reconrisk.models import guo2022_mnist
from reconrisk.releases.updates.clipping import HardClip, SmoothClip
from reproductions.private_training import Setting, accuracy, clipped_sum, private_steps


def few_digits(count):
    rng = torch.Generator().manual_seed(3)
    return Dataset("few", torch.rand(count, 1, 28, 28, generator=rng), torch.arange(count) % 10)


@pytest.mark.parametrize("clip", [HardClip(3.0), SmoothClip(3.0)])
def test_sum_of_clipped_gradients_is_that_of_single_records(clip):
    model, few = guo2022_mnist(rng=torch.Generator().manual_seed(0)).double(), few_digits(6)
    inputs, expected = few.inputs.double(), [torch.zeros_like(parameter) for parameter in model.parameters()]
    for record, label in zip(inputs, few.labels, strict=True):
        gradient = torch.autograd.grad(cross_entropy(model(record[None]), label[None]), list(model.parameters()))
        norm = torch.cat([part.flatten() for part in gradient]).norm()
        expected = [total + clip.factor(norm) * part for total, part in zip(expected, gradient, strict=True)]
    for found, total in zip(clipped_sum(model, inputs, few.labels, clip), expected, strict=True):
        torch.testing.assert_close(found, total, rtol=1e-9, atol=1e-12)  # double precision, sums of 6


def test_an_empty_batch_has_sum_zero():
    few = few_digits(2)
    sums = clipped_sum(guo2022_mnist(), few.inputs[:0], few.labels[:0], HardClip(1.0))
    assert all(bool((total == 0).all()) for total in sums)


def test_without_clipping_and_noise_private_steps_are_those_of_sgd():
    few, rng = few_digits(8), torch.Generator().manual_seed(0)
    private, plain = (guo2022_mnist(rng=torch.Generator().manual_seed(1)) for _ in range(2))
    setting = Setting(noise_multiplier=1e-12, step_size=0.1, clip_norm=1e4, batch=8)
    assert list(private_steps(private, few, setting, steps=3, accountants=[], rng=rng)) == [1, 2, 3]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        # far below the clip norm smooth clipping multiplies by 1 / (1 + GELU(-1))
        (SmoothClip(1.0).factor(torch.tensor(0.0)) * cross_entropy(plain(few.inputs), few.labels)).backward()
        optimizer.step()
    for found, expected in zip(private.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)  # |g| / C is up to 1e-3


def test_noise_of_a_private_step_has_the_stated_size():
    few, setting = few_digits(4), Setting(noise_multiplier=1000.0, step_size=1.0, clip_norm=2.0, batch=2)
    model = guo2022_mnist(rng=torch.Generator().manual_seed(1))
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    assert 0 <= accuracy(model, few) <= 1
    list(private_steps(model, few, setting, steps=1, accountants=[], rng=torch.Generator().manual_seed(2)))
    moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before
    # 26,010 normal numbers: their spread is known to 0.44 %, four of that; the gradients add less than 1e-4
    assert float(moved.std()) == pytest.approx(1000.0, rel=0.02)
