import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import GradientRelease, HardClip
from reconrisk.releases.model_state import check_mode, check_records_independent, model_state, record_losses
from reconrisk.releases.sensitivity.fisher import fisher_trace

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


class Centred(nn.Module):
    """Each record less the mean of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(inputs - inputs.mean(0))


class Dropping(nn.Module):
    """Dropout that is no layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(nn.functional.dropout(inputs, 0.5, self.training))


@pytest.mark.parametrize(
    ("model", "loss_fn", "message"),
    [
        (Centred(), nn.functional.cross_entropy, "depend on that record alone"),
        (Dropping(), nn.functional.cross_entropy, "the same outputs twice"),
        (nn.Linear(3, 2), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 10.0])), "class weights cancel"),
    ],
)
def test_models_and_losses_that_mix_records_are_refused(model, loss_fn, message):
    inputs, labels = torch.rand(6, 3), torch.tensor([0, 0, 0, 0, 0, 1])
    release = GradientRelease(model, loss_fn, inputs, labels, reduction="sum", clip=HardClip(1.0))
    before = torch.random.get_rng_state()
    with pytest.raises(InvalidInput, match=message):
        fisher_trace(release, relative_error=0.5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_losses_that_multiply_by_the_records_weight_are_accepted():
    weights = torch.tensor([1.0, 10.0])

    def loss_fn(outputs, labels):
        return (weights[labels] * nn.functional.cross_entropy(outputs, labels, reduction="none")).sum()

    model = nn.Linear(3, 2)
    check_records_independent(model_state(model, torch.float32), loss_fn, torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize(
    "layer",
    [nn.LSTM(3, 3, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5), nn.RReLU()],
    ids=lambda layer: type(layer).__name__,
)
def test_other_random_layers_are_refused_in_training_mode(layer):
    with pytest.raises(InvalidInput, match=rf"0\.training=True to be False for {type(layer).__name__}"):
        check_mode(nn.Sequential(layer))
    check_mode(nn.Sequential(layer).eval())


def test_batch_norm_without_running_statistics_mixes_in_eval_mode_too():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)).eval()
    with pytest.raises(InvalidInput, match=r"1\.track_running_stats=False to be True for BatchNorm1d"):
        check_mode(model)
    inputs, labels = torch.rand(4, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    traces = [
        fisher_trace(GradientRelease(model, nn.functional.cross_entropy, inputs, labels, reduction=reduction)).values
        for reduction in (None, "mean")
    ]
    torch.testing.assert_close(*traces)
