import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reconrisk as rr
from reconrisk.attacks import class_mean, constant_guess, prior_mean
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, INFORMED, Knows, Sees, ThreatModel

PRIOR = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)


def observation(threat=PRIOR, *, shape=(2, 2), data_range=(0.0, 1.0), labels=None, batch_size=3):
    released = {"weight": torch.zeros(3, 2), "bias": torch.tensor([0.3, -0.7, 0.4])}

    def forward(inputs, labels):
        raise AssertionError("a guess evaluates nothing")

    return Observation(released, forward, threat, shape, data_range, batch_size=batch_size, labels=labels)


def guess(attack, *arguments, **options):
    return attack(observation(*arguments, **options), rng=torch.Generator())


@given(low=st.floats(-10, 10), width=st.floats(0.1, 10), batch_size=st.integers(1, 5))
def test_the_constant_guess_is_the_middle_of_any_range_for_every_record(low, width, batch_size):
    result = guess(constant_guess(), HONEST_BUT_CURIOUS, data_range=(low, low + width), batch_size=batch_size)
    torch.testing.assert_close(result.estimates, torch.full((batch_size, 2, 2), low + width / 2))
    assert result.account.objective == (math.inf,) * batch_size
    assert result.account.cost.evaluations == 0
    assert not result.status.is_failure


def test_a_stated_value_is_guessed_and_shown():
    result = guess(constant_guess(0.25))
    assert bool((result.estimates == 0.25).all())
    assert result.account.attack == "constant_guess(value=0.25)"
    assert str(result.status) == "converged: a guess, every value is 0.25."


def test_a_guess_needs_no_update_at_all():
    final = ThreatModel(Sees.FINAL_MODEL)
    assert guess(constant_guess(), final).estimates.shape == (3, 2, 2)
    assert guess(prior_mean(torch.zeros(2, 2)), INFORMED).estimates.shape == (3, 2, 2)
    with pytest.raises(rr.InvalidInput, match=r"to cover what the attack needs.*knows=prior"):
        guess(prior_mean(torch.zeros(2, 2)), final)


def test_the_mean_of_the_prior_has_the_least_error_of_all_constant_guesses():
    rng = torch.Generator().manual_seed(0)
    records = torch.rand(200, 2, 2, generator=rng) ** 2
    mean = guess(prior_mean(records.mean(0)), batch_size=200)
    middle = guess(constant_guess(), batch_size=200)
    errors = [(result.estimates - records).square().mean() for result in (mean, middle)]
    assert errors[0] < errors[1]
    torch.testing.assert_close(errors[0], records.var(0, unbiased=False).mean())
    assert mean.account.attack == "prior_mean(tensor of shape (2, 2))"


def test_the_class_mean_follows_known_labels_and_infers_an_unknown_one():
    means = torch.tensor([0.1, 0.2, 0.3])[:, None, None].expand(3, 2, 2)
    known = guess(class_mean(means), PRIOR.with_knowledge(Knows.LABELS), labels=torch.tensor([2, 0, 2]))
    torch.testing.assert_close(known.estimates[:, 0, 0], torch.tensor([0.3, 0.1, 0.3]))
    assert known.labels == (2, 0, 2)
    inferred = guess(class_mean(means), batch_size=1)
    torch.testing.assert_close(inferred.estimates, torch.full((1, 2, 2), 0.2))
    assert inferred.labels == (1,)


def test_the_class_mean_works_on_a_release():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, torch.rand(1, 4), torch.tensor([2]))
    means = torch.rand(3, 4)
    result = class_mean(means)(rr.observe(release, threat=PRIOR), rng=torch.Generator())
    assert torch.equal(result.estimates[0], means[2])


def test_estimates_have_the_default_type_and_stay_in_range_where_a_mean_was_rounded_out_of_it():
    mean = torch.full((2, 2), 1.0, dtype=torch.float64) + 1e-7
    result = guess(prior_mean(mean))
    assert result.estimates.dtype == torch.get_default_dtype()
    assert float(result.estimates.max()) == 1.0
    result.estimates[0] = 0.0  # no memory is shared between records, nor with the mean
    assert float(result.estimates[1].min()) == 1.0
    assert float(mean.min()) > 1.0


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: guess(constant_guess(1.5)), r"value='between 1.5 and 1.5' to lie in data_range=\(0.0, 1.0\)"),
        (lambda: constant_guess(math.nan), "value=nan to be a number"),
        (lambda: guess(prior_mean(torch.zeros(3))), r"mean.shape=\(3,\) to be \(2, 2\)"),
        (lambda: guess(prior_mean(-torch.ones(2, 2))), "mean='between -1 and -1' to lie in data_range"),
        (lambda: prior_mean([0.5]), "mean='list' to be a floating point tensor"),
        (lambda: prior_mean(torch.tensor([math.inf])), "mean to be finite"),
        (lambda: class_mean(torch.zeros(3)), r"means.shape=\(3,\) to be \(classes"),
        (lambda: guess(class_mean(torch.zeros(3, 4))), r"means.shape=\(3, 4\) to be \(3, 2, 2\)"),
        (
            lambda: guess(
                class_mean(torch.zeros(2, 2, 2)), PRIOR.with_knowledge(Knows.LABELS), labels=torch.tensor([0, 5, 1])
            ),
            r"labels=\[0, 5, 1\] to be classes with a mean, 0 to 1",
        ),
        (lambda: guess(class_mean(torch.zeros(3, 2, 2)), HONEST_BUT_CURIOUS), "to cover what the attack needs"),
    ],
)
def test_what_cannot_be_guessed_with_is_refused(run, message):
    with pytest.raises(rr.InvalidInput, match=message):
        run()
