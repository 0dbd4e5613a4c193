import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.training.trained_model import TrainingMap
from tests.releases.shadow.test_training import CLOSE, DOUBLE, RULES, convolutional, perceptron, records, rng, training


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("activation", [nn.ELU, nn.GELU])
def test_push_is_the_derivative_of_training(name, activation):
    shadow = training(perceptron(activation, (5, 4)), optimizer=RULES[name][0], steps=4)
    inputs, labels = records(1, seed=7)
    tangents = torch.randn(2, 6, generator=rng(), dtype=DOUBLE)
    plain = TrainingMap(
        shadow.model, cross_entropy, shadow.optimizer, 4, shadow.fixed_inputs, shadow.fixed_labels
    ).linearize(inputs, labels)
    expected = torch.stack([shadow.flatten(plain.push(tangent[None])) for tangent in tangents])
    found = shadow.push(inputs, labels, tangents)
    torch.testing.assert_close(found, expected, rtol=1e-6 if "adam" in name else 1e-9, atol=CLOSE)
    assert expected.abs().max() > 1e-3


def test_push_with_batches_squared_loss_and_other_layers():
    inputs, labels = records(1, seed=7)
    for model, batches in ((perceptron(), [[0, 9], [9, 9, 4], [3]]), (convolutional(), None)):
        chosen = {"batches": batches} if batches else {}
        shadow = training(model, **chosen)
        step, tangents = 1e-5, torch.eye(6, dtype=DOUBLE)[:3]
        ahead, behind = (shadow.train(inputs + sign * step * tangents, labels.expand(3)) for sign in (1, -1))
        # error of central differences: step^2 and 1e-16 / step
        torch.testing.assert_close(
            shadow.push(inputs, labels, tangents), (ahead - behind) / (2 * step), rtol=0, atol=1e-8
        )


def test_what_has_no_derivative_here_is_refused():
    inputs, labels = records(2, seed=7)
    with pytest.raises(InvalidInput, match="to be 1"):
        training().push(inputs, labels, inputs)
    with pytest.raises(InvalidInput, match=r"tangents\.shape"):
        training().push(inputs[:1], labels[:1], torch.zeros(2, 5))
    with pytest.raises(InvalidInput, match=r"to be None for push"):
        training(private=Gaussian(1.0)).push(inputs[:1], labels[:1], inputs)
    with pytest.raises(InvalidInput, match=r"to be fixed for push"):
        training(batches=RandomBatches(3)).push(inputs[:1], labels[:1], inputs)
