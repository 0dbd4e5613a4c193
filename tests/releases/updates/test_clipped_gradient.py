import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models import guo2022_mnist
from reconrisk.releases import HardClip, SmoothClip
from reconrisk.releases.model_state import model_state
from reconrisk.releases.updates import clipped_gradient
from reconrisk.releases.updates.clipped_gradient import linearizations, probe_clipped_gradients
from tests.releases.conftest import single_gradients, single_jacobians

CLIPS = [None, HardClip(0.3), HardClip(100.0), SmoothClip(0.8)]


def _flat(cotangent, state):
    sizes = [value.numel() for value in state.released.values()]
    return [
        part.reshape(value.shape) for part, value in zip(cotangent.split(sizes), state.released.values(), strict=True)
    ]


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_products_from_both_sides_are_those_of_the_jacobians(named_module, records, clip):
    _, model = named_module
    jacobians, state = single_jacobians(model, *records, clip), model_state(model, torch.float64)
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(jacobians.shape[1], generator=rng, dtype=torch.float64)
    tangents = torch.randn(records[0].shape, generator=rng, dtype=torch.float64)
    (point,) = linearizations(state, nn.functional.cross_entropy, *records, clip=clip)
    pulled = point.pull(_flat(weights, state)).flatten(1)
    torch.testing.assert_close(pulled, torch.einsum("npd,p->nd", jacobians, weights))
    pushed = point.linearize(0.5).push(tangents)
    expected = 0.5 * torch.einsum("npd,nd->p", jacobians, tangents.flatten(1))
    torch.testing.assert_close(torch.cat([value.flatten() for value in pushed.values()]), expected)


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_radial_parts_and_norms_are_exact(named_module, records, clip):
    _, model = named_module
    result = probe_clipped_gradients(
        model, nn.functional.cross_entropy, *records, clip=clip, probes=1, rng=torch.Generator().manual_seed(0)
    )
    gradients = single_gradients(model, *records, clip).detach()
    along = torch.einsum(
        "npd,np->nd", single_jacobians(model, *records, clip), gradients / gradients.norm(dim=1)[:, None]
    )
    torch.testing.assert_close(result.radial, along.square().sum(1), rtol=1e-9, atol=1e-20)
    torch.testing.assert_close(result.norms, gradients.norm(dim=1))


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_probes_are_unbiased(records, clip):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    probes = 4000
    result = probe_clipped_gradients(
        model, nn.functional.cross_entropy, *records, clip=clip, probes=probes, rng=torch.Generator().manual_seed(0)
    )
    exact = single_jacobians(model, *records, clip).square().sum((1, 2))
    error = result.squares.std(0) / probes**0.5
    assert ((result.squares.mean(0) - exact).abs() < 4.5 * error).all()  # once in 1e5 by chance for five records


def test_chunks_change_nothing(records, monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    whole = next(
        iter(
            linearizations(model_state(model, torch.float64), nn.functional.cross_entropy, *records, clip=HardClip(0.3))
        )
    )
    parts = linearizations(
        model_state(model, torch.float64), nn.functional.cross_entropy, *records, clip=HardClip(0.3), size=2
    )
    weights = [torch.ones(3, 16, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    torch.testing.assert_close(torch.cat([part.pull(weights) for part in parts]), whole.pull(weights))
    monkeypatch.setattr(clipped_gradient, "records_per_graph", lambda records: 2)
    result = probe_clipped_gradients(
        model, nn.functional.cross_entropy, *records, clip=None, probes=3, rng=torch.Generator().manual_seed(0)
    )
    assert result.squares.shape == (3, 5)
    assert result.norms.shape == (5,)


def test_single_precision_agrees_with_the_exact_jacobian_to_1e_5_on_the_network_of_guo2022():
    rng = torch.Generator().manual_seed(0)
    model, clip = guo2022_mnist(rng=rng), HardClip(1.0)
    inputs, labels = torch.rand(2, 1, 28, 28, generator=rng), torch.tensor([3, 5])
    state = model_state(model, torch.float32)
    (point,) = linearizations(state, nn.functional.cross_entropy, inputs, labels, clip=clip)
    weights = [torch.randn(value.shape, generator=rng) for value in state.released.values()]
    model = model.double()
    doubled = inputs.double().requires_grad_()
    product = (single_gradients(model, doubled, labels, clip).sum(0) * torch.cat([w.flatten() for w in weights])).sum()
    (expected,) = torch.autograd.grad(product, doubled)
    assert float((point.pull(weights) - expected).norm() / expected.norm()) < 1e-5


def test_other_weights_can_be_passed_without_copying_them_into_the_module(records):
    first, second = (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double() for _ in range(2))
    settings = {"clip": HardClip(0.3), "probes": 2}
    own = probe_clipped_gradients(
        second, nn.functional.cross_entropy, *records, rng=torch.Generator().manual_seed(0), **settings
    )
    passed = probe_clipped_gradients(
        first,
        nn.functional.cross_entropy,
        *records,
        rng=torch.Generator().manual_seed(0),
        state=dict(second.named_parameters()),
        **settings,
    )
    torch.testing.assert_close(passed.squares, own.squares)


def test_modules_that_mix_records_are_refused(records):
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3)).double()
    with pytest.raises(InvalidInput, match=r"1\.training=True to be False for BatchNorm2d"):
        probe_clipped_gradients(
            model, nn.functional.cross_entropy, *records, clip=None, probes=1, rng=torch.Generator()
        )
