"""What is called smooth has no kink, and what is not known is not called smooth."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reconrisk.studies.common.defended_release import is_known_smooth
from reconrisk.studies.common.subjects.model_updates import binary_cross_entropy, squared_error

_CLASSES = torch.tensor([0, 1])


def _judged(model: nn.Module, *shape: int, loss=nn.functional.cross_entropy, labels: Tensor = _CLASSES) -> bool:
    return is_known_smooth(model, loss, torch.rand(2, *shape), labels)


class _Functional(nn.Module):
    def __init__(self, between) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 8), nn.Linear(8, 2), between

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.between(self.first(inputs)))


class _StatedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value: Tensor) -> Tensor:
        return 2 * value

    @staticmethod
    def backward(ctx, slope: Tensor) -> Tensor:
        return slope.sign()


def _last_of(recurrent: nn.Module) -> nn.Module:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = recurrent

        def forward(self, inputs: Tensor) -> Tensor:
            return self.recurrent(inputs)[0][:, -1]

    return Last()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(4, 2), (4,)),
        (_Functional(torch.tanh), (4,)),
        (_Functional(nn.functional.gelu), (4,)),
        (_Functional(lambda value: value**3 / 2), (4,)),
        (nn.Sequential(nn.Linear(4, 2), nn.ELU()), (4,)),
        (nn.Sequential(nn.Linear(4, 2), nn.CELU(0.3)), (4,)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 2)), (1, 4, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.SiLU(), nn.LayerNorm(4), nn.Linear(4, 2)), (4,)),
        (_last_of(nn.RNN(2, 2, batch_first=True)), (3, 2)),
    ],
)
def test_smooth_models_are_found(model, shape) -> None:
    assert _judged(model, *shape)
    assert _judged(model.eval(), *shape)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (4,)),
        (_Functional(torch.relu), (4,)),
        (_Functional(nn.functional.relu_), (4,)),
        (_Functional(torch.abs), (4,)),
        (_Functional(lambda value: value.square().sqrt()), (4,)),
        (_Functional(lambda value: value / value.abs().sum()), (4,)),
        (_Functional(lambda value: torch.where(value > 0, value, 2 * value)), (4,)),
        (_Functional(lambda value: value if value.sum() > 0 else 2 * value), (4,)),
        (_Functional(lambda value: value.clamp(-1, 1)), (4,)),
        (_Functional(_StatedGradient.apply), (4,)),
        (nn.Sequential(nn.Linear(4, 2), nn.SELU()), (4,)),
        (nn.Sequential(nn.Linear(4, 2), nn.ELU(0.5)), (4,)),
        (nn.Sequential(nn.Linear(4, 2), nn.LeakyReLU()), (4,)),
        (nn.Sequential(nn.TransformerEncoderLayer(4, 1, batch_first=True), nn.Flatten(), nn.Linear(8, 2)), (2, 4)),
        (_last_of(nn.RNN(2, 2, nonlinearity="relu", batch_first=True)), (3, 2)),
        (nn.Sequential(nn.FractionalMaxPool2d(2, output_size=2), nn.Flatten(), nn.Linear(4, 2)), (1, 4, 4)),
        (nn.Linear(3, 2), (4,)),
    ],
)
def test_what_has_a_kink_or_is_not_known_is_not_called_smooth(model, shape) -> None:
    assert not _judged(model, *shape)
    assert not _judged(model.eval(), *shape)


def test_the_loss_counts_too() -> None:
    assert _judged(nn.Linear(4, 1), 4, loss=binary_cross_entropy)
    assert _judged(nn.Linear(4, 1), 4, loss=squared_error, labels=torch.rand(2))
    assert not _judged(nn.Linear(4, 2), 4, loss=nn.functional.multi_margin_loss)
    assert not _judged(nn.Linear(4, 1), 4, loss=lambda out, real: (out[:, 0] - real).abs().mean())


def test_the_model_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    _judged(model, 4)
    assert int(model[1].num_batches_tracked) == 0
    assert all(value.grad is None for value in model.parameters())
