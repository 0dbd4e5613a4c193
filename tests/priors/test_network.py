"""Networks as priors: which mode they have to be in, now and later, and in which precision they are asked."""

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.priors.diffusion import denoiser
from reconrisk.priors.generator import generator
from reconrisk.priors.network import check_mode

KNOW_A_MODE = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(2),
    "Dropout": lambda: nn.Dropout(0.1),
    "RReLU": lambda: nn.RReLU(),
    "MultiheadAttention": lambda: nn.MultiheadAttention(2, 1, dropout=0.1),
    "LSTM": lambda: nn.LSTM(2, 2, num_layers=2, dropout=0.1),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(2, track_running_stats=True),
    "SpectralNorm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
    "Linear": lambda: nn.utils.spectral_norm(nn.Linear(2, 2)),  # the older form, a hook of the layer
}
KNOW_NONE = {
    "nothing": lambda: nn.Linear(2, 2),
    "attention": lambda: nn.MultiheadAttention(2, 1),
    "recurrence": lambda: nn.LSTM(2, 2),
    "instances": lambda: nn.InstanceNorm1d(2),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
}


@pytest.mark.parametrize("name", KNOW_A_MODE)
def test_layers_that_answer_differently_in_training_are_refused_there(name):
    network = nn.Sequential(nn.Linear(2, 2), KNOW_A_MODE[name]())
    words = rf"function='Sequential' to be in evaluation mode\. Call \.eval\(\) on it: {name} is still in training mode"
    with pytest.raises(InvalidInput, match=words):
        check_mode("function", network)
    check_mode("function", network.eval())


@pytest.mark.parametrize("name", KNOW_NONE)
def test_layers_that_know_no_mode_are_taken_in_any(name):
    check_mode("function", nn.Sequential(KNOW_NONE[name]()).train())


class Own(nn.Module):
    """A denoiser that drops in training."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))

    def forward(self, noisy, times):
        return self.layers(noisy)


def test_training_again_does_not_go_unnoticed():
    network = Own().eval()
    prior = denoiser(network, (2,))
    expected = prior.noise(torch.ones(1, 2), 3)
    network.train()
    with pytest.raises(InvalidInput, match=r"predict_noise='Own' to be in evaluation mode"):
        prior.noise(torch.ones(1, 2), 3)
    network.eval()
    assert torch.equal(prior.noise(torch.ones(1, 2), 3), expected)
    layers = network.layers
    made = generator(layers, (2,), 2)
    layers.train()
    with pytest.raises(InvalidInput, match=r"generate='Sequential' to be in evaluation mode"):
        made.decode(torch.ones(1, 2))


def test_networks_are_asked_in_the_precision_of_their_weights_and_answer_in_that_of_the_question():
    network = Own().eval()
    noise, made = denoiser(network, (2,)), generator(network.layers, (2,), 2)
    asked = torch.rand(3, 2, generator=torch.Generator().manual_seed(0))
    precise = asked.double().requires_grad_()
    for answer in (lambda values: noise.noise(values, 3), made.decode):
        found = answer(precise)
        assert found.dtype == torch.float64
        assert torch.equal(found, answer(asked).double())
        (slope,) = torch.autograd.grad(found.sum(), precise)
        assert slope.dtype == torch.float64


def test_functions_without_weights_take_what_they_are_given():
    seen = []

    def remembered(noisy, times):
        seen.append(noisy.dtype)
        return noisy

    denoiser(remembered, (2,)).noise(torch.zeros(1, 2).double(), 3)
    assert seen == [torch.float64]
