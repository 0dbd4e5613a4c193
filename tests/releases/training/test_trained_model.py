import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.training.optimizers import adam, sgd
from reconrisk.releases.training.trained_model import TrainedModelRelease, TrainingMap

DOUBLE = torch.float64


def records(count, features=4, classes=3, seed=0, dtype=DOUBLE):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, features, generator=rng, dtype=dtype)
    return inputs, torch.randint(classes, (count,), generator=rng)


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def perceptron(seed=0):
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ELU(), nn.Linear(5, 3)), seed)


def normalised():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))


def convolutional():
    layers = [nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.Softplus(), nn.MaxPool2d(2), nn.Flatten()]
    return seeded(lambda: nn.Sequential(*layers, nn.Linear(3, 3)))


def release_of(model, private=2, fixed=6, *, seed=0, optimizer=None, loss_fn=cross_entropy, **settings):
    inputs, labels = records(private + fixed, seed=seed)
    if "batches" not in settings:
        settings = {"steps": 5, **settings}
    return TrainedModelRelease(
        model,
        loss_fn,
        inputs[fixed:],
        labels[fixed:],
        fixed_inputs=inputs[:fixed],
        fixed_labels=labels[:fixed],
        optimizer=optimizer or sgd(0.1, 0.9),
        **settings,
    )


def trained_by_torch(model, inputs, labels, batches, build, **settings):
    model = copy.deepcopy(model).to(inputs.dtype)
    optimizer = build(model.parameters(), **settings)
    for rows in batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return model


def random_like(values, seed=5):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=rng, dtype=value.dtype) for name, value in values.items()}


def assert_linearization_is_right(release):
    """Push against central differences, pull against push, batches of either against single ones."""
    derivative, rng = release.linearize(), torch.Generator().manual_seed(3)
    tangents = torch.randn(3, *release.inputs.shape, generator=rng, dtype=DOUBLE)
    pushed = derivative.push(tangents[0])
    step = 1e-5  # error about step^2 = 1e-10 and rounding 1e-16 / step = 1e-11, relative to values of order one
    ahead = release.forward(release.inputs + step * tangents[0], release.labels)
    behind = release.forward(release.inputs - step * tangents[0], release.labels)
    for name, value in pushed.items():
        torch.testing.assert_close(value, (ahead[name] - behind[name]) / (2 * step), rtol=1e-6, atol=1e-8)
    weights = random_like(pushed)
    pulled = derivative.pull(weights)
    dual = sum((weights[name] * value).sum() for name, value in pushed.items())
    torch.testing.assert_close((pulled * tangents[0]).sum(), dual, rtol=1e-10, atol=1e-12)
    batch = torch.func.vmap(derivative.push)(tangents)
    for name, value in derivative.push(tangents[2]).items():
        torch.testing.assert_close(batch[name][2], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", [perceptron, normalised, convolutional])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    ("rule", "build", "settings"),
    [
        (
            sgd(0.1, 0.9, 0.01, nesterov=True),
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        ),
        (adam(0.01, eps=1e-4), torch.optim.Adam, {"lr": 0.01, "eps": 1e-4}),  # smaller eps would amplify rounding
    ],
    ids=["sgd", "adam"],
)
def test_it_is_the_training_of_torch(model, dtype, rule, build, settings):
    model, (inputs, labels) = model(), records(10, dtype=dtype)
    batches = [torch.arange(10).roll(number)[:7] for number in range(20)]
    release = TrainedModelRelease(
        model, cross_entropy, inputs[8:], labels[8:],
        fixed_inputs=inputs[:8], fixed_labels=labels[:8], optimizer=rule, batches=batches,
    )  # fmt: skip
    oracle = trained_by_torch(model, inputs, labels, batches, build, **settings).state_dict()
    value = release.value()
    assert set(value) == {name for name in oracle if "num_batches" not in name}
    tolerance = 1e-10 if dtype == DOUBLE else 1e-3  # rounding in gradients, divided by eps = 1e-4
    for name, tensor in value.items():
        assert tensor.dtype == dtype
        assert not tensor.requires_grad
        torch.testing.assert_close(tensor, oracle[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("model", [perceptron, normalised, convolutional])
@pytest.mark.parametrize("optimizer", [sgd(0.1, 0.9), adam(0.01, eps=1e-4)], ids=["sgd", "adam"])
@pytest.mark.parametrize("queries", [False, True])
def test_derivatives_agree_with_differences_and_with_each_other(model, optimizer, queries):
    asked = records(3, seed=9)[0] if queries else None
    assert_linearization_is_right(release_of(model(), optimizer=optimizer, queries=asked))


@pytest.mark.parametrize("loss_fn", [cross_entropy, mse_loss])
def test_pushes_keep_no_graph(loss_fn, monkeypatch):
    inputs, labels = records(4)
    labels = labels if loss_fn is cross_entropy else nn.functional.one_hot(labels, 3).double()
    release = TrainedModelRelease(perceptron(), loss_fn, inputs, labels, optimizer=sgd(0.1), steps=2)
    derivative, tangents = release.linearize(), torch.ones(3, 4, 4, dtype=DOUBLE)
    monkeypatch.delattr("reconrisk.releases.training.trained_model.linearize_graph")
    assert torch.func.vmap(derivative.push)(tangents)["2.bias"].shape == (3, 3)
    with pytest.raises(NameError):
        derivative.pull(release.template())


def test_batched_pulls_are_the_single_ones():
    release = release_of(perceptron())
    derivative, template = release.linearize(), release.template()
    weights = {name: torch.stack([random_like(template, seed)[name] for seed in range(3)]) for name in template}
    batch = torch.func.vmap(derivative.pull)(weights)
    single = derivative.pull({name: value[1] for name, value in weights.items()})
    torch.testing.assert_close(batch[1], single, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", [perceptron, normalised])
@pytest.mark.parametrize("every", [1, 2, 5, 9])
@pytest.mark.parametrize("queries", [False, True])
def test_checkpoints_do_not_change_the_derivative(model, every, queries):
    asked = records(3, seed=9)[0] if queries else None
    whole = release_of(model(), queries=asked)
    parts = release_of(model(), queries=asked, checkpoint_every=every)
    weights = random_like(whole.template())
    derivative = parts.linearize()
    for _ in range(2):
        torch.testing.assert_close(derivative.pull(weights), whole.linearize().pull(weights), rtol=1e-10, atol=1e-12)


def linear_release(learning_rate, steps):
    """Least squares with one private record: the weights after so many steps of gradient descent."""
    rng = torch.Generator().manual_seed(4)
    inputs, labels = torch.randn(6, 3, generator=rng, dtype=DOUBLE), torch.randn(6, 1, generator=rng, dtype=DOUBLE)
    inputs = 2 * torch.linalg.qr(inputs)[0] + 0.1 * inputs
    model = seeded(lambda: nn.Linear(3, 1, bias=False)).double()
    release = TrainedModelRelease(
        model, mse_loss, inputs[5:], labels[5:],
        fixed_inputs=inputs[:5], fixed_labels=labels[:5], optimizer=sgd(learning_rate), steps=steps,
    )  # fmt: skip
    return release, model.weight.detach()[0], inputs, labels[:, 0]


def test_one_step_on_least_squares_has_the_closed_form():
    release, start, inputs, labels = linear_release(0.2, 1)
    error = inputs @ start - labels
    torch.testing.assert_close(release.value()["weight"][0], start - 0.2 * 2 / 6 * inputs.T @ error)
    # d/dx of (w.x - y) x is (w.x - y) I + x w^T
    jacobian = -0.2 * 2 / 6 * (error[5] * torch.eye(3, dtype=DOUBLE) + torch.outer(inputs[5], start))
    derivative = release.linearize()
    for row in range(3):
        weight = torch.eye(3, dtype=DOUBLE)[row][None]
        torch.testing.assert_close(derivative.pull({"weight": weight})[0], jacobian[row])
        torch.testing.assert_close(derivative.push(weight)["weight"][0], jacobian[:, row])


def test_many_steps_on_least_squares_reach_the_solution_and_its_derivative():
    release, _, inputs, labels = linear_release(0.6, 80)
    gram = inputs.T @ inputs
    slowest = (1 - 0.6 * 2 / 6 * torch.linalg.eigvalsh(gram)).abs().max()
    assert slowest**80 < 1e-14
    solution = torch.linalg.solve(gram, inputs.T @ labels)
    torch.testing.assert_close(release.value()["weight"][0], solution, rtol=1e-9, atol=1e-10)
    error = inputs[5] @ solution - labels[5]
    # implicit function theorem: -(X^T X)^-1 ((w.x - y) I + x w^T)
    jacobian = -torch.linalg.solve(gram, error * torch.eye(3, dtype=DOUBLE) + torch.outer(inputs[5], solution))
    pushed = torch.func.vmap(release.linearize().push)(torch.eye(3, dtype=DOUBLE)[:, None])
    torch.testing.assert_close(pushed["weight"][:, 0].T, jacobian, rtol=1e-8, atol=1e-10)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 100))
def test_the_order_of_records_does_not_matter_in_full_batches(seed):
    release = release_of(perceptron(), private=3, seed=seed)
    order = torch.randperm(3, generator=torch.Generator().manual_seed(seed))
    other = TrainedModelRelease(
        release.model, cross_entropy, release.inputs[order], release.labels[order],
        fixed_inputs=release.fixed_inputs.flip(0), fixed_labels=release.fixed_labels.flip(0),
        optimizer=release.optimizer, steps=5,
    )  # fmt: skip
    value, same = release.value(), other.value()
    for name, tensor in value.items():
        torch.testing.assert_close(same[name], tensor, rtol=1e-10, atol=1e-12)
    weights = random_like(value)
    torch.testing.assert_close(
        other.linearize().pull(weights), release.linearize().pull(weights)[order], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("every", [None, 1])
def test_records_outside_every_batch_have_zero_derivative(every):
    batches = [torch.tensor([0, 6, 2]), torch.tensor([1, 3]), torch.tensor([6])]
    release = release_of(perceptron(), private=2, batches=batches, checkpoint_every=every)
    pulled = release.linearize().pull(random_like(release.template()))
    assert pulled[0].abs().max() > 1e-4
    assert torch.equal(pulled[1], torch.zeros(4, dtype=DOUBLE))
    nothing = release_of(perceptron(), private=2, batches=batches[1:2], checkpoint_every=every).linearize()
    assert torch.equal(nothing.pull(random_like(release.template())), torch.zeros(2, 4, dtype=DOUBLE))
    assert all(torch.equal(t, torch.zeros_like(t)) for t in nothing.push(torch.ones(2, 4, dtype=DOUBLE)).values())


def test_rows_keep_the_order_of_their_batch():
    def first_counts_most(outputs, labels):
        weights = torch.arange(len(labels), 0, -1, dtype=outputs.dtype)
        return (weights * cross_entropy(outputs, labels, reduction="none")).sum()

    model, (inputs, labels) = perceptron(), records(8)
    rows = torch.tensor([7, 2, 6, 0])
    release = release_of(model, loss_fn=first_counts_most, batches=[rows], optimizer=sgd(0.1))
    model.double()
    first_counts_most(model(inputs[rows]), labels[rows]).backward()
    torch.testing.assert_close(release.value()["0.weight"], (model[0].weight - 0.1 * model[0].weight.grad).detach())


@pytest.mark.parametrize("model", [perceptron, normalised])
def test_queries_get_the_logits_of_the_trained_model_in_eval_mode(model):
    model, (inputs, labels), asked = model(), records(8), records(3, seed=9)[0]
    release = release_of(model, queries=asked)
    trained = trained_by_torch(model, inputs, labels, [torch.arange(8)] * 5, torch.optim.SGD, lr=0.1, momentum=0.9)
    assert list(release.value()) == ["logits"]
    torch.testing.assert_close(release.value()["logits"], trained.eval()(asked).detach(), rtol=1e-10, atol=1e-12)


def test_batch_norm_without_momentum_averages_all_batches():
    model = normalised()
    model[1].momentum = None
    release, (inputs, labels) = release_of(model), records(8)
    trained = trained_by_torch(model, inputs, labels, [torch.arange(8)] * 5, torch.optim.SGD, lr=0.1, momentum=0.9)
    torch.testing.assert_close(release.value()["1.running_var"], trained[1].running_var, rtol=1e-10, atol=1e-12)


def test_chosen_parameters_are_a_part_of_the_release():
    whole, model = release_of(perceptron()).value(), perceptron()
    assert torch.equal(release_of(model, parameters=["2.bias"]).value()["2.bias"], whole["2.bias"])
    assert list(release_of(model, parameters=["2"]).value()) == ["2.weight", "2.bias"]
    model[0].requires_grad_(False)
    frozen = release_of(model)
    assert list(frozen.value()) == ["2.weight", "2.bias"]
    assert_linearization_is_right(frozen)


@pytest.mark.parametrize("model", [perceptron, normalised])
def test_the_module_is_unchanged_and_later_changes_of_it_do_not_matter(model):
    model = model()
    before = copy.deepcopy(model.state_dict())
    release = release_of(model)
    value = release.value()
    derivative = release.linearize()
    derivative.pull(derivative.push(torch.ones_like(release.inputs)))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert getattr(model[1], "track_running_stats", True)
    with torch.no_grad():
        model[0].weight.zero_()
    assert all(torch.equal(value[name], tensor) for name, tensor in release.value().items())


def test_the_template_has_the_shapes_of_the_value():
    for chosen in ({}, {"parameters": ["0"]}, {"queries": records(3)[0]}):
        release = release_of(normalised(), **chosen)
        shapes = {name: tensor.shape for name, tensor in release.value().items()}
        assert {name: tensor.shape for name, tensor in release.template().items()} == shapes


def test_parameters_without_gradient_do_not_spoil_the_derivative_of_adam():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)

        def forward(self, inputs):
            return self.used(inputs)

    inputs, labels = records(3)
    inputs[:, 0] = 0  # weights of a dark pixel have gradient exactly zero
    release = TrainedModelRelease(
        seeded(Spare), cross_entropy, inputs[2:], labels[2:],
        fixed_inputs=inputs[:2], fixed_labels=labels[:2], optimizer=adam(1.0, eps=10.0), steps=4,
    )  # fmt: skip
    derivative = release.linearize()
    pushed = derivative.push(torch.ones(1, 4, dtype=DOUBLE))
    assert all(tensor.isfinite().all() for tensor in pushed.values())
    assert pushed["used.weight"][:, 0].abs().min() > 1e-4
    assert torch.equal(pushed["unused.weight"], torch.zeros(2, 2, dtype=DOUBLE))
    assert derivative.pull(random_like(pushed)).isfinite().all()
    assert_linearization_is_right(release)  # g / (|g| + eps) bends by |g| / eps: 1e-7 at that step


class Exponential(torch.autograd.Function):
    """An operation of the old style, which torch.func refuses."""

    @staticmethod
    def forward(ctx, inputs):
        ctx.save_for_backward(inputs)
        return inputs.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp()


class OldStyle(nn.Module):
    def forward(self, inputs):
        return Exponential.apply(inputs)


class CountsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls.add_(1)
        return inputs * self.calls


class WarmsUp(CountsCalls):
    """Shows only in later calls that it counts them."""

    def forward(self, inputs):
        self.calls.add_(1)
        return inputs * torch.where(self.calls > 4, 2.0, 1.0)


class SubtractsTheMean(nn.Module):
    def forward(self, inputs):
        return inputs - inputs.mean(0)


class Branches(nn.Module):
    def forward(self, inputs):
        return 2 * inputs if inputs.sum() > 0 else inputs


@pytest.mark.parametrize("layer", [OldStyle, CountsCalls, WarmsUp, SubtractsTheMean, Branches])
@pytest.mark.parametrize("every", [None, 2])
def test_unusual_layers_have_the_right_derivative(layer, every):
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), layer(), nn.Linear(3, 3)))
    release = release_of(model, checkpoint_every=every)
    (inputs, labels), settings = records(8), {"lr": 0.1, "momentum": 0.9}
    trained = trained_by_torch(model, inputs, labels, [torch.arange(8)] * 5, torch.optim.SGD, **settings)
    torch.testing.assert_close(release.value()["0.weight"], trained[0].weight.detach(), rtol=1e-10, atol=1e-12)
    derivative, tangents = release.linearize(), torch.ones_like(release.inputs)
    pushed = derivative.push(tangents)
    ahead, behind = (release.forward(release.inputs + sign * 1e-5, release.labels) for sign in (1, -1))
    for name, value in pushed.items():
        torch.testing.assert_close(value, (ahead[name] - behind[name]) / 2e-5, rtol=1e-6, atol=1e-8)
    dual = sum((value * value).sum() for value in pushed.values())
    torch.testing.assert_close(derivative.pull(pushed).sum(), dual, rtol=1e-10, atol=1e-12)


def test_the_map_can_be_transformed_by_torch_func():
    release = release_of(perceptron())
    jacobian = torch.func.jacrev(lambda x: release.forward(x, release.labels)["2.bias"])(release.inputs)
    weights = {**{n: torch.zeros_like(t) for n, t in release.template().items()}, "2.bias": torch.eye(3)[1].double()}
    torch.testing.assert_close(jacobian[1], release.linearize().pull(weights))


def test_the_value_keeps_no_graph_even_for_records_that_require_gradients():
    release = release_of(perceptron())
    release.inputs.requires_grad_()
    assert not any(tensor.requires_grad for tensor in release.value().values())
    assert release.forward(release.inputs, release.labels)["2.bias"].requires_grad


def test_training_on_private_records_alone_needs_no_fixed_ones():
    inputs, labels = records(4)
    alone = TrainedModelRelease(perceptron(), cross_entropy, inputs, labels, optimizer=sgd(0.1), steps=3)
    oracle = trained_by_torch(perceptron(), inputs, labels, [torch.arange(4)] * 3, torch.optim.SGD, lr=0.1)
    torch.testing.assert_close(alone.value()["0.weight"], oracle[0].weight.detach())


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.Dropout(0.5), "Dropout"),
        (nn.RReLU(), "RReLU"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "InstanceNorm1d"),
        (nn.LSTM(4, 4, 2, dropout=0.1), "LSTM"),
    ],
)
def test_layers_that_draw_are_refused_by_name(layer, name):
    model = nn.Sequential(nn.Linear(4, 4), layer)
    message = rf"1\.training=True to be False for {name}. Call model.get_submodule\('1'\).eval\(\)"
    with pytest.raises(InvalidInput, match=message):
        release_of(model)
    release_of(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0), nn.Dropout(0.5).eval())).value()


def test_spectral_norm_is_refused():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    with pytest.raises(InvalidInput, match=r"0\.parametrizations\.weight\.0\.training=True to be False"):
        release_of(model)


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*is deprecated:FutureWarning")
def test_spectral_norm_of_the_old_style_is_refused_in_train_mode_and_right_in_eval_mode():
    model = seeded(lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))))
    with pytest.raises(InvalidInput, match=r"0\.training=True to be False for Linear with spectral_norm"):
        release_of(model)
    assert_linearization_is_right(release_of(model.eval()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": None}, "steps=None to be a number, because batches is None. Pass steps="),
        ({"steps": 0}, "steps=0 >= 1"),
        ({"steps": 2, "batches": [torch.tensor([0])]}, "steps=2 to equal the number of batches, 1"),
        ({"batches": []}, "batches with at least one element"),
        ({"batches": [torch.tensor([0]), torch.tensor([], dtype=torch.int64)]}, r"batches\[1\] with at least one"),
        ({"batches": [torch.tensor([0.5])]}, r"batches\[0\]=.* to be a list of record numbers"),
        ({"batches": [torch.tensor([-1])]}, r"batches\[0\]=.* to be a list of record numbers"),
        ({"batches": [torch.tensor([[1]])]}, r"batches\[0\]=.* to be a list of record numbers"),
        (
            {"batches": [torch.tensor([8])]},
            r"max\(batches\)=8 < 8, the number of records\. Count from 0, the fixed records first",
        ),
        ({"parameters": "0"}, r"parameters='0' to be a list of names. Write \['0'\]"),
        ({"parameters": []}, "parameters with at least one element"),
        ({"parameters": ["3"]}, "parameters='3' to name one of 0.weight, 0.bias, 2.weight"),
        ({"parameters": ["0"], "queries": torch.ones(1, 4)}, r"parameters=\['0'\] to be None if queries are given"),
        ({"queries": torch.ones(0, 4)}, "queries with at least one element"),
        ({"queries": torch.full((1, 4), torch.nan)}, "queries to be finite"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 >= 1"),
        ({"optimizer": torch.optim.SGD}, r"type\(optimizer\)='type' to be an update rule"),
    ],
)
def test_settings_outside_their_domain_are_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        release_of(perceptron(), **settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fixed_inputs": None}, "fixed_inputs=None to be given, because only one"),
        ({"fixed_labels": None}, "fixed_labels=None to be given, because only one"),
        ({"fixed_inputs": torch.ones(2, 4, dtype=torch.int64)}, "fixed_inputs.dtype=torch.int64 to be floating point"),
        ({"fixed_inputs": torch.full((2, 4), torch.inf)}, "fixed_inputs to be finite"),
        ({"fixed_inputs": torch.ones(3, 4)}, "one label per fixed record, got 3 records with 2 labels"),
        ({"fixed_inputs": torch.ones(2, 5)}, r"inputs.shape=\(1, 4\) to end in \(5,\)"),
        ({"fixed_labels": torch.ones(2)}, r"labels='torch.int64 of shape \(\)' to be like the fixed labels"),
        ({"fixed_labels": torch.ones(2, 1, dtype=torch.int64)}, r"torch.int64 of shape \(1,\)"),
    ],
)
def test_fixed_records_that_do_not_fit_are_refused(changed, message):
    fixed = {"fixed_inputs": torch.ones(2, 4), "fixed_labels": torch.tensor([0, 1]), **changed}
    wide = fixed["fixed_inputs"] is not None and fixed["fixed_inputs"].shape[1] == 5
    model = nn.Linear(5, 3) if wide else perceptron()
    with pytest.raises(InvalidInput, match=message):
        TrainedModelRelease(
            model, cross_entropy, torch.ones(1, 4), torch.tensor([0]), optimizer=sgd(0.1), steps=1, **fixed
        )


def test_candidates_and_directions_that_do_not_fit_are_refused():
    release = release_of(perceptron())
    with pytest.raises(InvalidInput, match="got 2 records with 1 labels"):
        release.forward(release.inputs, release.labels[:1])
    with pytest.raises(InvalidInput, match="inputs with at least one element"):
        release.forward(release.inputs[:0], release.labels[:0])
    with pytest.raises(InvalidInput, match=r"tangents.shape=\(1, 4\) to be \(2, 4\)"):
        release.linearize().push(torch.ones(1, 4, dtype=DOUBLE))
    for every in (None, 2):
        derivative = release_of(perceptron(), checkpoint_every=every).linearize()
        with pytest.raises(InvalidInput, match=r"cotangents\['0.weight'\].shape=None to be \(5, 4\)"):
            derivative.pull({})
    with pytest.raises(InvalidInput, match="model with parameters to train"):
        TrainingMap(nn.Flatten(), cross_entropy, sgd(0.1), steps=1)


def weight_normed(build, trained=True):
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Sequential(build(nn.Linear(5, 3)))))
    model[1].requires_grad_(trained)
    return model


OLD_WEIGHT_NORM = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")


@OLD_WEIGHT_NORM
@pytest.mark.parametrize(
    ("build", "remedy"),
    [
        (nn.utils.parametrizations.weight_norm, "torch.nn.utils.parametrize.remove_parametrizations"),
        (nn.utils.weight_norm, "torch.nn.utils.remove_weight_norm"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_trained_weight_norm_is_refused_by_the_name_of_its_layer(build, remedy, training):
    with pytest.raises(InvalidInput, match=rf"Expected 1\.0 to have a plain weight, but it uses weight_norm.*{remedy}"):
        release_of(weight_normed(build).train(training))
    with pytest.raises(InvalidInput, match="Expected model to have a plain weight, but it uses weight_norm"):
        release_of(seeded(lambda: build(nn.Linear(4, 3))))


def test_weight_norm_that_is_not_trained_has_the_right_derivative():
    assert_linearization_is_right(release_of(weight_normed(nn.utils.parametrizations.weight_norm, trained=False)))


class WeightNormed(nn.Module):
    """The plain product that the refusal names as a remedy."""

    def __init__(self):
        super().__init__()
        self.g, self.v = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.randn(3, 4))

    def forward(self, inputs):
        return inputs @ (self.g * self.v / self.v.norm(dim=1, keepdim=True)).T


def test_weight_norm_as_a_plain_product_has_the_right_derivative():
    assert_linearization_is_right(release_of(seeded(WeightNormed)))


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 20), nn.Linear(20, 3)

    def forward(self, inputs):
        return self.last(nn.functional.dropout(self.first(inputs), 0.1, self.training))


@pytest.mark.parametrize("zeroed", [False, True])
def test_functional_dropout_is_refused_and_the_random_state_stays(zeroed):
    model = seeded(FunctionalDropout)
    if zeroed:  # its outputs are the same each time, its gradients are not
        nn.init.zeros_(model.last.weight)
    before = torch.get_rng_state()
    with pytest.raises(InvalidInput, match="same gradient each time, but two evaluations differ"):
        release_of(model)
    assert torch.equal(torch.get_rng_state(), before)
    release_of(model.eval()).value()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_draws_is_refused():
    def noisy(outputs, labels):
        return cross_entropy(outputs + torch.randn_like(outputs), labels)

    with pytest.raises(InvalidInput, match="model and loss_fn to give the same gradient"):
        release_of(perceptron(), loss_fn=noisy)


@pytest.mark.parametrize("convert", [list, tuple, np.array, iter])
def test_batches_may_be_lists(convert):
    rows = [[0, 1], [6, 2], [7, 7]]
    expected = release_of(perceptron(), batches=[torch.tensor(each) for each in rows]).value()
    assert all(
        torch.equal(value, expected[name])
        for name, value in release_of(perceptron(), batches=convert(rows)).value().items()
    )


@pytest.mark.parametrize("batches", [[0, 1], [["a"]], [[0, None]], [[True, False]], [[0.5]], [None]])
def test_batches_that_are_no_lists_of_numbers_are_refused(batches):
    with pytest.raises(InvalidInput, match=r"batches\[0\]=.* to be a list of record numbers. Count from 0"):
        release_of(perceptron(), batches=batches)
    with pytest.raises(InvalidInput, match=r"batches=3 to be a list of record numbers for each step"):
        release_of(perceptron(), batches=3)


@pytest.mark.parametrize("name", ["inputs", "labels", "fixed_inputs", "fixed_labels", "queries"])
def test_arrays_are_refused_with_the_way_to_make_them_tensors(name):
    inputs, labels = records(2)
    arguments = {"inputs": inputs, "labels": labels, "fixed_inputs": inputs, "fixed_labels": labels, "queries": inputs}
    arguments[name] = arguments[name].numpy()
    with pytest.raises(
        InvalidInput, match=rf"type\({name}\)='ndarray' to be a tensor. Convert with torch.as_tensor\({name}\)"
    ):
        TrainedModelRelease(perceptron(), cross_entropy, optimizer=sgd(0.1), steps=1, **arguments)


def test_missing_labels_are_refused():
    with pytest.raises(InvalidInput, match=r"labels=None to be a tensor. Pass the labels used in training"):
        TrainedModelRelease(perceptron(), cross_entropy, records(2)[0], None, optimizer=sgd(0.1), steps=1)
