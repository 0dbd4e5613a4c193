import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import reconrisk as rr
from reconrisk.core.threat import Knows

LOSS = nn.functional.cross_entropy


def network():
    return rr.models.lenet((1, 12, 12), 4, activation=nn.Tanh, rng=torch.Generator().manual_seed(0))


def record():
    return torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.tensor([2])


def captured_gradient(model):
    inputs, labels = record()
    return rr.GradientRelease(model, LOSS, inputs, labels).value()


def decibels(observation, target):
    found = rr.attacks.idlg(steps=120, restarts=2)(observation, rng=torch.Generator().manual_seed(0))
    return float(rr.score(found, target, rr.metrics.psnr(data_range=1.0))["psnr"][0])


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_gradient_in_a_file_gives_the_record_back(tmp_path, suffix):
    model = network()
    path = tmp_path / f"gradient.{suffix}"
    save_file(captured_gradient(model), path) if suffix == "safetensors" else torch.save(captured_gradient(model), path)
    observation = rr.observe_captured(model, LOSS, input_shape=(1, 12, 12), gradient=path)
    assert observation.labels is None
    assert decibels(observation, record()[0]) > 40


def test_weights_before_and_after_local_steps_give_the_record_back(tmp_path):
    model = network()
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    inputs, labels = record()
    for _ in range(3):
        optimizer.zero_grad()
        LOSS(trained(inputs), labels).backward()
        optimizer.step()
    save_file(model.state_dict(), tmp_path / "before.safetensors")
    save_file(trained.state_dict(), tmp_path / "after.safetensors")
    other = rr.models.lenet((1, 12, 12), 4, activation=nn.Tanh, rng=torch.Generator().manual_seed(9))
    untouched = copy.deepcopy(other.state_dict())
    observation = rr.observe_captured(
        other,
        LOSS,
        input_shape=(1, 12, 12),
        before=tmp_path / "before.safetensors",
        after=tmp_path / "after.safetensors",
        learning_rate=0.1,
        steps=3,
        labels=[2],
    )
    assert Knows.LABELS in observation.threat.knows
    again = observation.forward(inputs, labels)
    for name, value in observation.released.items():
        torch.testing.assert_close(again[name], value, atol=1e-6, rtol=1e-4)
    assert decibels(observation, inputs) > 30
    assert all(torch.equal(value, untouched[name]) for name, value in other.state_dict().items())


def test_running_statistics_in_a_file_of_weights_are_not_taken_for_an_update():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    after = {name: value + 0.5 * value.is_floating_point() for name, value in model.state_dict().items()}
    observation = rr.observe_captured(
        model, LOSS, input_shape=(4,), before=model.state_dict(), after=after, learning_rate=0.1
    )
    assert sorted(observation.released) == ["1.bias", "1.weight", "2.bias", "2.weight"]
    torch.testing.assert_close(observation.released["1.bias"], torch.full((3,), 0.5))


def test_known_noise_is_handed_on():
    model = network()
    observation = rr.observe_captured(
        model, LOSS, input_shape=(1, 12, 12), gradient=captured_gradient(model), noise_std=0.25
    )
    assert Knows.DEFENSE in observation.threat.knows
    assert {float(value.unique()) for value in observation.noise_std.values()} == {0.25}


def _without(name):
    return lambda gradient: {key: value for key, value in gradient.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("fc.0.bias"), r"it has 7\. Missing: fc\.0\.bias"),
        (lambda gradient: {**gradient, "fc.9.bias": torch.ones(2)}, r"not in the model: fc\.9\.bias"),
        (
            lambda gradient: {**gradient, "fc.0.bias": torch.ones(7)},
            r"gradient\['fc\.0\.bias'\]\.shape=\(7,\) to be \(4,\)",
        ),
        (lambda gradient: {**gradient, "fc.0.bias": torch.full((4,), torch.nan)}, r"released\['fc\.0\.bias'\]"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_by_the_layer(change, message):
    model = network()
    with pytest.raises(rr.InvalidInput, match=message):
        rr.observe_captured(model, LOSS, input_shape=(1, 12, 12), gradient=change(captured_gradient(model)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [4]}, "labels=4 to be from 0 to 3"),
        ({"labels": [-1]}, "labels=-1 to be from 0 to 3"),
        ({"labels": [1, 2]}, "batch_size=1 entries"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"input_shape": (3, 12, 12)}, r"input_shape=\(3, 12, 12\) to be what the model takes; it fails at body\.0"),
        ({"input_shape": (1, 20, 20)}, r"it fails at fc\.0"),
        ({"noise_std": -1.0}, "noise_std=-1.0"),
        ({"gradient": None}, "exactly one"),
        ({"gradient": "nowhere.safetensors"}, "nowhere.safetensors"),
        ({"gradient": None, "after": {}, "learning_rate": 0.1}, "weights before"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    model = network()
    given = {"input_shape": (1, 12, 12), "gradient": captured_gradient(model), **changes}
    with pytest.raises((rr.InvalidInput, rr.InvalidFile), match=message):
        rr.observe_captured(model, LOSS, **given)


@pytest.mark.parametrize("label", [4, -1])
def test_labels_that_are_no_class_are_refused_when_observed(label):
    release = rr.GradientRelease(network(), LOSS, record()[0], torch.tensor([label]))
    with pytest.raises(rr.InvalidInput, match=f"labels={label}"):
        rr.observe(release)
