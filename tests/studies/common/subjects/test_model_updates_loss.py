import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.subjects.model_updates import binary_cross_entropy, squared_error, training_loss

CLASSES, REAL = torch.tensor([0, 1, 2]), torch.tensor([0.5, 1.5, -1.0])


def data(labels):
    return Dataset("toy", torch.rand(3, 2), labels)


def test_one_logit_is_the_same_as_two_that_differ_by_it():
    logit, labels = torch.tensor([[0.3], [-2.0]]), torch.tensor([1, 0])
    both = torch.cat([torch.zeros_like(logit), logit], dim=1)
    torch.testing.assert_close(binary_cross_entropy(logit, labels), nn.functional.cross_entropy(both, labels))


def test_the_squared_error_takes_outputs_in_a_column():
    assert squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0])) == 5


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, inputs):
        return self.layer(inputs), inputs


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        (
            nn.Linear(2, 2),
            CLASSES,
            r"Expected \(min\(labels\), max\(labels\)\)=\(0, 2\) to be from 0 to 1, the outputs of the model",
        ),
        (nn.Linear(2, 1), CLASSES, r"Expected \(min\(labels\), max\(labels\)\)=\(0, 2\) to be from 0 to 1"),
        (nn.Linear(2, 3), CLASSES - 1, r"from 0 to 2"),
        (nn.Linear(2, 2), REAL, r"Expected outputs.shape=\(2,\) to be \(\), the shape of a label"),
        (
            nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))),
            CLASSES,
            r"=\(2, 2\) to be \(classes,\), one number per class",
        ),
        (nn.Linear(3, 3), CLASSES, r"takes records of shape \(2,\), those of toy. It raised RuntimeError: mat1"),
        (nn.Linear(2, 3), None, r"Expected dataset='toy' to have labels"),
        (Pair(), CLASSES, r"Expected model\(record\)='tuple' to be one row of outputs"),
        (nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)), CLASSES, r"Expected model\(record\)=\(3,\) to be one row"),
    ],
)
def test_what_does_not_fit_is_refused(model, labels, message):
    with pytest.raises(InvalidInput, match=message):
        training_loss(model, data(labels))
