import math

import pytest
import torch
from torch import nn

from reconrisk.attacks import gauss_newton
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.models import lenet
from reconrisk.releases import GradientMap


def observe(model, inputs, labels, *, known=False):
    forward = GradientMap(model)
    released = {name: value.detach() for name, value in forward(inputs, labels).items()}
    threat = HONEST_BUT_CURIOUS.knowing(Knows.LABELS) if known else HONEST_BUT_CURIOUS
    return Observation(
        released,
        forward,
        threat,
        tuple(inputs.shape[1:]),
        (0.0, 1.0),
        batch_size=len(inputs),
        labels=labels if known else None,
    )


def small_network(rng, shape=(1, 12, 12)):
    return lenet(shape, 5, activation=nn.Tanh, rng=rng)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_record_is_rebuilt_from_the_gradient_of_a_smooth_convolutional_network(seed):
    rng = torch.Generator().manual_seed(seed)
    target = torch.rand(1, 1, 12, 12, generator=rng)
    result = gauss_newton()(observe(small_network(rng), target, torch.tensor([seed])), rng=rng)
    assert result.labels == (seed,)
    assert float((result.estimates - target).square().mean()) < 1e-5  # 50 dB


def test_two_records_are_rebuilt_from_their_mean_gradient_when_labels_are_known():
    rng = torch.Generator().manual_seed(3)
    targets = torch.rand(2, 1, 12, 12, generator=rng)
    result = gauss_newton()(observe(small_network(rng), targets, torch.tensor([0, 4]), known=True), rng=rng)
    assert float((result.estimates - targets).square().mean()) < 1e-4  # 40 dB


def test_a_linear_release_is_inverted_in_one_undamped_step():
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.rand(1, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    observation = linear_observation(matrix, matrix @ target[0])
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(2))
    torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-4)
    assert result.status.ending is Ending.CONVERGED


def test_the_same_generator_gives_the_same_estimate_and_another_a_different_path():
    rng = torch.Generator().manual_seed(0)
    observation = observe(small_network(rng), torch.rand(1, 1, 12, 12, generator=rng), torch.tensor([1]))
    attack = gauss_newton(iterations=2, inner_iterations=5)
    runs = [attack(observation, rng=torch.Generator().manual_seed(seed)).estimates for seed in (7, 7, 8)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_more_iterations_never_raise_the_objective():
    rng = torch.Generator().manual_seed(5)
    observation = observe(small_network(rng), torch.rand(1, 1, 12, 12, generator=rng), torch.tensor([2]))
    objectives = [
        gauss_newton(iterations=count, inner_iterations=10)(observation, rng=torch.Generator().manual_seed(0))
        for count in (1, 3, 6)
    ]
    values = [result.account.objective[0] for result in objectives]
    assert values == sorted(values, reverse=True)
    assert objectives[0].status.ending is Ending.BUDGET_SPENT


def test_an_interrupt_returns_the_best_so_far():
    rng = torch.Generator().manual_seed(0)
    whole = observe(small_network(rng), torch.rand(1, 1, 12, 12, generator=rng), torch.tensor([1]))
    calls = []

    def interrupted(inputs, labels):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole.forward(inputs, labels)

    observation = Observation(whole.released, interrupted, whole.threat, whole.input_shape, whole.data_range)
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(0))
    assert result.status.ending is Ending.INTERRUPTED
    assert torch.isfinite(result.estimates).all()


def linear_observation(matrix, released):
    return Observation(
        {"y": released},
        lambda inputs, labels: {"y": matrix @ inputs[0]},
        HONEST_BUT_CURIOUS.knowing(Knows.LABELS),
        (matrix.shape[1],),
        (0.0, 1.0),
        labels=torch.tensor([0]),
    )


def test_estimates_stay_in_the_data_range_and_evaluations_are_counted():
    matrix = torch.eye(3, dtype=torch.float64)
    result = gauss_newton()(linear_observation(matrix, torch.tensor([2.0, -1.0, 0.5])), rng=torch.Generator())
    torch.testing.assert_close(result.estimates, torch.tensor([[1.0, 0.0, 0.5]]), rtol=0, atol=1e-4)
    assert result.account.cost.evaluations >= 2


def test_a_zero_release_and_a_broken_forward_map_are_said():
    matrix = torch.eye(3, dtype=torch.float64)
    zero = gauss_newton()(linear_observation(matrix, torch.zeros(3)), rng=torch.Generator())
    assert zero.status.ending is Ending.NOT_APPLICABLE
    broken = gauss_newton()(linear_observation(matrix * math.nan, torch.ones(3)), rng=torch.Generator())
    assert broken.status.ending is Ending.DIVERGED


def test_batches_with_unknown_labels_and_bad_settings_are_refused():
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(InvalidInput, match="known labels for a batch of 2"):
        gauss_newton()(observe(small_network(rng), torch.rand(2, 1, 12, 12), torch.tensor([0, 1])), rng=rng)
    with pytest.raises(InvalidInput, match="iterations=0 >= 1"):
        gauss_newton(iterations=0)
