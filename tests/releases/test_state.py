import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.state import check_mode, model_state, record_losses

LOSSES = {
    "cross entropy": (nn.functional.cross_entropy, torch.tensor([0, 2, 1, 1])),
    "smoothed": (lambda o, y: nn.functional.cross_entropy(o, y, label_smoothing=0.1), torch.tensor([0, 2, 1, 1])),
    "squares": (nn.functional.mse_loss, torch.rand(4, 3).double()),
    "binary": (nn.functional.binary_cross_entropy_with_logits, torch.rand(4, 3).double().round()),
    "smooth l1": (nn.functional.smooth_l1_loss, torch.rand(4, 3).double()),
    "untraceable": (lambda o, y: o.square().sum() if bool(o.detach().sum() > 0) else o.sum(), torch.zeros(4)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_second_derivatives_are_those_of_single_records(name):
    loss_fn, labels = LOSSES[name]
    outputs = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    single = torch.stack([loss_fn(outputs[i : i + 1], labels[i : i + 1]) for i in range(4)])
    together = record_losses(loss_fn, outputs, labels)
    torch.testing.assert_close(together, single)

    def second(losses):
        (slope,) = torch.autograd.grad(losses.square().sum(), outputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), outputs)[0]

    torch.testing.assert_close(second(together), second(single))


def test_a_loss_that_is_no_number_is_refused():
    with pytest.raises(InvalidInput, match=r"loss_fn\(\.\.\.\)\.shape=\(3,\) to be \(\), one number per record"):
        record_losses(lambda output, label: output[0], torch.rand(4, 3), torch.zeros(4))


def test_buffers_of_the_module_are_not_changed():
    model = nn.Sequential(nn.BatchNorm1d(3))
    model_state(model, torch.float32).outputs(torch.rand(5, 3))
    assert model[0].running_mean.tolist() == [0, 0, 0]
    assert int(model[0].num_batches_tracked) == 0


def test_names_are_a_list():
    with pytest.raises(InvalidInput, match=r"parameters='weight' to be a list of names\. Write \['weight'\]"):
        model_state(nn.Linear(2, 2), torch.float32, parameters="weight")


def test_the_layer_that_draws_is_named():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout2d(0.1)))
    with pytest.raises(InvalidInput, match=r"0\.1\.training=True to be False for Dropout2d"):
        check_mode(model)
    check_mode(nn.Sequential(nn.Dropout(0.0)))
