"""What the reproductions of chen2025 and meng2025 conclude from, checked at a scale of seconds without data files."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from reconrisk.attacks.matching.published import inverting_gradients
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import clip, prune
from reconrisk.models import chen2025_mnist
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.updates.gradient import GradientRelease
from reproductions.chen2025.figure9_14 import Recorded, _layer_rows
from reproductions.chen2025.settings import equal_std, local_noise, noise, pruning
from reproductions.gradient_inversion import inverted, mean_over
from reproductions.meng2025.noise_laws import AbsoluteError
from reproductions.optimal_defenses import (
    AWARE,
    BETTER,
    UNAWARE,
    Curves,
    Given,
    Setting,
    findings,
    gain_at_equal_loss,
    leaked,
    measured,
    trials,
    verdict,
)
from reproductions.training_curves import WINDOW, Course, curve_in_words, loss_difference, smoothed, trained


def small_digits(count, side=8):
    rng = torch.Generator().manual_seed(3)
    return Dataset("few", torch.rand(count, 1, side, side, generator=rng), torch.arange(count) % 10)


@pytest.fixture(scope="module")
def setting():
    return Setting(
        build=lambda rng: chen2025_mnist((1, 8, 8), rng=rng),
        private=small_digits(40),
        public=small_digits(8),
        batch=2,
        client_batch=2,
        attack_steps=2,
        learning_rate=1e-3,
        seeds=2,
        references=4,
        said="tiny",
    )


def curves(loss, mse):
    tables = {name: torch.tensor(values)[:, None] for name, values in mse.items()}
    losses = {name: torch.tensor(values)[:, None] for name, values in loss.items()}
    return Curves((1.0, 2.0), losses, {UNAWARE: tables}, {})


def test_gain_is_read_between_strengths_at_the_losses_of_the_other():
    found = curves({"new": [1.0, 3.0], "old": [1.5, 2.0]}, {"new": [0.1, 0.3], "old": [0.1, 0.1]})
    assert gain_at_equal_loss(found, UNAWARE, "new", "old", blind=0.1).item() == 0  # both are no better than a guess
    # at 1.5 and 2.0 the new one has 0.15 and 0.2: on average 0.075 more
    assert gain_at_equal_loss(found, UNAWARE, "new", "old").item() == pytest.approx(0.075)


def test_losses_at_which_a_family_was_not_measured_are_left_out():
    found = curves({"new": [2.0, 3.0], "old": [1.0, 2.0]}, {"new": [0.4, 0.5], "old": [0.0, 0.1]})
    assert gain_at_equal_loss(found, UNAWARE, "new", "old").item() == pytest.approx(0.3)
    beyond = curves({"new": [1.0, 2.0], "old": [2.0, 9.0]}, {"new": [0.0, 0.4], "old": [0.1, 9.0]})
    assert gain_at_equal_loss(beyond, UNAWARE, "new", "old").item() == pytest.approx(0.3)
    none = curves({"new": [8.0, 9.0], "old": [1.0, 2.0]}, {"new": [0.4, 0.5], "old": [0.0, 0.1]})
    assert gain_at_equal_loss(none, UNAWARE, "new", "old").isnan().all()


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ([0.1, 0.11, 0.12], "dominates: 0.11"),
        ([-0.1, -0.11, -0.12], "is dominated: -0.11"),
        ([-0.1, 0.1, 0.0], "no difference shown: 0.0"),
        ([math.nan, math.nan, 0.1], "not comparable: training losses meet for 1 of 3 seeds"),
    ],
)
def test_verdict_follows_the_interval(gains, word):
    assert verdict(torch.tensor(gains)).startswith(word)


def test_seeds_that_cannot_be_compared_are_counted():
    assert verdict(torch.tensor([0.1, 0.11, math.nan])).endswith("1 seeds not comparable")


def test_interval_of_a_mean_is_that_of_students_t():
    found = mean_over(torch.tensor([1.0, 2.0, 3.0]), "seeds")
    assert found.high - found.value == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # tables: t(0.975, 2)
    assert mean_over(torch.tensor([1.0]), "seeds").high == math.inf


def test_every_noise_has_the_stated_norm_of_its_covariance(setting):
    trial = trials(setting)[0]
    own = trial.private
    release = GradientRelease(trial.model, cross_entropy, own.inputs, own.class_labels)
    for family in noise().values():
        sent = release.value()
        stds = resolve_defense(family(trial, 0.1), release).noise_std(sent)
        norm = math.sqrt(sum(float(std.double().pow(4).sum()) for std in stds.values()))
        assert norm == pytest.approx(0.1, rel=1e-5)
    assert equal_std(trial.model, 0.1) == pytest.approx(
        math.sqrt(0.1 / math.sqrt(sum(part.numel() for part in trial.model.parameters())))
    )


def test_the_papers_noise_follows_a_clip_in_the_euclidean_norm(setting):
    trial = trials(setting)[0]
    release = GradientRelease(trial.model, cross_entropy, trial.private.inputs, trial.private.class_labels)
    long = {name: 50 * value for name, value in release.value().items()}

    def norm(defense):
        clipped = resolve_defense(defense, release).replay(long)
        return math.sqrt(sum(float(value.square().sum()) for value in clipped.values()))

    assert norm(local_noise(0.1)) == pytest.approx(1.0, rel=1e-5)
    assert norm(noise()["optimal noise, global, euclidean"](trial, 0.1)) == pytest.approx(1.0, rel=1e-5)
    assert norm(noise()["optimal noise, global, guaranteed"](trial, 0.1)) != pytest.approx(1.0, rel=1e-2)


def test_every_family_is_trained_and_attacked_by_both(setting, capsys):
    found = measured(setting, pruning(), (0.9,))
    assert all(table.shape == (1, 2) for table in found.loss.values())
    for family in pruning():
        both = torch.minimum(found.mse[UNAWARE][family], found.mse[AWARE][family])
        assert torch.equal(found.mse[BETTER][family], both)
        assert not torch.equal(found.mse[UNAWARE][family], found.mse[AWARE][family])
        assert bool((found.loss[family] > 0).all())
    again = measured(setting, {"magnitude pruning": pruning()["magnitude pruning"]}, (0.9,))
    assert torch.equal(again.mse[AWARE]["magnitude pruning"], found.mse[AWARE]["magnitude pruning"])
    rows = findings(
        found,
        "magnitude pruning",
        setting=setting,
        strength="pruning ratio",
        leakage="Figure 5",
        scatter="Figure 7",
        claims=("a", "b", "c"),
    )
    assert len(rows) == 2 * 3 + 3 + 3 * 2
    assert {row.paper for row in rows} == {"a", "b", "c", "-"}
    assert "2 seeds" in rows[0].remark
    assert "seed 1" in capsys.readouterr().err


def test_defenses_are_compared_at_the_same_starts(setting):
    trial, attack = trials(setting)[0], inverting_gradients(steps=3)
    own = trial.private

    def mse(defense, seed):
        return inverted(attack, trial.model, own.inputs, own.class_labels, batch=2, defense=defense, seed=seed)["mse"]

    assert torch.equal(mse(prune(0.0), 0), mse(clip(1e6), 0))
    assert not torch.equal(mse(prune(0.0), 0), mse(prune(0.0), 1))


def test_who_knows_the_noise_also_begins_where_the_other_ended(setting, monkeypatch):
    trial, began = trials(setting)[0], []
    begin = Given.__call__
    monkeypatch.setattr(Given, "__call__", lambda self, *rest: began.append(self.inputs) or begin(self, *rest))
    found = leaked(trial, noise()["equal noise"](trial, 0.01), 2)
    assert {attacker: scores["mse"].shape for attacker, scores in found.items()} == {UNAWARE: (2,), AWARE: (2,)}
    assert [inputs.shape for inputs in began] == [(2, 1, 8, 8)]
    leaked(trial, prune(0.5), 2)
    assert len(began) == 1


def test_likelihood_of_laplacian_noise_is_the_sum_of_absolute_differences():
    assert float(AbsoluteError()({"w": torch.tensor([1.0, -1.0])}, {"w": torch.tensor([0.0, 1.0])})) == 3.0


def test_curves_are_means_of_a_window_over_the_same_records():
    digits = small_digits(64, side=28)
    course = Course(digits, digits, digits, epochs=WINDOW + 1, seeds=2, learning_rate=1e-3)
    runs = trained(course, {"none": lambda: None, "most": lambda: prune(0.99)})
    assert smoothed(runs["none"]).shape == (2, 2)
    assert smoothed(runs["none"])[0, 1] == pytest.approx(sum(runs["none"][0].losses[1:]) / WINDOW, rel=1e-6)
    assert runs["none"][0].losses[0] == pytest.approx(runs["most"][0].losses[0])
    assert "2 samples" in curve_in_words(runs["none"])
    assert "faster" in loss_difference(runs["none"][:1] * 2, runs["most"][:1] * 2)


def test_noise_of_layers_is_recorded_beside_table_1(setting):
    digits = small_digits(2, side=28)
    release = GradientRelease(chen2025_mnist(), cross_entropy, digits.inputs, digits.class_labels)
    recorded = Recorded(local_noise(0.1))
    for _ in range(4):
        recorded.for_release(release)
    course = Course(digits, digits, digits, epochs=1, seeds=2, learning_rate=1e-3)
    rows = _layer_rows(course, recorded.record)
    printed = ["288", "32", "18432", "64", "100352", "32", "320", "10"]  # Table 1
    assert [str(row.ours).split(";")[0] for row in rows] == printed
    assert all(record["fc_layers.3.bias"] > 0 for record in recorded.record)
