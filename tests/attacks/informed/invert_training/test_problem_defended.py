"""Training followed by a defense: values and derivatives against differences, and records behind clipped models."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.informed.invert_training.attack import NEEDS
from reconrisk.attacks.informed.invert_training.problem import DefendedProblem, only_adds_noise, problem_for
from reconrisk.core.threat import Knows

INPUTS, LABELS = torch.rand(11, 5, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 3
CLIP = rr.defenses.clip_and_noise(noise_multiplier=1e-7, clip_norm=0.2)


def release():
    model = rr.models.mlp(5, (4,), 3, activation=nn.Tanh, rng=torch.Generator().manual_seed(1))
    given = {"fixed_inputs": INPUTS[1:], "fixed_labels": LABELS[1:], "optimizer": rr.releases.sgd(0.5), "steps": 5}
    return rr.releases.TrainedModelRelease(model, nn.functional.cross_entropy, INPUTS[:1], LABELS[:1], **given)


def test_values_are_those_that_the_defense_sends_without_noise():
    made = release()
    problem = DefendedProblem(problem_for(made), CLIP, dict(reversed(made.value().items())))  # in whatever order
    (row,) = problem.values(INPUTS[:1], LABELS[:1])
    expected = problem.to_row(CLIP.replay(made.value()))
    assert torch.allclose(row, expected, atol=1e-6)
    assert float(row.norm()) == pytest.approx(0.2, rel=1e-5)


def test_the_derivative_is_that_of_differences():
    made = release()
    problem = DefendedProblem(problem_for(made), CLIP, made.value())
    record, whole, step = INPUTS[0].double(), torch.eye(5, dtype=torch.float64), 1e-5
    pushed = problem.push(record, LABELS[0], whole)
    ahead, behind = (problem.values(record + side * step * whole, LABELS[:1].expand(5)) for side in (1, -1))
    # central differences: curvature leaves 1e-10, rounding 1e-11
    assert torch.allclose(pushed, (ahead - behind) / (2 * step), atol=1e-8)


def test_a_clipped_model_gives_its_record_away():
    observation = rr.observe(
        release(), threat=NEEDS.with_knowledge(Knows.DEFENSE), defense=CLIP, rng=torch.Generator().manual_seed(0)
    )
    found = rr.attacks.invert_training()(observation, rng=torch.Generator())
    assert torch.allclose(found.estimates, INPUTS[:1], atol=1e-3)
    assert found.labels == (int(LABELS[0]),)


@pytest.mark.parametrize(
    ("defense", "alone"),
    [
        (rr.defenses.gaussian_noise(0.1), True),
        (rr.defenses.laplace_noise(0.1), True),
        (CLIP, False),
        (rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1e4), False),
        (rr.defenses.prune(0.9), True),  # what is kept stays as it is; an observation says what is
    ],
)
def test_defenses_that_only_add_noise_are_told_from_others(defense, alone):
    assert only_adds_noise(defense, release().value()) is alone
