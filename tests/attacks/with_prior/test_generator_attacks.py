"""Inversion in the range of a generator: linear releases of linear generators, where the answer is known."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from reconrisk.attacks.matching.distances import SquaredError
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.with_prior.ggl import ggl
from reconrisk.attacks.with_prior.gias import gias
from reconrisk.attacks.with_prior.gifd import gifd
from reconrisk.attacks.with_prior.latents import _project_to_ball
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.priors.generator import generator

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR)
SIZE, LATENT = 6, 3
ATTACKS = {
    "gias": lambda prior, **given: gias(prior, weight_steps=0, distance=SquaredError(), **given),
    "ggl": lambda prior, **given: ggl(prior, latent_weight=0.0, population=16, **given),
}


def linear_generator(seed=0):
    network = nn.Linear(LATENT, SIZE)
    rng = torch.Generator().manual_seed(seed)
    network.weight.data = 0.1 * torch.randn(SIZE, LATENT, generator=rng)
    network.bias.data = torch.full((SIZE,), 0.5)
    return generator(network, (SIZE,), LATENT, units=(0.0, 1.0), name="linear")


def seen(records, equations=18):
    """What is released of records: as many random sums as there are equations."""
    matrix = torch.randn(equations, records.numel(), generator=torch.Generator().manual_seed(1))
    return Observation(
        {"y": matrix @ records.flatten()},
        lambda candidates, labels: {"y": matrix.to(candidates.dtype) @ candidates.flatten()},
        THREAT,
        (SIZE,),
        (0.0, 1.0),
        len(records),
        labels=torch.zeros(len(records), dtype=torch.int64),
    )


def errors(attack, observation, targets):
    found = attack(observation, rng=torch.Generator().manual_seed(0))
    return (found.estimates - targets).square().mean(), found


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_record_that_the_generator_makes_is_found(name, count):
    prior = linear_generator()
    targets = prior.draw(count, torch.Generator().manual_seed(5))
    error, found = errors(ATTACKS[name](prior), seen(targets), targets)
    assert float(error) < 1e-5
    assert found.account.objective[0] < 1e-5


@pytest.mark.parametrize("name", ATTACKS)
def test_of_another_record_the_nearest_in_effect_is_found(name):
    prior = linear_generator()
    target = torch.rand(1, SIZE, generator=torch.Generator().manual_seed(2))
    observation = seen(target)
    matrix = torch.func.jacrev(lambda record: observation.forward(record[None], None)["y"])(target[0])
    module = prior.generate
    left = observation.released["y"] - matrix @ module.bias.detach()
    latent = torch.linalg.lstsq(matrix @ module.weight.detach(), left[:, None]).solution
    expected = (module(latent.T)).detach().clamp(0, 1)
    found = ATTACKS[name](prior)(observation, rng=torch.Generator().manual_seed(0))
    assert torch.allclose(found.estimates, expected, atol=5e-3)


def test_weights_reach_what_the_generator_cannot_make_and_stay_unchanged():
    prior = linear_generator()
    before = [value.clone() for value in prior.generate.parameters()]
    targets = torch.rand(2, SIZE, generator=torch.Generator().manual_seed(3))
    stiff, _ = errors(gias(prior, weight_steps=0, distance=SquaredError()), seen(targets), targets)
    settings = {"weight_steps": 800, "weight_learning_rate": 0.02, "distance": SquaredError()}
    error, _ = errors(gias(prior, **settings), seen(targets), targets)
    assert float(stiff) > 0.01
    assert float(error) < 1e-4
    assert all(torch.equal(one, other) for one, other in zip(before, prior.generate.parameters(), strict=True))


@pytest.mark.parametrize("name", ATTACKS)
def test_time_spent_returns_what_there_is(name):
    prior = linear_generator()
    targets = prior.draw(1, torch.Generator().manual_seed(5))
    _, found = errors(ATTACKS[name](prior, seconds=1e-6), seen(targets), targets)
    assert found.status.ending is Ending.BUDGET_SPENT


@pytest.mark.parametrize("name", ATTACKS)
def test_same_seed_same_estimate(name):
    prior = linear_generator()
    observation = seen(prior.draw(1, torch.Generator().manual_seed(5)))
    attack = ATTACKS[name](prior, steps=5)
    one, two = (attack(observation, rng=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.estimates, two.estimates)


@pytest.mark.parametrize("build", [gias, ggl])
def test_what_is_no_generator_is_refused(build):
    with pytest.raises(InvalidInput, match="to be a generator"):
        build(lambda latents: latents)


def test_a_function_has_no_weights():
    prior = generator(lambda latents: latents, (SIZE,), SIZE)
    with pytest.raises(InvalidInput, match="weight_steps=0"):
        gias(prior, steps=2)(seen(torch.full((1, SIZE), 0.5)), rng=torch.Generator())


def deep_generator():
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(LATENT, 8), nn.Tanh(), nn.Linear(8, SIZE), nn.Sigmoid())
    return generator(network, (SIZE,), LATENT, units=(0.0, 1.0), name="deep")


def test_features_reach_more_than_latent_values():
    prior = deep_generator()
    target = torch.rand(1, SIZE, generator=torch.Generator().manual_seed(4))
    stiff, first = errors(gias(prior, weight_steps=0, distance=SquaredError()), seen(target), target)
    error, found = errors(gifd(prior, radius=2.0, layer_steps=600, distance=SquaredError()), seen(target), target)
    assert float(error) < 0.2 * float(stiff)
    assert found.account.objective[0] < first.account.objective[0]


def test_a_small_ball_keeps_features_near_what_the_generator_makes():
    prior = deep_generator()
    target = torch.rand(1, SIZE, generator=torch.Generator().manual_seed(4))
    settings = {"distance": SquaredError(), "layer_steps": 200}
    wide, _ = errors(gifd(prior, radius=2.0, **settings), seen(target), target)
    narrow, _ = errors(gifd(prior, radius=1e-4, **settings), seen(target), target)
    assert float(wide) < float(narrow)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("radius", [0.1, 1.0, 100.0])
def test_the_projection_onto_a_ball_is_the_nearest_point(seed, radius):
    rng = torch.Generator().manual_seed(seed)
    vector = torch.randn(7, generator=rng, dtype=torch.float64)
    nearest = _project_to_ball(vector, radius)
    assert float(nearest.abs().sum()) <= radius * (1 + 1e-12)
    # no point of the ball is on the far side: <v - p, q - p> <= 0 for every q in it
    others = torch.randn(500, 7, generator=rng, dtype=torch.float64)
    inside = others / others.abs().sum(1, keepdim=True) * radius * torch.rand(500, 1, generator=rng).double()
    corners = radius * torch.cat([torch.eye(7), -torch.eye(7)]).double()
    for point in (inside, corners):
        assert float(((point - nearest) @ (vector - nearest)).max()) <= 1e-12 * radius**2 + 1e-12


def test_a_generator_that_is_no_sequence_cannot_be_entered():
    with pytest.raises(InvalidInput, match=r"nn\.Sequential"):
        gifd(linear_generator())


def test_the_stage_whose_release_is_nearest_is_returned(monkeypatch):
    """Stages scale their objectives by their own starts, which says nothing about one against another."""
    prior = generator(nn.Sequential(nn.Linear(LATENT, SIZE), nn.Identity()), (SIZE,), LATENT, units=(0.0, 1.0))
    target = torch.rand(1, SIZE, generator=torch.Generator().manual_seed(2))
    observation, stages = seen(target), []
    original = GradientMatching.match

    def match(search, *given, **named):
        stages.append(original(search, *given, **named))
        return stages[-1]

    monkeypatch.setattr(GradientMatching, "match", match)
    attack = gifd(prior, distance=SquaredError(), steps=3, layer_steps=50, radius=0.5)
    found = attack(observation, rng=torch.Generator().manual_seed(0))

    def misfit(records):
        caused = observation.forward(records, observation.labels)
        return float(SquaredError()(caused, observation.released))

    misfits = [misfit(stage.estimates) for stage in stages]
    assert misfit(found.estimates) == min(misfits)
    assert found.account.objective[0] == pytest.approx(min(misfits), rel=1e-5)


def test_a_full_evolution_has_spent_its_budget_and_leaves_the_global_generator_alone(monkeypatch):
    prior = linear_generator()
    target = torch.rand(1, SIZE, generator=torch.Generator().manual_seed(2))
    with monkeypatch.context() as patched:
        for name in ("seed", "randn", "rand"):
            patched.setattr(np.random, name, lambda *given, name=name: pytest.fail(f"numpy.random.{name} was used"))
        found = ggl(prior, steps=3, population=8)(seen(target), rng=torch.Generator().manual_seed(0))
    assert found.status.ending is Ending.BUDGET_SPENT
    again = ggl(prior, steps=3, population=8)(seen(target), rng=torch.Generator().manual_seed(0))
    assert torch.equal(found.estimates, again.estimates)


def noisy(records, std, known, law="gaussian"):
    """As ``seen``, with noise on each of very many values that say nothing else."""
    clean = seen(records)
    rng = torch.Generator().manual_seed(3)
    released = {"y": clean.released["y"], "z": torch.zeros(4000)}
    released = {name: value + std * torch.randn(value.shape, generator=rng) for name, value in released.items()}
    spread = {name: torch.full_like(value, std) for name, value in released.items()}
    return replace(
        clean,
        released=released,
        forward=lambda candidates, labels: {**clean.forward(candidates, labels), "z": torch.zeros(4000)},
        threat=THREAT.with_knowledge(Knows.DEFENSE),
        noise_std=spread if known else None,
        noise_law=law,
    )


def linear_posterior_mean(prior, observation, std):
    """Of latent values that are standard normal, where release and generator are linear."""
    matrix = torch.randn(18, SIZE, generator=torch.Generator().manual_seed(1))
    slope = matrix @ prior.generate.weight.detach()
    left = observation.released["y"] - matrix @ prior.generate.bias.detach()
    latents = torch.linalg.solve(slope.T @ slope / std**2 + torch.eye(LATENT), slope.T @ left / std**2)
    return prior.decode(latents[None])


@pytest.mark.parametrize("build", [lambda prior: ggl(prior, population=16), lambda prior: gias(prior, weight_steps=0)])
def test_known_noise_and_the_law_of_latent_values_make_a_posterior(build):
    prior, std = linear_generator(), 0.5
    observation = noisy(prior.draw(1, torch.Generator().manual_seed(5)), std, known=True)
    found = build(prior)(observation, rng=torch.Generator().manual_seed(0)).estimates
    torch.testing.assert_close(found, linear_posterior_mean(prior, observation, std), rtol=0, atol=5e-3)


def test_noise_on_values_that_say_nothing_does_not_hide_the_others():
    # relative to all that was released distances hardly differ: latent values of the usual length would be all there is
    prior, target = linear_generator(), linear_generator().draw(1, torch.Generator().manual_seed(5))
    attack = ggl(prior, population=16, steps=100)
    error, _ = errors(attack, noisy(target, 0.5, known=False), target)
    alone = (target - prior.decode(torch.zeros(1, LATENT))).square().mean()
    assert error < 0.6 * alone


@pytest.mark.parametrize("build", [gias, ggl])
def test_a_name_is_no_distance(build):
    with pytest.raises(InvalidInput, match="distance='cosine' to be callable"):
        build(linear_generator(), distance="cosine")


def test_evolution_without_its_library_is_refused_before_it_begins(monkeypatch):
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(MissingExtra, match="cma"):
        ggl(linear_generator())


def test_generators_that_cannot_be_searched_are_refused():
    fixed = generator(lambda latents: torch.full((len(latents), SIZE), 0.5), (SIZE,), LATENT)
    target = torch.rand(1, SIZE, generator=torch.Generator().manual_seed(2))
    with pytest.raises(InvalidInput, match=r"differentiable.*ggl"):
        gias(fixed, weight_steps=0)(seen(target), rng=torch.Generator())
    with pytest.raises(InvalidInput, match="to have trainable weights"):
        gias(fixed)
    with pytest.raises(InvalidInput, match="single precision"):
        generator(nn.Linear(LATENT, SIZE).half(), (SIZE,), LATENT)
