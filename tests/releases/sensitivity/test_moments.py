import math

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.sensitivity.parameters import parameter_sensitivity
from reconrisk.releases.updates.gradient import GradientRelease

CROSS_ENTROPY = nn.functional.cross_entropy


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3))


def test_means_agree_with_record_by_record_gradients_and_exact_rows(network):
    inputs, labels = torch.rand(7, 1, 6, 6, dtype=torch.float64, generator=rng(1)), torch.arange(7) % 3
    found = reference_moments(network, CROSS_ENTROPY, inputs, labels, probes=60, chunk=3, rng=rng(2))
    square = dict.fromkeys(found.square, 0.0)
    sensitivity = dict.fromkeys(found.square, 0.0)
    for record in range(7):
        release = GradientRelease(network, CROSS_ENTROPY, inputs[record : record + 1], labels[record : record + 1])
        rows = parameter_sensitivity(release, exact=True).values
        for name, value in release.value().items():
            square[name] = square[name] + value.square() / 7
            sensitivity[name] = sensitivity[name] + rows[name] / 7
    for name in square:
        torch.testing.assert_close(found.square[name], square[name])
        errors = (found.sensitivity[name] - sensitivity[name]) / found.standard_error[name]
        alive = sensitivity[name] > 0
        assert (found.sensitivity[name][~alive] == 0).all()
        assert errors[alive].abs().max() < 5.5  # about a hundred coordinates, squares of normals have heavier tails
        assert 0.6 < errors[alive].square().mean() < 1.6 or alive.sum() < 20


@pytest.mark.parametrize("chunk", [1, 4])
def test_the_stated_error_is_the_error_and_falls_with_records_times_probes_over_the_chunk(chunk):
    """The gradient of half the squared output's bias is w x: its sensitivity |w|^2 for every record."""
    model = nn.Linear(4, 1).double()
    inputs, labels = torch.zeros(8, 4, dtype=torch.float64), torch.zeros(8, 1, dtype=torch.float64)

    def loss(outputs, labels):
        return (outputs - labels).square().sum() / 2

    truth = model.weight.detach().square().sum()
    found = [reference_moments(model, loss, inputs, labels, probes=4, chunk=chunk, rng=rng(seed)) for seed in range(80)]
    values = torch.stack([each.sensitivity["bias"] for each in found])
    spread = float(truth) * math.sqrt(2 * chunk / 32)
    assert float(values.std()) == pytest.approx(spread, rel=5 / math.sqrt(160) * math.sqrt(1 + 3 * chunk / 8))
    assert float(values.mean()) == pytest.approx(float(truth), abs=5 * spread / math.sqrt(80))
    stated = torch.stack([each.standard_error["bias"].square() for each in found]).mean().sqrt()
    assert float(stated) == pytest.approx(spread, rel=0.15 * math.sqrt(chunk))


def test_chunks_do_not_change_the_mean_square(network):
    inputs, labels = torch.rand(5, 1, 6, 6, generator=rng(1)), torch.zeros(5).long()
    whole, parts = (
        reference_moments(network, CROSS_ENTROPY, inputs, labels, probes=1, chunk=chunk, rng=rng()) for chunk in (9, 2)
    )
    for name in whole.square:
        torch.testing.assert_close(whole.square[name], parts.square[name])
        assert whole.square[name].dtype == torch.float32


def test_a_loss_summed_or_averaged_over_the_batch_is_the_same_for_one_record(network):
    inputs, labels = torch.rand(3, 1, 6, 6, generator=rng(1)), torch.zeros(3).long()
    mean = reference_moments(network, CROSS_ENTROPY, inputs, labels, probes=2, rng=rng())
    total = reference_moments(network, nn.CrossEntropyLoss(reduction="sum"), inputs, labels, probes=2, rng=rng())
    torch.testing.assert_close(mean.sensitivity, total.sensitivity)


def test_batch_norm_in_training_mode_and_bad_arguments_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    inputs, labels = torch.rand(3, 2), torch.zeros(3).long()
    with pytest.raises(InvalidInput, match=r"1\.training=True to be False for BatchNorm1d"):
        reference_moments(model, CROSS_ENTROPY, inputs, labels, rng=rng())
    with pytest.raises(InvalidInput, match=r"rng=7 to be a torch\.Generator"):
        reference_moments(model.eval(), CROSS_ENTROPY, inputs, labels, rng=7)
    with pytest.raises(InvalidInput, match="chunk=0 >= 1"):
        reference_moments(model, CROSS_ENTROPY, inputs, labels, chunk=0, rng=rng())


def test_layer_norm_and_recurrent_layers_agree_with_one_record_after_the_other():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.cell(x)[0][:, -1])

    labels = torch.arange(4) % 2
    for model, shape in (
        (nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)), (5,)),
        (Recurrent(), (6, 3)),
    ):
        inputs = torch.rand(4, *shape, generator=rng(3))
        found = reference_moments(model, CROSS_ENTROPY, inputs, labels, probes=2, rng=rng())
        for name, square in found.square.items():
            single = [GradientRelease(model, CROSS_ENTROPY, inputs[i : i + 1], labels[i : i + 1]) for i in range(4)]
            expected = torch.stack([release.value()[name].square() for release in single]).mean(0)
            torch.testing.assert_close(square, expected, rtol=1e-4, atol=1e-8)


def test_by_layer_keeps_the_total_of_each_layer(network):
    inputs, labels = torch.rand(5, 1, 6, 6, generator=rng(1)), torch.zeros(5).long()
    found = reference_moments(network, CROSS_ENTROPY, inputs, labels, probes=2, rng=rng())
    layers = found.by_layer()
    for name, value in found.sensitivity.items():
        assert layers.sensitivity[name].unique().numel() == 1
        torch.testing.assert_close(layers.sensitivity[name].sum(), value.sum())
        torch.testing.assert_close(layers.square[name].sum(), found.square[name].sum())
