"""The precision attack on the weights of DP-SGD steps whose record is known."""

import pytest
import torch
from torch import nn

from reconrisk.attacks import DpSgdSettings, match_candidates
from reconrisk.core.errors import InvalidInput

SIZE, COUNT, PLACE = 64, 30, 11
LOSS = nn.functional.cross_entropy


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 10), nn.Tanh(), nn.Linear(10, 8))


def train(model, inputs, labels, *, steps, rate, by_torch):
    """Iterates of DP-SGD with clip norm 1 and noise multiplier 3, all of it in float32."""
    rng, optimizer = torch.Generator().manual_seed(1), torch.optim.SGD(model.parameters(), lr=rate)
    iterates = [{name: value.detach().clone() for name, value in model.named_parameters()}]
    for _ in range(steps):
        total = None
        for record, label in zip(inputs, labels, strict=True):
            model.zero_grad()
            LOSS(model(record[None]), label[None]).backward()
            flat = torch.cat([value.grad.reshape(-1) for value in model.parameters()])
            flat = flat * (1.0 / flat.norm()).clamp(max=1.0)
            total = flat if total is None else total + flat
        noisy = (total + 3.0 * torch.randn(total.shape, generator=rng)) / len(inputs)
        with torch.no_grad():
            for value, part in zip(
                model.parameters(), noisy.split([v.numel() for v in model.parameters()]), strict=True
            ):
                value.grad = part.reshape(value.shape).clone()
                if not by_torch:
                    value.copy_(value - rate * value.grad)
        if by_torch:
            optimizer.step()
        iterates.append({name: value.detach().clone() for name, value in model.named_parameters()})
    return iterates


@pytest.mark.parametrize(("by_torch", "first"), [(True, False), (False, False), (False, True)])
def test_weights_show_the_record_of_a_training_with_float_noise(by_torch, first):
    rng = torch.Generator().manual_seed(0)
    records, others = torch.rand(COUNT, SIZE, generator=rng), torch.rand(3, SIZE, generator=rng)
    labels, answers = torch.arange(COUNT) % 8, torch.arange(3)
    own, label = records[[PLACE]], labels[[PLACE]]
    inputs = torch.cat([own, others] if first else [others, own])
    targets = torch.cat([label, answers] if first else [answers, label])
    iterates = train(network(), inputs, targets, steps=2, rate=1.0, by_torch=by_torch)
    settings = DpSgdSettings(learning_rate=1.0, clip_norm=1.0, noise_multiplier=3.0)
    arguments = {"known_inputs": others, "known_labels": answers, "settings": settings}
    found = match_candidates(network(), LOSS, iterates, records, labels, **arguments, low_bits=True)
    assert found.index == PLACE
    assert found.posterior[PLACE] == 1.0  # every other candidate is excluded
    ordinary = match_candidates(network(), LOSS, iterates, records, labels, **arguments)
    assert ordinary.posterior.max() < 0.5


def test_sampling_is_refused():
    settings = DpSgdSettings(
        learning_rate=1.0,
        clip_norm=1.0,
        noise_multiplier=3.0,
        batch_size=1.0,
        sampling_probability=0.5,
        participation=torch.ones(1, 1, dtype=torch.bool),
    )
    start = {name: value.detach() for name, value in network().named_parameters()}
    with pytest.raises(InvalidInput, match="low_bits=True to be False under sampling"):
        match_candidates(
            network(),
            LOSS,
            [start, start],
            torch.rand(2, SIZE),
            torch.zeros(2, dtype=torch.int64),
            known_inputs=torch.rand(1, SIZE),
            known_labels=torch.zeros(1, dtype=torch.int64),
            settings=settings,
            low_bits=True,
        )
