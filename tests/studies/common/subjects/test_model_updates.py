import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.subjects.model_updates import Client, client_for

DATA = Dataset("toy", torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1]))


def test_a_gradient_or_the_change_by_local_steps_is_sent():
    model = nn.Linear(3, 2)
    gradient = Client(model, cross_entropy, rr.UpdateRecipe()).release(DATA.inputs, DATA.labels).value()
    update = Client(model, cross_entropy, rr.UpdateRecipe(1, None, 1, 0.1)).release(DATA.inputs, DATA.labels).value()
    torch.testing.assert_close(update["weight"], -0.1 * gradient["weight"])


def test_it_says_what_is_sent():
    model = nn.Linear(3, 2)
    assert str(Client(model.eval(), cross_entropy, rr.UpdateRecipe())) == "gradient of cross_entropy in evaluation mode"
    words = "change by 3 steps of SGD, learning rate 0.1, on cross_entropy in training mode"
    assert str(Client(model.train(), cross_entropy, rr.UpdateRecipe(1, None, 3, 0.1))) == words


@pytest.mark.parametrize("given", [(None, 0.1), (3, None)])
def test_half_of_local_training_is_refused(given):
    with pytest.raises(InvalidInput, match="Pass both for local training, or neither for a gradient"):
        rr.UpdateRecipe(1, None, *given)


@pytest.mark.parametrize(
    ("given", "message"), [((0, 0.1), "local_steps=0 >= 1"), ((2, 0.0), "local_learning_rate=0.0 > 0")]
)
def test_numbers_of_local_training_are_checked(given, message):
    with pytest.raises(InvalidInput, match=message):
        rr.UpdateRecipe(1, None, *given)


def test_the_layer_of_a_malicious_server_is_planted_and_the_model_stays_as_it_is():
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for attack in (rr.attacks.imprint(bins=8), rr.attacks.trap_weights(neurons=8), rr.attacks.optimal_analytic()):
        client = client_for(attack, model, DATA)
        assert "planted.weight" in dict(client.model.named_parameters())
        assert "model.weight" in dict(client.model.named_parameters())
    assert client_for(rr.attacks.dlg(), model, DATA).model is model
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }


def test_only_a_planted_layer_does_without_a_model():
    alone = client_for(rr.attacks.optimal_analytic(neurons=2), None, Dataset("bare", DATA.inputs))
    assert [name for name, _ in alone.model.named_parameters()] == ["planted.weight"]
    with pytest.raises(InvalidInput, match="Expected model=None to be a network"):
        client_for(rr.attacks.dlg(), None, DATA)


def test_the_loss_is_that_of_the_labels_in_whatever_mode():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    assert client_for(rr.attacks.dlg(), model, DATA).loss_fn is cross_entropy
    assert model.training
    assert float(model[0].num_batches_tracked) == 0
    other = client_for(rr.attacks.dlg(), model, DATA, recipe=rr.UpdateRecipe(loss_fn=nn.MSELoss()))
    assert isinstance(other.loss_fn, nn.MSELoss)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(4, 2), r"takes records of shape \(3,\)"),
        (nn.Linear(3, 2), r"max\(labels\)\)=\(0, 2\) to be from 0 to 1"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(model, message):
    labels = torch.tensor([0, 1, 2, 0])
    with pytest.raises(InvalidInput, match=message):
        client_for(rr.attacks.dlg(), model, Dataset("toy", DATA.inputs, labels))
