"""Noise of releases whose guarantee is printed lies on the public lattice, in every precision and on every device."""

import numpy as np
import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.mechanism import Gaussian
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import clip, gaussian_noise, laplace_noise, optimal_noise
from reconrisk.releases.float_safe_noise import lattice_step
from reconrisk.studies.informed import linear, network
from tests.other_device import ELSEWHERE, TwoDevices


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def is_on_lattice(values, std):
    steps = values.double() / lattice_step(torch.tensor(std))
    return torch.equal(steps, steps.round())


DENSE = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
CONVOLUTIONAL = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(6, 3))


@pytest.mark.parametrize("model", [DENSE, CONVOLUTIONAL], ids=["dense", "any network"])
def test_a_privately_trained_model_hides_its_gradient_in_the_last_bits(model):
    # one step of rate 1 from zero weights shows the noisy mean gradient itself
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    inputs = torch.rand(8, 6, generator=rng())
    given = {"optimizer": rr.releases.sgd(1.0), "steps": 1, "private": Gaussian(2.0, 0.5)}
    training = rr.releases.ShadowTraining(model, inputs[1:], torch.arange(7) % 3, **given)
    release = rr.releases.PrivateModelRelease(training, inputs[:1], torch.tensor([2]))
    assert all(value.dtype == torch.float32 for value in release.value().values())
    assert all(is_on_lattice(value, 2.0 * 0.5 / 8) for value in release.value().values())


@pytest.mark.parametrize("module", [network, linear], ids=["network", "linear"])
def test_released_models_of_the_informed_adversary_have_exact_noise(module, monkeypatch):
    drawn, add_noise = [], module.add_noise
    monkeypatch.setattr(module, "add_noise", lambda *given: drawn.append(add_noise(*given)) or drawn[-1])
    inputs = torch.rand(40, 4, generator=rng())
    data = Dataset("toy", inputs, (inputs[:, 0] > 0.5).long() if module is network else inputs.sum(1))
    if module is network:
        rr.rebuild_informed(nn.Linear(4, 2), data, [3], steps=3, noise_std=0.25, rng=rng())
    else:
        rr.rebuild_informed_linear("ridge", data, [3], noise_std=0.25, rng=rng())
    assert drawn
    assert all(is_on_lattice(each, 0.25) for each in drawn)


HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
STD = 0.25


def scales():
    """Moments for noise that differs by parameter."""
    inputs = torch.rand(16, 5, generator=rng())
    torch.manual_seed(0)
    return rr.sensitivity.reference_moments(nn.Linear(5, 2), nn.functional.cross_entropy, inputs, torch.arange(16) % 2)


DEFENSES = {
    "gaussian": lambda: gaussian_noise(STD),
    "laplace": lambda: laplace_noise(STD),
    "chain": lambda: clip(1.0) >> gaussian_noise(STD),
    "optimal": lambda: clip(1.0) >> optimal_noise(scales(), unit=STD),
}


@HALVES
@pytest.mark.parametrize("name", DEFENSES)
def test_half_precision_is_the_rounded_release_of_double_precision(name, dtype):
    defense = DEFENSES[name]()
    half = {"weight": torch.randn(2, 5, generator=rng()).to(dtype), "bias": torch.ones(2, dtype=dtype)}
    double = {key: value.double() for key, value in half.items()}
    sent, exact = defense(half, rng=rng(1)), defense(double, rng=rng(1))
    for key, value in sent.items():
        assert value.dtype == dtype
        assert torch.equal(value, exact[key].to(dtype))


@HALVES
def test_a_model_in_half_precision_trains_with_a_defense(dtype):
    torch.manual_seed(0)
    model = nn.Linear(5, 2).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.detach().clone()
    with rr.integrations.defend_optimizer(optimizer, model, clip(1.0) >> gaussian_noise(STD)) as defended:
        model(torch.rand(3, 5, generator=rng()).to(dtype)).square().mean().backward()
        optimizer.step()
    assert defended.sent["weight"].dtype == model.weight.dtype == dtype
    assert bool(model.weight.isfinite().all())
    assert not torch.equal(model.weight, before)


def test_an_update_of_flower_in_half_precision_is_defended():
    flwr_app = pytest.importorskip(
        "flwr.app", reason="flwr is not installed: the Flower integration is NOT tested here"
    )
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    torch.manual_seed(0)
    model = nn.Linear(4, 3).half()
    mod = rr.integrations.flower_mod(clip(1.0) >> gaussian_noise(STD), model, prior_success=0.1)
    content = {"arrays": flwr_app.ArrayRecord(model.state_dict()), "config": flwr_app.ConfigRecord({"server-round": 1})}
    message = flwr_app.Message(flwr_app.RecordDict(content), dst_node_id=1, message_type="train")

    def train(received, _):
        state = {key: value + 1 for key, value in received.content["arrays"].to_torch_state_dict().items()}
        reply = {"arrays": flwr_app.ArrayRecord(state), "metrics": flwr_app.MetricRecord({"num-examples": 1})}
        return flwr_app.Message(flwr_app.RecordDict(reply), reply_to=received)

    reply = mod(message, flwr_app.Context(7, 1, {}, flwr_app.RecordDict(), {}), train)
    sent = reply.content["arrays"].to_torch_state_dict()
    for key, value in model.state_dict().items():
        assert sent[key].dtype == torch.float16
        change = (sent[key] - value).double()
        assert 0 < float(change.abs().max()) < 3  # clipped to norm 1, plus noise of 0.25
        assert not np.allclose(change, 1.0)


@pytest.mark.parametrize("name", DEFENSES)
def test_noise_for_another_device_is_drawn_on_the_cpu(name):
    defense = DEFENSES[name]()
    here = {"weight": torch.randn(2, 5, generator=rng()), "bias": torch.ones(2)}
    expected = defense(here, rng=rng(1))
    with TwoDevices():
        sent = defense({key: value.to(ELSEWHERE) for key, value in here.items()}, rng=rng(1))
        assert all(value.device == ELSEWHERE for value in sent.values())
        assert all(torch.equal(sent[key].cpu(), value) for key, value in expected.items())
