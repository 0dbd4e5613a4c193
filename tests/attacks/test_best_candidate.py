import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reconrisk as rr
from reconrisk.attacks import best_candidate
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, INFORMED, Knows
from reconrisk.models import lenet

PRIOR = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
NOISY = PRIOR.with_knowledge(Knows.LABELS, Knows.DEFENSE)
CE = nn.functional.cross_entropy


def linear(released, *, std=None, kept=None, matrix=None):
    """An observation of matrix @ x, by default x itself."""
    matrix = torch.eye(len(released)) if matrix is None else matrix
    return Observation(
        {"y": released},
        lambda inputs, labels: {"y": matrix @ inputs[0]},
        NOISY,
        (matrix.shape[1],),
        (0.0, 1.0),
        labels=torch.tensor([0]),
        noise_std=None if std is None else {"y": std},
        kept=None if kept is None else {"y": kept},
    )


def chosen(attack, observation):
    result = attack(observation, rng=torch.Generator())
    (place,) = (attack.candidates == result.estimates).flatten(1).all(1).nonzero().flatten().tolist()
    return place


@pytest.mark.parametrize("label_known", [True, False])
def test_the_record_is_found_among_two_hundred_digits(label_known):
    digits = rr.load_dataset("mnist", split="test")
    model = lenet((1, 28, 28), 10, rng=torch.Generator().manual_seed(0))
    release = rr.releases.GradientRelease(model, CE, digits.inputs[123:124], digits.labels[123:124])
    threat = PRIOR.with_knowledge(Knows.LABELS) if label_known else PRIOR
    attack = best_candidate(digits.inputs[:200])
    result = attack(rr.observe(release, threat=threat), rng=torch.Generator())
    assert torch.equal(result.estimates, digits.inputs[123:124])
    assert result.status.ending is Ending.EXACT
    assert result.labels == (int(digits.labels[123]),)
    assert result.account.cost.evaluations >= 200
    assert result.account.attack == "best_candidate(tensor of shape (200, 1, 28, 28), labels=none, weights=none)"


def test_the_informed_adversary_finds_the_record_in_a_trained_model():
    rng = torch.Generator().manual_seed(0)
    candidates, others = torch.rand(6, 4, generator=rng), torch.rand(5, 4, generator=rng)
    model, labels = nn.Linear(4, 2), torch.tensor([0, 1, 1, 0, 1])

    def forward(inputs, targets):
        everything, answers = torch.cat([inputs, others]), torch.cat([targets, labels])
        return rr.releases.GradientMap(model)(everything, answers)

    release = rr.releases.ForwardRelease(forward, candidates[4:5], torch.tensor([1]))
    attack = best_candidate(candidates, labels=torch.tensor([0, 1, 0, 1, 1, 0]))
    assert chosen(attack, rr.observe(release, threat=INFORMED)) == 4


@given(seed=st.integers(0, 1000))
def test_under_known_noise_it_is_the_maximum_of_the_posterior(seed):
    rng = torch.Generator().manual_seed(seed)
    candidates, matrix = torch.rand(7, 3, generator=rng), torch.randn(5, 3, generator=rng)
    released, std = torch.randn(5, generator=rng), 0.2 + torch.rand(5, generator=rng)
    weights = torch.rand(7, generator=rng)
    likelihood = torch.distributions.Normal((candidates @ matrix.T).double(), std.double()).log_prob(released.double())
    posterior = (likelihood.sum(1) + (weights.double() / weights.double().sum()).log()).exp()
    attack = best_candidate(candidates, weights=weights)
    assert chosen(attack, linear(released, std=std, matrix=matrix)) == int(posterior.argmax())


def test_it_is_right_as_often_as_the_largest_posterior_probability():
    # two candidates at distance 1 under noise s: the maximum a posteriori rule errs with probability Phi(-1 / (2 s))
    rng = torch.Generator().manual_seed(0)
    attack, std, trials = best_candidate(torch.tensor([[0.0], [1.0]])), 0.5, 400
    hits = 0
    for trial in range(trials):
        released = torch.tensor([float(trial % 2)]) + std * torch.randn(1, generator=rng)
        hits += chosen(attack, linear(released, std=torch.tensor([std]))) == trial % 2
    rate = float(torch.special.ndtr(torch.tensor(0.5 / std)))
    assert hits / trials == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / trials))


def test_without_noise_the_weights_decide_among_equals_only():
    candidates = torch.tensor([[0.2, 0.1], [0.2, 0.9], [0.6, 0.5]])
    matrix = torch.tensor([[1.0, 0.0]])  # the first two have one release
    near = linear(torch.tensor([0.25]), matrix=matrix)
    assert chosen(best_candidate(candidates, weights=torch.tensor([0.1, 0.2, 0.7])), near) == 1
    assert chosen(best_candidate(candidates, weights=torch.tensor([0.2, 0.1, 0.7])), near) == 0
    assert chosen(best_candidate(candidates, weights=torch.tensor([0.0, 0.0, 1.0])), near) == 2  # never one of weight 0


def test_values_that_were_not_sent_do_not_count():
    released = torch.tensor([0.5, 0.0])  # zero stands for what was left out
    candidates = torch.tensor([[0.5, 0.9], [0.3, 0.1]])
    assert chosen(best_candidate(candidates), linear(released)) == 1
    assert chosen(best_candidate(candidates), linear(released, kept=torch.tensor([True, False]))) == 0


def test_candidates_of_another_label_than_the_known_one_are_never_chosen():
    candidates = torch.tensor([[0.5, 0.5], [0.1, 0.1]])
    observation = linear(torch.tensor([0.5, 0.5]))
    assert chosen(best_candidate(candidates, labels=torch.tensor([1, 0])), observation) == 1
    with pytest.raises(rr.InvalidInput, match=r"to include the known label \[0\]"):
        best_candidate(candidates, labels=torch.tensor([1, 2]))(observation, rng=torch.Generator())


def test_a_forward_map_that_cannot_be_vectorised_is_evaluated_one_by_one():
    def forward(inputs, labels):
        return {"y": inputs[0] if float(inputs.sum()) > 0.5 else -inputs[0]}

    candidates = torch.tensor([[0.1, 0.2], [0.5, 0.5], [0.3, 0.9]])
    released = {"y": torch.tensor([-0.1, -0.2])}
    observation = Observation(released, forward, NOISY, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    assert chosen(best_candidate(candidates), observation) == 0


def test_releases_that_are_not_finite_are_never_nearest_and_said_if_there_are_no_others():
    def forward(inputs, labels):
        return {"y": torch.where(inputs[0] > 0.5, math.nan, inputs[0])}

    observation = Observation({"y": torch.ones(1)}, forward, NOISY, (1,), (0.0, 1.0), labels=torch.tensor([0]))
    assert chosen(best_candidate(torch.tensor([[0.9], [0.1]])), observation) == 1
    broken = best_candidate(torch.tensor([[0.9], [0.8]]))(observation, rng=torch.Generator())
    assert broken.status.ending is Ending.DIVERGED
    assert bool(broken.estimates.isfinite().all())


def test_an_interrupt_returns_the_best_so_far():
    calls = []

    def forward(inputs, labels):
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return {"y": inputs[0] + 0 * float(inputs.sum())}  # float() keeps vmap out: one call a candidate

    observation = Observation({"y": torch.zeros(1)}, forward, NOISY, (1,), (0.0, 1.0), labels=torch.tensor([0]))
    result = best_candidate(torch.linspace(1, 0.1, 10)[:, None])(observation, rng=torch.Generator())
    assert result.status.ending is Ending.INTERRUPTED
    assert 0.1 < float(result.estimates) < 1


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: best_candidate(torch.zeros(0, 2)), "candidates with at least one element"),
        (
            lambda: best_candidate([[0.1]]),
            r"candidates='list' to be a floating point tensor \(candidates, \*shape of a record\)",
        ),
        (lambda: best_candidate(torch.full((2, 2), math.nan)), "candidates to be finite"),
        (lambda: best_candidate(torch.zeros(2, 2), weights=torch.ones(3)), r"weights.shape=\(3,\) to begin with 2"),
        (
            lambda: best_candidate(torch.zeros(2, 2), weights=torch.tensor([-1.0, 1.0])),
            "weights >= 0 that are not all 0",
        ),
        (lambda: best_candidate(torch.zeros(2, 2), weights=torch.zeros(2)), "not all 0"),
        (lambda: best_candidate(torch.zeros(2, 2), labels=torch.zeros(3)), r"labels.shape=\(3,\) to begin with 2"),
        (
            lambda: chosen(best_candidate(torch.zeros(2, 3)), linear(torch.ones(2))),
            r"to be \(2, 2\), since records are \(2,\)",
        ),
        (lambda: chosen(best_candidate(2 * torch.ones(2, 2)), linear(torch.ones(2))), "to lie in data_range"),
    ],
)
def test_bad_candidates_are_refused(run, message):
    with pytest.raises(rr.InvalidInput, match=message):
        run()


def test_batches_and_adversaries_without_a_prior_are_refused():
    release = rr.releases.GradientRelease(nn.Linear(2, 2), CE, torch.rand(2, 2), torch.tensor([0, 1]))
    attack = best_candidate(torch.rand(3, 2))
    with pytest.raises(rr.InvalidInput, match=r"batch_size=2 to be 1\. Attack updates of one record, or use"):
        attack(rr.observe(release, threat=PRIOR), rng=torch.Generator())
    with pytest.raises(rr.InvalidInput, match="to cover what the attack needs"):
        attack(rr.observe(release), rng=torch.Generator())


def test_a_candidate_is_not_called_exact_under_noise_that_nobody_knows_of():
    candidates = torch.tensor([[0.2, 0.7, 0.4], [0.9, 0.1, 0.5]])
    sent = candidates[0] + 1e-4 * torch.tensor([1.0, -1.0, 1.0])  # relative squared distance 4e-8
    result = best_candidate(candidates)(linear(sent), rng=torch.Generator())
    assert torch.equal(result.estimates[0], candidates[0])
    assert result.status.ending is Ending.CONVERGED
