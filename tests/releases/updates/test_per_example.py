import pytest
import torch
from torch import nn

from reconrisk.releases.model_state import model_state
from reconrisk.releases.updates.per_example import LayerRecorder, gradient_norms
from tests.releases.conftest import RULED, single_gradients


def test_norms_are_those_of_single_gradients(named_module, records):
    _, model = named_module
    norms = gradient_norms(model_state(model, torch.float64), nn.functional.cross_entropy, *records)
    torch.testing.assert_close(norms, single_gradients(model, *records).norm(dim=1).detach())


def test_rules_give_the_same_norms_and_are_used_where_they_apply(named_module, records):
    name, model = named_module
    state = model_state(model, torch.float64)
    recorder = LayerRecorder(state)
    if name not in RULED:
        assert not recorder.complete or name == "branching" or name == "unseen"
        return
    inputs, labels = records
    with recorder.recording():
        outputs = state.outputs(inputs.clone().requires_grad_())
    loss = nn.functional.cross_entropy(outputs, labels, reduction="sum")
    squares = recorder.squares(torch.autograd.grad(loss, recorder.outputs))
    torch.testing.assert_close(squares, single_gradients(model, *records).square().sum(1).detach())
    assert recorder.complete


def test_recording_leaves_no_hook_behind(records):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    recorder = LayerRecorder(model_state(model, torch.float64))
    with pytest.raises(KeyError), recorder.recording():
        raise KeyError
    model(records[0])
    assert not recorder.calls


def test_a_vanishing_gradient_has_a_finite_derivative():
    model = nn.Linear(2, 2, bias=False)
    inputs = torch.zeros(1, 2, requires_grad=True)
    norms = gradient_norms(model_state(model, torch.float32), nn.functional.cross_entropy, inputs, torch.tensor([0]))
    assert norms.item() == 0
    assert torch.autograd.grad(norms.sum(), inputs)[0].tolist() == [[0.0, 0.0]]


def test_chosen_parameters_alone_count(records):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    whole = gradient_norms(model_state(model, torch.float64), nn.functional.cross_entropy, *records).square()
    parts = [
        gradient_norms(model_state(model, torch.float64, parameters=[name]), nn.functional.cross_entropy, *records)
        for name in ("1", "3.weight", "3.bias")
    ]
    torch.testing.assert_close(sum(part.square() for part in parts), whole)
