import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reconrisk as rr
from reconrisk.attacks.matching.span_inversion import FirstLayerSpan, span_inversion
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset

KNOWN_LABELS = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)


def observed(model, inputs, *, threat=KNOWN_LABELS, **options):
    labels = torch.arange(len(inputs)) % 2
    return rr.observe(
        rr.releases.GradientRelease(model, nn.functional.cross_entropy, inputs, labels), threat=threat, **options
    )


def records(count, features=12, seed=0):
    return torch.rand(count, features, generator=torch.Generator().manual_seed(seed))


def network(features=12, hidden=(20, 20), activation=nn.ReLU):
    return rr.models.mlp(features, hidden, 2, activation=activation, rng=torch.Generator().manual_seed(0))


def penalty_at(observation, inputs):
    return float(FirstLayerSpan().bind(observation)(inputs[None]))


@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([nn.ReLU, nn.Tanh]))
def test_the_records_lie_in_the_span_and_others_do_not(seed, count, activation):
    inputs = records(count, seed=seed)
    observation = observed(network(activation=activation), inputs)
    # float32 gradients turn the span by 6e-8 over the smallest singular value, relative to the largest, which is
    # above 1e-5 for such batches; the penalty is the square of the angle
    assert penalty_at(observation, inputs) < 1e-4
    assert penalty_at(observation, inputs.flip(1)) > 1e-2
    assert penalty_at(observation, inputs.roll(1, 0)) == pytest.approx(penalty_at(observation, inputs), abs=1e-6)


def test_the_share_is_the_squared_sine_of_the_angle_to_the_span():
    inputs = records(1)
    other = records(1, seed=1)
    one, two = (torch.cat([each[0], torch.ones(1)]).double() for each in (inputs, other))
    cosine = float(one @ two / (one.norm() * two.norm()))
    assert penalty_at(observed(network(), inputs), other) == pytest.approx(1 - cosine**2, abs=1e-5)


def test_a_layer_without_bias_spans_multiples_of_the_record():
    model = nn.Sequential(nn.Linear(12, 20, bias=False), nn.Tanh(), nn.Linear(20, 2))
    inputs = records(1)
    assert penalty_at(observed(model, inputs), 0.3 * inputs) < 1e-6
    assert penalty_at(observed(network(), inputs), 0.3 * inputs) > 1e-2


@pytest.mark.parametrize("count", [13, 25])
def test_batches_that_fill_the_layer_have_no_penalty(count):
    inputs = records(count, features=40)
    observation = observed(network(features=40, hidden=(12,)), inputs)
    assert penalty_at(observation, inputs.flip(1)) == 0


def test_a_gradient_of_lower_rank_than_the_batch_has_no_penalty():
    inputs = records(3)
    inputs[2] = inputs[1]
    assert penalty_at(observed(network(), inputs), inputs.flip(1)) == 0


def test_noise_that_hides_the_span_turns_the_penalty_off():
    inputs = records(2)
    noise = {"defense": rr.defenses.gaussian_noise(1.0), "rng": torch.Generator().manual_seed(0)}
    assert penalty_at(observed(network(), inputs, **noise), inputs.flip(1)) == 0


def test_beside_a_likelihood_of_known_noise_it_has_no_weight():
    assert FirstLayerSpan(2.0).prior_weight == 0
    inputs = records(1)
    options = {"defense": rr.defenses.gaussian_noise(1e-9), "rng": torch.Generator().manual_seed(0)}
    observation = observed(network(), inputs, threat=KNOWN_LABELS.with_knowledge(Knows.DEFENSE), **options)
    attack = span_inversion(steps=2)
    plain = span_inversion(steps=2, span=0)
    found, without = (each(observation, rng=torch.Generator().manual_seed(0)) for each in (attack, plain))
    assert torch.equal(found.estimates, without.estimates)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(12, 2)),
            "layer='3.weight' to read the record unchanged. Pass span=0",
        ),
        (
            nn.Sequential(nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(6, 2)),
            "to contain a linear layer on 12 features. Pass span=0",
        ),
    ],
)
def test_networks_that_begin_otherwise_are_refused_unless_the_span_is_off(model, message):
    observation = observed(model, records(1))
    with pytest.raises(InvalidInput, match=message):
        span_inversion()(observation, rng=torch.Generator())
    found = span_inversion(steps=1, span=0)(observation, rng=torch.Generator())
    assert not found.status.is_failure


def test_weights_below_zero_are_refused():
    with pytest.raises(InvalidInput, match=r"weight=-1.0 >= 0"):
        span_inversion(span=-1.0)
    with pytest.raises(InvalidInput, match=r"final_share=2.0 in \[0, 1\]"):
        FirstLayerSpan(final_share=2.0)


@pytest.mark.parametrize("smooth", [False, True])
def test_digits_are_rebuilt_from_the_mean_gradient_of_a_perceptron(smooth):
    """The known answer: with the span all four come back, without it the same search does not get there."""
    inputs = load_dataset("digits").inputs[:4]
    model = rr.models.mlp(
        64, (100, 100), 10, activation=nn.Tanh if smooth else nn.ReLU, rng=torch.Generator().manual_seed(0)
    )
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, inputs, torch.arange(4))
    observation = rr.observe(release, threat=KNOWN_LABELS)
    attack, plain = (span_inversion(steps=300, smooth=smooth, span=span) for span in (3.0, 0.0))
    best, worst = (
        math.sqrt(
            float(
                rr.metrics.score(each(observation, rng=torch.Generator().manual_seed(0)), inputs, rr.metrics.mse())[
                    "mse"
                ].max()
            )
        )
        for each in (attack, plain)
    )
    assert best < 0.02
    assert worst > 2 * best
