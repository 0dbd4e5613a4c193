"""Training under a defense is plain training where the defense does nothing, and the defense acts where it does."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.noise import gaussian_noise
from reconrisk.studies.common.defended_training import evaluate_model, train_defended
from reconrisk.studies.common.subjects.subject import UpdateRecipe


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _data(count: int = 64) -> Dataset:
    inputs = torch.rand(count, 4, generator=_rng(1))
    return Dataset("toy", inputs, (inputs[:, 0] > inputs[:, 1]).long())


def _model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_full_batches_of_all_clients_are_plain_training(optimizer: str) -> None:
    """With every record in every step, the mean of the clients' means is the gradient of all, in any order."""
    data, model = _data(), _model()
    done = train_defended(
        model, data, steps=5, clients=4, update=UpdateRecipe(16), optimizer=optimizer, learning_rate=0.05, rng=_rng()
    )
    plain = copy.deepcopy(model)
    stepper = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](plain.parameters(), lr=0.05)
    for step in range(5):
        stepper.zero_grad()
        loss = nn.functional.cross_entropy(plain(data.inputs), data.labels)
        loss.backward()
        stepper.step()
        assert done.losses[step] == pytest.approx(float(loss.detach()), abs=1e-6)
    for ours, theirs in zip(done.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4 if optimizer == "adam" else 1e-6)  # Adam divides by small roots


def test_one_local_step_added_as_it_is_is_a_step_along_the_gradient() -> None:
    data, model = _data(), _model()
    gradients, local = UpdateRecipe(8), UpdateRecipe(8, local_steps=1, local_learning_rate=0.3)
    plain = train_defended(model, data, steps=8, update=gradients, clients=2, learning_rate=0.3, rng=_rng())
    done = train_defended(model, data, steps=8, update=local, clients=2, learning_rate=1.0, rng=_rng())
    assert done.losses == pytest.approx(plain.losses, abs=1e-5)


def test_local_updates_are_clipped_as_they_are_sent() -> None:
    """Changes of norm 1e-3 at most: eight rounds move the model by no more than eight of them."""
    data, model = _data(), _model()
    local = UpdateRecipe(16, local_steps=5, local_learning_rate=0.5)
    done = train_defended(model, data, clip(1e-3), steps=8, learning_rate=1.0, rng=_rng(), update=local)
    pairs = zip(done.model.parameters(), model.parameters(), strict=True)
    moved = math.sqrt(sum(float((after - before).detach().square().sum()) for after, before in pairs))
    assert 1e-3 < moved <= 8e-3 * (1 + 1e-4)


def test_a_defense_without_effect_changes_nothing() -> None:
    data, model = _data(), _model()
    plain = train_defended(model, data, steps=12, update=UpdateRecipe(8), rng=_rng())
    defended = train_defended(model, data, clip(1e9), steps=12, update=UpdateRecipe(8), rng=_rng())
    assert plain.losses == defended.losses
    assert plain.training_loss == defended.training_loss


def test_the_model_stays_and_the_seed_decides() -> None:
    data, model = _data(), _model()
    before = copy.deepcopy(model.state_dict())
    first, again, other = (
        train_defended(model, data, gaussian_noise(0.1), steps=6, rng=_rng(seed)) for seed in (0, 0, 1)
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert first.losses == again.losses
    assert first.losses != other.losses


def test_noise_of_clients_averages_out() -> None:
    """The mean of n independent noises has 1/n of the variance: the first step shows it."""
    data = _data(256)
    model = nn.Linear(4, 2)

    def variance(clients: int) -> float:
        moved = []
        for seed in range(200):
            options = {"steps": 1, "clients": clients, "update": UpdateRecipe(256 // clients), "learning_rate": 1.0}
            done = train_defended(model, data, gaussian_noise(1.0), rng=_rng(seed), **options)
            moved.append(torch.cat([value.flatten() for value in done.model.parameters()]))
        return float(torch.stack(moved).detach().var(0).mean())

    # 2000 squares each: relative standard error sqrt(2/2000) = 3 %, of the ratio 4.5 %; five of them
    assert variance(4) / variance(1) == pytest.approx(0.25, rel=0.23)


class _Chosen:
    """Chooses to send nothing, and counts how often it was asked and copied."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gradients_spent = 0.0

    def fresh(self) -> _Chosen:
        return _Chosen()

    def for_release(self, release: object) -> _Chosen:
        self.gradients_spent += 2.0
        assert len(release.inputs) == 8
        return self

    def __call__(self, released: dict[str, Tensor], *, rng: torch.Generator) -> dict[str, Tensor]:
        del rng
        return {name: torch.zeros_like(value) for name, value in released.items()}


def test_each_client_chooses_and_the_cost_is_told() -> None:
    defense, model = _Chosen(), _model()
    done = train_defended(model, _data(), defense, steps=3, clients=2, update=UpdateRecipe(8), rng=_rng())
    assert done.defense_gradients == 12.0
    assert done.client_gradients == 6
    assert defense.gradients_spent == 0.0
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(done.model.parameters(), model.parameters(), strict=True)
    )


def test_epochs_are_times_through_the_records() -> None:
    done = train_defended(_model(), _data(), epochs=2, clients=2, update=UpdateRecipe(8), rng=_rng())
    assert len(done.losses) == 2 * (64 // 2 // 8)


def test_training_that_leaves_the_numbers_says_so() -> None:
    data = Dataset("real", torch.rand(32, 4, generator=_rng()), torch.rand(32, generator=_rng()))
    done = train_defended(nn.Linear(4, 1), data, steps=400, learning_rate=1e3, test=data, rng=_rng())
    assert done.diverged
    assert len(done.losses) < 400
    assert done.test_accuracy is None
    assert done.test_loss is not None
    assert not done.test_loss < 1e6
    assert "diverged" in repr(done)


def test_evaluation_by_hand() -> None:
    data = Dataset("toy", torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([1, 0, 0]), (-2.0, 2.0))
    loss, accuracy = evaluate_model(nn.Identity(), data, lambda outputs, labels: outputs[:, 0].mean())
    assert loss == pytest.approx(0.5)
    assert accuracy == pytest.approx(2 / 3)
    broken, right = evaluate_model(nn.Identity(), data, lambda outputs, labels: outputs.sum() * math.nan)
    assert broken == math.inf
    assert right == accuracy


def test_outputs_that_are_no_numbers_are_wrong() -> None:
    """The largest of values that are not numbers is the first: class 0 must not count as found."""

    class Broken(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.full((len(inputs), 2), math.nan)

    data = Dataset("toy", torch.zeros(4, 2), torch.zeros(4).long())
    assert evaluate_model(Broken(), data, nn.functional.cross_entropy) == (math.inf, 0.0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": -1}, "steps=-1 >= 1"),
        ({"steps": None}, "to have exactly one number"),
        ({"epochs": 2}, "to have exactly one number"),
        ({"clients": 8}, "training records=64 >= 128"),
        ({"clients": 0}, "clients=0 >= 1"),
        ({"optimizer": "lbfgs"}, "to be one of sgd, adam"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1 > 0"),
        ({"rng": 3}, "rng=3 to be a torch.Generator"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, object], said: str) -> None:
    options: dict[str, object] = {"steps": 2, "rng": _rng(), **changed}
    with pytest.raises(InvalidInput, match=said):
        train_defended(_model(), _data(), **options)


def test_labels_are_needed() -> None:
    with pytest.raises(InvalidInput, match="to have labels"):
        train_defended(_model(), Dataset("bare", torch.rand(64, 4)), steps=1, rng=_rng())
