"""One row per attack with a prior: what every attack promises, on a problem whose answer the prior can make."""

import dataclasses
import math
import signal
import time

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.testing import check_attack

SHAPE, SIZE = (1, 2, 3), 6
THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR)


class Tuned(nn.Module):
    """A denoiser with a weight."""

    def __init__(self, exact):
        super().__init__()
        self.exact, self.bias = exact, nn.Parameter(torch.zeros(SHAPE))

    def forward(self, noisy, times):
        return self.exact(noisy, times) + self.bias


def gaussian_prior():
    return rr.priors.gaussian(torch.full(SHAPE, 0.5), 0.02 * torch.eye(SIZE))


def tuned_prior():
    return rr.priors.denoiser(Tuned(gaussian_prior().diffusion.predict_noise), SHAPE)


def generator_prior():
    rng = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Unflatten(1, SHAPE))
    network[0].weight.data = 0.14 * torch.linalg.qr(torch.randn(SIZE, SIZE, generator=rng))[0]
    network[0].bias.data.fill_(0.5)
    return rr.priors.generator(network, SHAPE, SIZE, units=(0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class Row:
    """An attack by its settings, the prior it takes, how near it must come, and what its length is called."""

    build: object
    prior: object
    error: float
    settings: dict = dataclasses.field(default_factory=dict)
    length: str = "steps"
    calls: int = 40  # of the release, by when there is a first estimate and the search goes on
    overrun: int = 40  # calls of the release after the time is spent

    def attack(self, **given):
        return self.build(self.prior(), **{**self.settings, **given})


ROWS = {
    "ggss_r": Row(rr.attacks.ggss_r, gaussian_prior, 0.01, {"guidance": 1.0, "steps": 200}),
    "plug_and_play": Row(rr.attacks.plug_and_play, gaussian_prior, 1e-6, length="levels"),
    "gaussian_posterior": Row(rr.attacks.gaussian_posterior, gaussian_prior, 1e-6, length="iterations", calls=8),
    "gias": Row(rr.attacks.gias, generator_prior, 1e-3, {"weight_steps": 20}),
    "ggl": Row(rr.attacks.ggl, generator_prior, 1e-3, {"latent_weight": 0.0, "population": 16}),
    "gifd": Row(rr.attacks.gifd, generator_prior, 1e-3, {"layer_steps": 20}),
    "finetuned_diffusion": Row(
        rr.attacks.finetuned_diffusion, tuned_prior, 1e-3, {"learning_rate": 0.02, "steps": 300}
    ),
}

GUESSES = {"prior_alone": Row(rr.attacks.prior_alone, tuned_prior, math.inf, {"draws": 4})}
"""Those that read nothing of the release, and so have nothing to solve, to fail at or to be interrupted in."""

EVERY = {**ROWS, **GUESSES}


def matrix(records):
    return torch.randn(4 * SIZE, records * SIZE, generator=torch.Generator().manual_seed(1))


def observed(records=1, threat=THREAT, forward=None, scale=1.0):
    targets = gaussian_prior().draw(records, torch.Generator().manual_seed(2)).float()
    mixed = matrix(records)

    def plain(inputs, labels):
        return {"y": mixed.to(inputs.dtype) @ inputs.flatten()}

    known = torch.zeros(records, dtype=torch.int64) if Knows.LABELS in threat.knows else None
    seen = {"y": scale * mixed @ targets.flatten()}
    return targets, rr.Observation(seen, forward or plain, threat, SHAPE, (0.0, 1.0), records, labels=known)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("records", [1, 2])
def test_a_record_that_the_prior_can_make_comes_back(name, records):
    targets, observation = observed(records)
    found = ROWS[name].attack()(observation, rng=torch.Generator().manual_seed(0))
    assert found.estimates.shape == targets.shape
    assert found.estimates.dtype == torch.float32
    assert 0 <= float(found.estimates.min()) <= float(found.estimates.max()) <= 1
    assert not found.status.is_failure
    assert len(found.account.objective) == records
    assert all(math.isfinite(value) for value in found.account.objective)
    assert float(rr.metrics.score(found, targets, rr.metrics.mse())["mse"].mean()) < ROWS[name].error


@pytest.mark.parametrize("name", EVERY)
def test_it_keeps_the_rules_for_attacks(name):
    targets, observation = observed()
    report = check_attack(EVERY[name].attack(**{EVERY[name].length: 3}), observation, records=targets)
    assert "refuses_weaker_adversaries" in report.passed


@pytest.mark.parametrize("name", EVERY)
def test_it_needs_a_prior_and_says_so(name):
    attack = EVERY[name].attack()
    assert Knows.PRIOR in attack.needs.knows
    _, blind = observed(threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
    with pytest.raises(rr.InvalidInput, match="to cover what the attack needs"):
        attack(blind, rng=torch.Generator())


@pytest.mark.parametrize("name", EVERY)
def test_a_prior_of_another_shape_is_refused(name):
    _, observation = observed()
    other = dataclasses.replace(observation, input_shape=(6,))
    with pytest.raises(rr.InvalidInput, match=r"prior\.shape"):
        EVERY[name].attack()(other, rng=torch.Generator())


@pytest.mark.parametrize("name", EVERY)
def test_a_prior_of_another_range_is_refused_with_what_to_do(name):
    _, observation = observed()
    other = dataclasses.replace(observation, data_range=(0.0, 255.0))
    with pytest.raises(rr.InvalidInput, match="scaled_to"):
        EVERY[name].attack()(other, rng=torch.Generator())


@pytest.mark.parametrize("name", ROWS)
def test_a_map_that_gives_no_numbers_is_a_failure_that_is_told(name):
    _, observation = observed(forward=lambda inputs, labels: {"y": (inputs.sum() * float("nan")).expand(4 * SIZE)})
    attack = ROWS[name].attack(**{ROWS[name].length: 3})
    found = attack(observation, rng=torch.Generator().manual_seed(0))
    assert found.status.is_failure
    assert bool(found.estimates.isfinite().all())


@pytest.mark.parametrize("name", ROWS)
def test_a_zero_release_is_not_called_a_success(name):
    _, observation = observed(scale=0.0)
    attack = ROWS[name].attack(**{ROWS[name].length: 3})
    found = attack(observation, rng=torch.Generator().manual_seed(0))
    assert found.status.ending is Ending.NOT_APPLICABLE


@pytest.mark.parametrize("name", ROWS)
def test_ctrl_c_returns_what_there_is(name):
    calls = []
    mixed = matrix(1)

    def forward(inputs, labels):
        calls.append(1)
        if len(calls) == ROWS[name].calls:
            signal.raise_signal(signal.SIGINT)
        return {"y": mixed.to(inputs.dtype) @ inputs.flatten()}

    _, observation = observed(forward=forward)
    found = ROWS[name].attack()(observation, rng=torch.Generator().manual_seed(0))
    assert found.status.ending is Ending.INTERRUPTED
    assert found.estimates.shape == (1, *SHAPE)
    # of what explains the release, something was found: the prior's mean explains less
    residuals = [
        float((observation.released["y"] - mixed @ x.flatten()).square().sum())
        for x in (found.estimates, torch.full(SHAPE, 0.5))
    ]
    assert residuals[0] < residuals[1]


@pytest.mark.parametrize("name", ROWS)
def test_seconds_are_kept(name):
    calls, mixed = [], matrix(1)

    def forward(inputs, labels):
        calls.append(1)
        time.sleep(0.02)
        return {"y": mixed.to(inputs.dtype) @ inputs.flatten()}

    _, observation = observed(forward=forward)
    found = ROWS[name].attack(seconds=0.1)(observation, rng=torch.Generator().manual_seed(0))
    assert found.status.ending is Ending.BUDGET_SPENT
    # five calls fill the time; a step that has begun is finished, of the search by generations a whole one
    assert len(calls) < 5 + ROWS[name].overrun


@pytest.mark.parametrize("name", EVERY)
def test_every_setting_is_in_the_account(name):
    attack = EVERY[name].attack()
    assert repr(attack).startswith(f"{name}(")
    assert f"{EVERY[name].length}=" in repr(attack)


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_the_same_whatever_was_released(name):
    def forward(inputs, labels):
        raise AssertionError("The release was looked at")

    one, other = (observed(scale=scale, forward=forward)[1] for scale in (1.0, 1e6))
    first, second = (EVERY[name].attack()(seen, rng=torch.Generator().manual_seed(0)) for seen in (one, other))
    assert torch.equal(first.estimates, second.estimates)
    assert all(math.isinf(value) for value in first.account.objective)
