import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.training.optimizers import adam, sgd
from reconrisk.releases.updates.gradient import GradientMap
from reconrisk.releases.updates.local_update import LocalUpdateRelease, consecutive_batches


def client(count=5, *, norm=False, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, 4, generator=rng, dtype=dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 5), nn.BatchNorm1d(5)] if norm else [nn.Linear(4, 5)]
        model = nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(5, 3))
    return model, inputs, torch.randint(3, (count,), generator=rng)


def test_one_step_is_the_gradient_times_minus_the_learning_rate():
    model, inputs, labels = client()
    update = LocalUpdateRelease(model, cross_entropy, inputs, labels, learning_rate=0.3, steps=1).value()
    for name, gradient in GradientMap(model)(inputs, labels).items():
        torch.testing.assert_close(update[name], -0.3 * gradient.detach())


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_epochs_are_those_of_a_loader_without_shuffling(norm, dtype):
    model, inputs, labels = client(6, norm=norm, dtype=dtype)
    release = LocalUpdateRelease(model, cross_entropy, inputs, labels, optimizer=sgd(0.2, 0.5), epochs=3, batch_size=4)
    before, after = model.to(dtype).state_dict(), copy.deepcopy(model).to(dtype)
    optimizer = torch.optim.SGD(after.parameters(), lr=0.2, momentum=0.5)
    for _ in range(3):
        for rows in (slice(0, 4), slice(4, 6)):
            optimizer.zero_grad()
            cross_entropy(after(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    update = release.value()
    assert ("1.running_var" in update) == norm
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5  # six steps of about 1e-7 each, values of order one
    for name, value in update.items():
        assert value.dtype == dtype
        expected = after.state_dict()[name] - before[name]
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("settings", [{"steps": 4}, {"epochs": 2, "batch_size": 2}])
def test_derivatives_agree_with_differences_and_with_each_other(every, settings):
    model, inputs, labels = client()
    release = LocalUpdateRelease(
        model, cross_entropy, inputs, labels, optimizer=adam(0.01, eps=1e-3), checkpoint_every=every, **settings
    )
    derivative = release.linearize()
    tangents = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1), dtype=inputs.dtype)
    pushed = derivative.push(tangents)
    ahead, behind = (release.forward(inputs + sign * 1e-5 * tangents, labels) for sign in (1, -1))
    for name, value in pushed.items():  # central differences: 1e-10 by curvature, 1e-11 by rounding
        torch.testing.assert_close(value, (ahead[name] - behind[name]) / 2e-5, rtol=1e-6, atol=1e-8)
    dual = sum((value * value).sum() for value in pushed.values())
    torch.testing.assert_close((derivative.pull(pushed) * tangents).sum(), dual)
    shapes = {name: value.shape for name, value in release.value().items()}
    assert {name: value.shape for name, value in release.template().items()} == shapes


def test_records_after_the_last_batch_do_not_enter():
    model, inputs, labels = client()
    release = LocalUpdateRelease(model, cross_entropy, inputs, labels, learning_rate=0.1, steps=2, batch_size=2)
    pulled = release.linearize().pull(release.value())
    assert torch.equal(pulled[4], torch.zeros(4, dtype=torch.float64))
    assert all(pulled[record].abs().max() > 0 for record in range(4))


def test_chosen_parameters_and_the_model_stay_as_they_are():
    model, inputs, labels = client()
    before = copy.deepcopy(model.state_dict())
    release = LocalUpdateRelease(
        model, cross_entropy, inputs, labels, learning_rate=0.1, epochs=2, parameters=["2.bias"]
    )
    assert list(release.value()) == ["2.bias"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_batches_cover_each_pass_in_order():
    assert [rows.tolist() for rows in consecutive_batches(5, 2, epochs=2)] == [[0, 1], [2, 3], [4]] * 2
    assert [rows.tolist() for rows in consecutive_batches(2, None, steps=2)] == [[0, 1]] * 2
    assert [rows.tolist() for rows in consecutive_batches(2, 9, steps=1)] == [[0, 1]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.1}, r"\(None, None\) to have exactly one number"),
        ({"learning_rate": 0.1, "steps": 1, "epochs": 1}, r"\(1, 1\) to have exactly one number"),
        ({"steps": 1}, r"\(optimizer, learning_rate\)=\(None, None\) to have exactly one value"),
        (
            {"steps": 1, "learning_rate": 0.1, "optimizer": sgd(0.1)},
            r"\(optimizer, learning_rate\)=.*exactly one value",
        ),
        ({"steps": 1, "learning_rate": 0.1, "batch_size": 0}, "batch_size=0 >= 1"),
        ({"steps": 0, "learning_rate": 0.1}, "steps=0 >= 1"),
        ({"epochs": 0, "learning_rate": 0.1}, "epochs=0 >= 1"),
    ],
)
def test_settings_outside_their_domain_are_refused(settings, message):
    model, inputs, labels = client()
    with pytest.raises(InvalidInput, match=message):
        LocalUpdateRelease(model, cross_entropy, inputs, labels, **settings)


def test_another_number_of_candidates_than_the_batches_are_cut_from_is_refused():
    model, inputs, labels = client()
    release = LocalUpdateRelease(model, cross_entropy, inputs, labels, learning_rate=0.1, epochs=1, batch_size=2)
    for use in (release.forward, release.forward.linearize):
        with pytest.raises(InvalidInput, match=r"len\(inputs\)=4 to be 5"):
            use(inputs[:4], labels[:4])
    anything = LocalUpdateRelease(model, cross_entropy, inputs, labels, learning_rate=0.1, epochs=1)
    anything.forward(inputs[:4], labels[:4])


def test_batches_are_the_clients_own_order():
    model, inputs, labels = client()
    order = [3, 0, 4, 2, 1]
    own = LocalUpdateRelease(
        model, cross_entropy, inputs, labels, learning_rate=0.1, batches=[order[:2], order[2:4], order[4:]]
    )
    sorted_ones = LocalUpdateRelease(
        model, cross_entropy, inputs[order], labels[order], learning_rate=0.1, epochs=1, batch_size=2
    )
    for name, value in sorted_ones.value().items():
        torch.testing.assert_close(own.value()[name], value)
    ones = {name: torch.ones_like(value) for name, value in own.template().items()}
    torch.testing.assert_close(own.linearize().pull(ones)[order], sorted_ones.linearize().pull(ones))
    with pytest.raises(InvalidInput, match=r"len\(inputs\)=4 to be 5"):
        own.forward(inputs[:4], labels[:4])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 1}, r"\(steps, epochs, batch_size\)=\(1, None, None\) to be left out if batches are given"),
        ({"batch_size": 2}, r"\(None, None, 2\) to be left out if batches are given"),
        ({"batches": [[0, 5]]}, r"max\(batches\)=5 < 5, the number of records"),
        ({"batches": [[]]}, r"batches\[0\] with at least one element"),
    ],
)
def test_batches_outside_their_domain_are_refused(settings, message):
    model, inputs, labels = client()
    with pytest.raises(InvalidInput, match=message):
        LocalUpdateRelease(model, cross_entropy, inputs, labels, **{"learning_rate": 0.1, "batches": [[0]]} | settings)


def test_a_functional_dropout_weight_norm_and_arrays_are_refused():
    _, inputs, labels = client()

    class Dropping(nn.Linear):
        def forward(self, inputs):
            return super().forward(nn.functional.dropout(inputs, 0.5, self.training))

    with pytest.raises(InvalidInput, match="two evaluations differ"):
        LocalUpdateRelease(Dropping(4, 3), cross_entropy, inputs, labels, learning_rate=0.1, steps=2)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    with pytest.raises(InvalidInput, match="Expected model to have a plain weight, but it uses weight_norm"):
        LocalUpdateRelease(normed, cross_entropy, inputs, labels, learning_rate=0.1, steps=2)
    with pytest.raises(InvalidInput, match=r"type\(labels\)='ndarray' to be a tensor"):
        LocalUpdateRelease(nn.Linear(4, 3), cross_entropy, inputs, labels.numpy(), learning_rate=0.1, steps=2)
