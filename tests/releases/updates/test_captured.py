import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import reconrisk as rr
from reconrisk.attacks.labels.infer import labels_for
from reconrisk.core.threat import Knows

LOSS = nn.functional.cross_entropy


def network():
    return rr.models.lenet((1, 12, 12), 4, activation=nn.Tanh, rng=torch.Generator().manual_seed(0))


def record():
    return torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.tensor([2])


def captured_gradient(model):
    inputs, labels = record()
    return rr.releases.GradientRelease(model, LOSS, inputs, labels).value()


def decibels(observation, target):
    found = rr.attacks.idlg(steps=120, restarts=2)(observation, rng=torch.Generator().manual_seed(0))
    return float(rr.metrics.score(found, target, rr.metrics.psnr(data_range=1.0))["psnr"][0])


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_gradient_in_a_file_gives_the_record_back(tmp_path, suffix):
    model = network()
    path = tmp_path / f"gradient.{suffix}"
    save_file(captured_gradient(model), path) if suffix == "safetensors" else torch.save(captured_gradient(model), path)
    observation = rr.releases.observe_captured(
        model, input_shape=(1, 12, 12), gradient=path, update=rr.UpdateRecipe(loss_fn=LOSS)
    )
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
    observation = rr.releases.observe_captured(
        other,
        input_shape=(1, 12, 12),
        before=tmp_path / "before.safetensors",
        after=tmp_path / "after.safetensors",
        update=rr.UpdateRecipe(loss_fn=LOSS, local_steps=3, local_learning_rate=0.1),
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
    observation = rr.releases.observe_captured(
        model,
        input_shape=(4,),
        before=model.state_dict(),
        after=after,
        update=rr.UpdateRecipe(loss_fn=LOSS, local_steps=2, local_learning_rate=0.1),
    )
    assert sorted(observation.released) == ["1.bias", "1.weight", "2.bias", "2.weight"]
    torch.testing.assert_close(observation.released["1.bias"], torch.full((3,), 0.5))


RULES = {
    "plain": (rr.releases.sgd(0.2), {"lr": 0.2}),
    "momentum": (rr.releases.sgd(0.2, momentum=0.9, dampening=0.5), {"lr": 0.2, "momentum": 0.9, "dampening": 0.5}),
    "Nesterov": (rr.releases.sgd(0.2, momentum=0.9, nesterov=True), {"lr": 0.2, "momentum": 0.9, "nesterov": True}),
    "decay": (rr.releases.sgd(0.2, weight_decay=0.3), {"lr": 0.2, "weight_decay": 0.3}),
}


def trained(model, inputs, labels, optimizer, batches):
    """The weights after the batches, by torch's own training."""
    own = copy.deepcopy(model)
    steps = optimizer(own.parameters())
    for rows in batches:
        steps.zero_grad()
        LOSS(own(inputs[rows]), labels[rows]).backward()
        steps.step()
    return own.state_dict()


@pytest.mark.parametrize("rule", RULES)
def test_one_step_of_gradient_descent_is_turned_into_its_gradient(rule):
    model, (inputs, labels), (ours, theirs) = network(), record(), RULES[rule]
    after = trained(model, inputs, labels, lambda values: torch.optim.SGD(values, **theirs), [[0]])
    observation = rr.releases.observe_captured(
        model,
        input_shape=(1, 12, 12),
        before=model.state_dict(),
        after=after,
        update=rr.UpdateRecipe(loss_fn=LOSS),
        training=rr.releases.LocalTraining(optimizer=ours),
        noise_std=0.1,
    )
    assert isinstance(observation.forward, rr.releases.GradientMap)
    for name, value in captured_gradient(model).items():
        # weights of size one carry float32 rounding of 6e-8, divided here by a rate of 0.2 or more
        torch.testing.assert_close(observation.released[name], value, atol=2e-6, rtol=1e-4)
    nesterov = 1.9 if rule == "Nesterov" else 1.0
    assert float(observation.noise_std["fc.0.bias"][0]) == pytest.approx(0.1 / (0.2 * nesterov))


def test_steps_in_batches_and_adaptive_steps_stay_the_change_of_the_weights():
    model, rng = network(), torch.Generator().manual_seed(3)
    inputs, labels = torch.rand(5, 1, 12, 12, generator=rng), torch.tensor([0, 1, 2, 3, 0])
    order = [[0, 1], [2, 3], [4]] * 2
    after = trained(model, inputs, labels, lambda values: torch.optim.Adam(values, lr=0.01), order)
    observation = rr.releases.observe_captured(
        model,
        input_shape=(1, 12, 12),
        before=model.state_dict(),
        after=after,
        update=rr.UpdateRecipe(batch_size=5),
        training=rr.releases.LocalTraining(optimizer=rr.releases.adam(0.01), epochs=2, batch_size=2),
    )
    again = observation.forward(inputs, labels)
    for name, value in observation.released.items():
        torch.testing.assert_close(again[name], value, atol=2e-4, rtol=1e-2)


def test_batch_norm_in_train_mode_sends_its_running_statistics_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    inputs, labels = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    before = copy.deepcopy(model.state_dict())
    after = trained(model, inputs, labels, lambda values: torch.optim.SGD(values, lr=0.1), [list(range(6))])
    one_step = rr.UpdateRecipe(batch_size=6, local_steps=1, local_learning_rate=0.1)
    observation = rr.releases.observe_captured(model, input_shape=(4,), before=before, after=after, update=one_step)
    assert {"2.running_mean", "2.running_var"} <= set(observation.released)
    again = observation.forward(inputs, labels)
    for name, value in observation.released.items():
        torch.testing.assert_close(again[name], value, atol=1e-6, rtol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    parameters = {name: value for name, value in before.items() if "running" not in name and "tracked" not in name}
    rr.releases.observe_captured(model, input_shape=(4,), before=parameters, after=after, update=one_step)


def test_a_gradient_at_other_weights_takes_them_from_before():
    model, other = network(), rr.models.lenet((1, 12, 12), 4, activation=nn.Tanh)
    gradient, untouched = captured_gradient(model), copy.deepcopy(other.state_dict())
    observation = rr.releases.observe_captured(
        other, input_shape=(1, 12, 12), gradient=gradient, before=model.state_dict()
    )
    assert all(torch.equal(value, untouched[name]) for name, value in other.state_dict().items())
    again = observation.forward(*record())
    assert all(torch.equal(again[name], value) for name, value in gradient.items())


def test_a_list_of_tensors_is_taken_in_the_order_of_the_model():
    model = network()
    gradient = torch.autograd.grad(LOSS(model(record()[0]), record()[1]), list(model.parameters()))
    observation = rr.releases.observe_captured(model, input_shape=(1, 12, 12), gradient=gradient)
    for name, value in captured_gradient(model).items():
        torch.testing.assert_close(observation.released[name], value)
    with pytest.raises(rr.InvalidInput, match=r"len\(gradient\)=7 to be 8.*body\.0\.weight"):
        rr.releases.observe_captured(model, input_shape=(1, 12, 12), gradient=gradient[:7])


def test_files_of_numpy_and_parts_of_a_model_are_read(tmp_path):
    model = network()
    head = {name: value.numpy() for name, value in captured_gradient(model).items() if name.startswith("fc")}
    np.savez(tmp_path / "head.npz", **head)
    observation = rr.releases.observe_captured(
        model, input_shape=(1, 12, 12), gradient=tmp_path / "head.npz", parameters=["fc"]
    )
    assert list(observation.released) == ["fc.0.weight", "fc.0.bias"]
    assert labels_for(observation).tolist() == [2]


def test_capturing_leaves_the_random_numbers_and_the_mode_as_they_are():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    state = torch.get_rng_state()
    rr.releases.observe_captured(model, input_shape=(4,), gradient=[torch.ones(3, 4), torch.ones(3)])
    assert torch.equal(state, torch.get_rng_state())
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    with pytest.raises(rr.InvalidInput, match=r"2\.training=True to be False for Dropout"):
        rr.releases.observe_captured(model.train(), input_shape=(4,), gradient=[torch.ones(3, 4), torch.ones(3)])


def test_known_noise_is_handed_on():
    model = network()
    observation = rr.releases.observe_captured(
        model, input_shape=(1, 12, 12), gradient=captured_gradient(model), noise_std=0.25
    )
    assert Knows.DEFENSE in observation.threat.knows
    assert {float(value.unique()) for value in observation.noise_std.values()} == {0.25}


ONE_STEP = {"local_steps": 1, "local_learning_rate": 0.1}
KINDS = {"update": rr.UpdateRecipe, "training": rr.releases.LocalTraining}


def built(given):
    """The arguments with their values for the client's training, which may themselves be refused."""
    return {
        name: KINDS[name](**value) if isinstance(value, dict) and name in KINDS else value
        for name, value in given.items()
    }


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
        (
            lambda gradient: {**gradient, "fc.0.bias": torch.full((4,), torch.nan)},
            r"gradient\['fc\.0\.bias'\] to be finite",
        ),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_by_the_layer(change, message):
    model = network()
    with pytest.raises(rr.InvalidInput, match=message):
        rr.releases.observe_captured(model, input_shape=(1, 12, 12), gradient=change(captured_gradient(model)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [4]}, r"max\(labels\)=4 to be from 0 to 3"),
        ({"labels": [-1]}, r"min\(labels\)=-1 to be from 0 to 3"),
        ({"labels": [1, 2]}, "batch_size=1 entries"),
        ({"update": {"batch_size": 0}}, "batch_size=0"),
        (
            {"input_shape": (3, 12, 12)},
            r"input_shape=\(3, 12, 12\) to be a shape that the model takes; it fails at body\.0",
        ),
        ({"input_shape": (1, 20, 20)}, r"it fails at fc\.0"),
        ({"noise_std": -1.0}, "noise_std=-1.0"),
        ({"gradient": None}, "exactly one"),
        ({"gradient": "nowhere.safetensors"}, "nowhere.safetensors"),
        (
            {"gradient": None, "after": {}, "update": {"local_steps": 1, "local_learning_rate": 0.1}},
            "weights before",
        ),
        (
            {"update": {"local_steps": 3, "local_learning_rate": 0.1}},
            r"\(local_steps, local_learning_rate\)=\(3, 0\.1\) to be left out if gradient is given",
        ),
        (
            {"training": {"learning_rate": 0.1}},
            r"training=LocalTraining\(learning_rate=0\.1, .*\) to be left out if gradient is given",
        ),
        ({"gradient": 3}, r"type\(gradient\)='int' to be a file of named tensors"),
        ({"gradient": {"fc.0.bias": [1.0]}}, "to be a file of named tensors or the tensors"),
        ({"labels": 2}, "labels=2 to have batch_size=1 entries"),
        ({"input_shape": ()}, "input_shape"),
        ({"input_shape": (1, 0, 12)}, "input_shape=0 >= 1"),
        ({"data_range": (1.0, 0.0)}, "low < high"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    model = network()
    given = {"input_shape": (1, 12, 12), "gradient": captured_gradient(model), **changes}
    with pytest.raises((rr.InvalidInput, rr.InvalidFile), match=message):
        rr.releases.observe_captured(model, **built(given))


def test_a_recipe_that_is_none_is_refused():
    with pytest.raises(rr.InvalidInput, match=r"update=3 to be an UpdateRecipe. Pass rr\.UpdateRecipe"):
        rr.releases.observe_captured(
            network(), input_shape=(1, 12, 12), gradient=captured_gradient(network()), update=3
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "after to differ from before"),
        ({"reduction": "sum"}, r"\('sum', None\) to be left out if after is given"),
        ({"update": {}}, r"update\.local_steps=None to be stated if after is given"),
        ({"update": {}, "training": {}}, "exactly one value"),
        ({"update": {}, "training": {"learning_rate": 0.1, "steps": 2, "epochs": 2}}, "exactly one number"),
        ({"training": {"learning_rate": 0.1}}, r"update\.local_steps=1 to be left out if training is given"),
        ({"before": {"fc.0.bias": torch.ones(4)}}, "before to have the 8 tensors of the model, it has 1"),
    ],
)
def test_weights_that_cannot_be_are_refused(changes, message):
    weights = network().state_dict()
    given = {"before": weights, "after": weights, "update": ONE_STEP, **changes}
    with pytest.raises(rr.InvalidInput, match=message):
        rr.releases.observe_captured(network(), input_shape=(1, 12, 12), **built(given))


@pytest.mark.parametrize("which", ["before", "after"])
def test_weights_that_are_not_finite_are_refused_by_the_layer(which):
    good = network().state_dict()
    bad = {**good, "body.2.bias": torch.full((12,), torch.inf)}
    given = {"before": good, "after": good, which: bad}
    with pytest.raises(rr.InvalidInput, match=rf"{which}\['body\.2\.bias'\] to be finite"):
        rr.releases.observe_captured(network(), input_shape=(1, 12, 12), update=rr.UpdateRecipe(**ONE_STEP), **given)


@pytest.mark.parametrize("prefix", ["module.", "_module."])
def test_names_of_a_wrapped_model_are_refused_with_the_way_out(prefix):
    gradient = {prefix + name: value for name, value in captured_gradient(network()).items()}
    with pytest.raises(rr.InvalidInput, match=rf"Strip '{prefix}' from the names"):
        rr.releases.observe_captured(network(), input_shape=(1, 12, 12), gradient=gradient)


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "gradient.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(rr.InvalidFile, match=r"gradient\.safetensors"):
        rr.releases.observe_captured(network(), input_shape=(1, 12, 12), gradient=tmp_path / "gradient.safetensors")


@pytest.mark.parametrize("label", [4, -1])
def test_labels_that_are_no_class_are_refused_when_observed(label):
    release = rr.releases.GradientRelease(network(), LOSS, record()[0], torch.tensor([label]))
    with pytest.raises(rr.InvalidInput, match=rf"{'min' if label < 0 else 'max'}\(labels\)={label} "):
        rr.observe(release)
