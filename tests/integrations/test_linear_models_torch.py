"""Linear torch models: the scale of the decay against autograd, the refusals by name."""

import numpy as np
import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.integrations.linear_models import information_from_linear


def _records(kind, n=30):
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 1, 1, 3, generator=rng, dtype=torch.float64)
    signal = inputs[:, 0, 0, 0] + 0.5 * torch.randn(n, generator=rng, dtype=torch.float64)
    labels = {
        "one": signal[:, None],
        "targets": torch.stack([signal, signal**2], dim=1),
        "two": (signal > 0).double()[:, None],
        "three": torch.bucketize(signal, torch.tensor([-0.5, 0.5], dtype=torch.float64)),
        "counts": (0.4 * signal).exp().floor()[:, None],
    }[kind]
    return inputs, labels


def _trained(loss_fn, inputs, labels, outputs, *, weight_decay, bias, decay_bias):
    """Full-batch L-BFGS on torch's own objective, decay written out."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, outputs, bias=bias)).double()
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=1000,
        tolerance_grad=1e-12,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        decayed = [p for name, p in model.named_parameters() if decay_bias or not name.endswith("bias")]
        loss = loss_fn(model(inputs), labels) + 0.5 * weight_decay * sum(p.square().sum() for p in decayed)
        loss.backward()
        return loss

    optimizer.step(closure)
    return model


@pytest.mark.parametrize("decay_bias", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("loss", "kind", "outputs"),
    [
        (nn.MSELoss, "one", 1),
        (nn.MSELoss, "targets", 2),
        (nn.BCEWithLogitsLoss, "two", 1),
        (nn.CrossEntropyLoss, "three", 3),
        (nn.PoissonNLLLoss, "counts", 1),
    ],
)
def test_what_torch_trains_is_the_minimiser_in_every_convention(loss, kind, outputs, reduction, bias, decay_bias):
    inputs, labels = _records(kind)
    loss_fn = loss(reduction=reduction)
    decay = {"weight_decay": 0.2, "decay_bias": decay_bias}
    model = _trained(loss_fn, inputs, labels, outputs, bias=bias, **decay)
    # The tolerance is what L-BFGS leaves; a wrong scale of the decay moves the minimum by more than 1e-2.
    information = information_from_linear(model, loss_fn, inputs, labels, noise_std=0.1, tolerance=1e-5, **decay)
    assert (information.traces > 0).all()
    with pytest.raises(InvalidInput, match="that minimise the objective"):
        information_from_linear(
            model, loss_fn, inputs, labels, noise_std=0.1, tolerance=1e-5, weight_decay=0.21, decay_bias=decay_bias
        )


def test_single_precision_is_polished():
    inputs, labels = _records("two")
    model, loss_fn = nn.Sequential(nn.Flatten(), nn.Linear(3, 1)), nn.BCEWithLogitsLoss()
    before = model[1].weight.detach().clone()
    decay = {"weight_decay": 0.2, "noise_std": 0.1}
    with pytest.raises(InvalidInput, match="polish=True"):
        information_from_linear(model, loss_fn, inputs, labels, **decay)
    polished = information_from_linear(model, loss_fn, inputs, labels, polish=True, **decay)
    exact = _trained(loss_fn, inputs, labels, 1, weight_decay=0.2, bias=True, decay_bias=True)
    np.testing.assert_allclose(polished.coefficients, exact[1].weight.detach()[0], atol=1e-5)
    assert torch.equal(model[1].weight, before)


@pytest.mark.parametrize(
    ("model", "loss_fn", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), nn.MSELoss(), "to be one nn.Linear"),
        (nn.Conv2d(1, 1, 1), nn.MSELoss(), r"model=\['Conv2d'\]"),
        (nn.Linear(3, 1), nn.L1Loss(), r"type\(loss_fn\)='L1Loss' to be an instance of one of MSELoss"),
        (nn.Linear(3, 3), nn.CrossEntropyLoss(label_smoothing=0.1), "loss_fn.label_smoothing=0.1 to be 0.0"),
        (nn.Linear(3, 3), nn.CrossEntropyLoss(weight=torch.ones(3)), "loss_fn.weight"),
        (nn.Linear(3, 3), nn.CrossEntropyLoss(ignore_index=1), "loss_fn.ignore_index=1"),
        (nn.Linear(3, 1), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)), "loss_fn.pos_weight"),
        (nn.Linear(3, 2), nn.BCEWithLogitsLoss(), "model.out_features=2 to be 1"),
        (nn.Linear(3, 1), nn.PoissonNLLLoss(log_input=False), "loss_fn.log_input=False"),
        (nn.Linear(3, 1), nn.MSELoss(reduction="none"), "loss_fn.reduction='none'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(model, loss_fn, message):
    with pytest.raises(InvalidInput, match=message):
        information_from_linear(model, loss_fn, torch.ones(2, 3), torch.ones(2), weight_decay=1.0, noise_std=1.0)


def test_a_negative_decay_is_refused():
    with pytest.raises(InvalidInput, match=r"weight_decay=-1.0 >= 0"):
        information_from_linear(
            nn.Linear(3, 1), nn.MSELoss(), torch.ones(2, 3), torch.ones(2), weight_decay=-1.0, noise_std=1.0
        )


def test_missing_values_and_labels_are_refused_with_their_own_remedy():
    setting = {"weight_decay": 0.1, "noise_std": 1.0, "polish": True}
    inputs, labels = torch.ones(2, 2), torch.tensor([0.0, 1.0])
    for name, words in (("inputs", (inputs * torch.nan, labels)), ("labels", (inputs, labels * torch.nan))):
        with pytest.raises(InvalidInput, match=rf"{name} to be finite.*Remove or impute"):
            information_from_linear(nn.Linear(2, 1), nn.MSELoss(), *words, **setting)
    for wrong, kind in ((None, "NoneType"), (labels.numpy(), "ndarray")):
        with pytest.raises(InvalidInput, match=rf"type\(labels\)='{kind}' to be torch.Tensor. Pass the labels"):
            information_from_linear(nn.Linear(2, 1), nn.MSELoss(), inputs, wrong, **setting)
