import dataclasses
import math
import signal

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks import gauss_newton
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.models import guo2022_mnist, lenet

LABELLED = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
DEFENDED = LABELLED.with_knowledge(Knows.DEFENSE)


def released(model, inputs, labels):
    return rr.releases.GradientRelease(model, nn.functional.cross_entropy, inputs, labels)


def small_network(rng, shape=(1, 12, 12)):
    return lenet(shape, 5, activation=nn.Tanh, rng=rng)


def small_observation(seed, label=1, **given):
    rng = torch.Generator().manual_seed(seed)
    target = torch.rand(1, 1, 12, 12, generator=rng)
    return rr.observe(released(small_network(rng), target, torch.tensor([label])), **given), target


def linear_observation(matrix, values, threat=LABELLED, **given):
    return Observation(
        {"y": values},
        lambda inputs, labels: {"y": matrix.to(inputs.dtype) @ inputs[0]},
        threat,
        (matrix.shape[1],),
        (0.0, 1.0),
        labels=torch.tensor([0]),
        **given,
    )


def decibels(estimates, targets):
    return float(-10 * (estimates - targets).square().flatten(1).mean(1).log10().max())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_record_is_rebuilt_from_the_gradient_of_a_smooth_convolutional_network(seed):
    observation, target = small_observation(seed, seed)
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(seed))
    assert result.labels == (seed,)
    assert decibels(result.estimates, target) > 90
    assert result.status.ending is Ending.EXACT


def test_records_are_rebuilt_from_their_mean_gradient_with_known_and_with_inferred_labels():
    rng = torch.Generator().manual_seed(3)
    targets = torch.rand(2, 1, 12, 12, generator=rng)
    release = released(small_network(rng), targets, torch.tensor([0, 4]))
    for threat in (LABELLED, HONEST_BUT_CURIOUS):
        result = gauss_newton()(rr.observe(release, threat=threat), rng=rng)
        assert result.labels == (0, 4)
        assert decibels(result.estimates, targets) > 60


def test_an_ill_conditioned_network_gives_its_record_away_too():
    rng = torch.Generator().manual_seed(0)
    target = rr.load_dataset("mnist", split="test").inputs[1:2]
    observation = rr.observe(released(guo2022_mnist(rng=rng), target, torch.tensor([0])))
    result = gauss_newton()(observation, rng=rng)  # products alone stay below 40 dB for minutes
    assert decibels(result.estimates, target) > 80


def test_a_linear_release_is_inverted():
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.rand(1, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = gauss_newton()(linear_observation(matrix, matrix @ target[0]), rng=torch.Generator().manual_seed(2))
    torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-6)
    assert result.status.ending is Ending.EXACT


def test_known_noise_weighs_the_values_and_those_not_sent_do_not_count():
    matrix = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([0.2, 0.6, 0.3, 0.9], dtype=torch.float64)
    std = torch.tensor([0.1, 0.2, 0.1, 0.1], dtype=torch.float64)
    kept = torch.tensor([True, True, True, False])
    observation = linear_observation(matrix, values, DEFENDED, noise_std={"y": std}, kept={"y": kept})
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(0))
    expected = torch.tensor([[(0.2 / 0.01 + 0.6 / 0.04) / (1 / 0.01 + 1 / 0.04), 0.3]])  # weighted mean, by hand
    torch.testing.assert_close(result.estimates, expected, rtol=0, atol=1e-5)
    residual = ((0.2 - 0.28) / 0.1) ** 2 + ((0.6 - 0.28) / 0.2) ** 2
    assert result.account.objective[0] == pytest.approx(residual / 2, rel=1e-5)
    assert result.status.ending is Ending.CONVERGED


def test_values_drowned_in_infinite_noise_do_not_count_and_almost_exact_ones_rule():
    matrix = torch.tensor([[1.0], [1.0], [1.0]], dtype=torch.float64)
    observation = linear_observation(
        matrix,
        torch.tensor([0.9, 0.4, 0.2], dtype=torch.float64),
        DEFENDED,
        noise_std={"y": torch.tensor([math.inf, 1e-9, 0.1], dtype=torch.float64)},
    )
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(0))
    torch.testing.assert_close(result.estimates, torch.tensor([[0.4]]), rtol=0, atol=1e-6)


def test_a_prior_gives_the_posterior_mean_of_the_linear_model():
    rng = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 4, generator=rng, dtype=torch.float64)  # fewer equations than unknowns
    values = matrix @ torch.full((4,), 0.5, dtype=torch.float64) + 0.1 * torch.randn(3, generator=rng).double()
    mean, std = torch.tensor([0.4, 0.5, 0.6, 0.5]), 0.05
    observation = linear_observation(
        matrix, values, DEFENDED.with_knowledge(Knows.PRIOR), noise_std={"y": torch.full((3,), 0.1).double()}
    )
    result = gauss_newton(prior_mean=mean, prior_std=std)(observation, rng=torch.Generator().manual_seed(1))
    information = matrix.T @ matrix / 0.1**2 + torch.eye(4).double() / std**2
    expected = torch.linalg.solve(information, matrix.T @ values / 0.1**2 + mean.double() / std**2)
    torch.testing.assert_close(result.estimates[0], expected.float(), rtol=0, atol=1e-5)


def test_the_fit_within_the_data_range_is_that_of_bounded_least_squares():
    from scipy.optimize import lsq_linear  # independent oracle

    rng = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 12, generator=rng, dtype=torch.float64)
    values = torch.randn(40, generator=rng, dtype=torch.float64) * 3
    observation = linear_observation(matrix, values, DEFENDED, noise_std={"y": torch.ones(40).double()})
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(1))
    oracle = lsq_linear(matrix.numpy(), values.numpy(), bounds=(0, 1), tol=1e-12)
    assert 0 < (oracle.active_mask != 0).sum() < 12
    assert result.account.objective[0] == pytest.approx(oracle.cost, rel=1e-6)
    torch.testing.assert_close(result.estimates[0], torch.tensor(oracle.x).float(), rtol=0, atol=1e-3)


def test_staying_within_the_range_beats_clipping_to_it_under_noise():
    rng = torch.Generator().manual_seed(0)
    target = rr.load_dataset("mnist", split="test").inputs[2:3, :, ::2, ::2]
    release = released(lenet((1, 14, 14), 10, activation=nn.Tanh, rng=rng), target, torch.tensor([1]))
    observation = rr.observe(release, defense=rr.defenses.gaussian_noise(3e-3), threat=DEFENDED, rng=rng)
    result = gauss_newton()(observation, rng=rng)
    wide = dataclasses.replace(observation, data_range=(-10.0, 11.0))
    clipped = gauss_newton()(wide, rng=rng).estimates.clamp(0, 1)
    assert decibels(result.estimates, target) > decibels(clipped, target) + 1  # most pixels are at an end of the range


def test_noise_that_is_not_known_is_fitted_by_equal_errors():
    informed, _ = small_observation(
        4, defense=rr.defenses.gaussian_noise(1e-3), threat=DEFENDED, rng=torch.Generator().manual_seed(0)
    )
    observation = dataclasses.replace(informed, forward=informed.forward.undefended, threat=LABELLED, noise_std=None)
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(0))
    best = gauss_newton()(informed, rng=torch.Generator().manual_seed(0))
    torch.testing.assert_close(result.estimates, best.estimates, rtol=0, atol=2e-3)
    assert result.status.ending is Ending.CONVERGED
    assert "3 of 3 starts agree" in str(result.status)


def test_the_same_generator_gives_the_same_estimate_and_another_a_different_path():
    observation, _ = small_observation(0)
    attack = gauss_newton(iterations=2, inner_iterations=5)
    runs = [attack(observation, rng=torch.Generator().manual_seed(seed)).estimates for seed in (7, 7, 8)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_a_spent_budget_is_said():
    observation, _ = small_observation(5)
    short = gauss_newton(iterations=1, inner_iterations=2)(observation, rng=torch.Generator().manual_seed(0))
    assert short.status.ending is Ending.BUDGET_SPENT
    assert "iterations" in short.status.remedy
    hurried = gauss_newton(seconds=1e-6)(observation, rng=torch.Generator().manual_seed(0))
    assert hurried.status.ending is Ending.BUDGET_SPENT
    assert "seconds" in hurried.status.remedy
    assert bool(hurried.estimates.isfinite().all())


def test_an_interrupt_returns_the_best_so_far():
    whole, _ = small_observation(0, threat=LABELLED)
    calls = []

    def forward(inputs, labels):
        calls.append(1)
        if len(calls) == 6:
            signal.raise_signal(signal.SIGINT)
        return whole.forward(inputs, labels)

    result = gauss_newton()(dataclasses.replace(whole, forward=forward), rng=torch.Generator().manual_seed(0))
    start = gauss_newton(seconds=1e-9)(whole, rng=torch.Generator().manual_seed(0))
    assert result.status.ending is Ending.INTERRUPTED
    assert torch.isfinite(result.estimates).all()
    assert result.account.objective[0] < start.account.objective[0]


def test_a_start_in_another_valley_is_followed_by_others():
    def forward(inputs, labels):  # the misfit has a local minimum at 0.25 and a ridge at 0.48
        value = inputs[0]
        return {"y": torch.cat([(value - 0.8) * (0.1 + (value - 0.15).square()), 1 + 0 * value])}

    released = {"y": torch.tensor([0.0, 1.0])}
    observation = Observation(released, forward, LABELLED, (1,), (0.0, 1.0), labels=torch.tensor([0]))
    found = {restarts: [] for restarts in (1, 12)}
    for restarts, ends in found.items():
        for seed in range(8):
            result = gauss_newton(restarts=restarts)(observation, rng=seeded(seed))
            ends.append(abs(float(result.estimates) - 0.8) < 1e-3)
    assert 0 < sum(found[1]) < 8
    assert all(found[12])  # all twelve on the wrong side of the ridge: 0.43^12 = 4e-5 a seed


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_starts_that_are_not_finite_cannot_win():
    def forward(inputs, labels):
        return {"y": (inputs[0] - 0.5).sqrt()}

    observation = Observation(
        {"y": torch.tensor([0.2]).sqrt()}, forward, LABELLED, (1,), (0.0, 1.0), labels=torch.tensor([0])
    )
    for seed in range(6):
        result = gauss_newton(restarts=20)(observation, rng=seeded(seed))
        assert float(result.estimates) == pytest.approx(0.7, abs=1e-5)


def test_another_attack_is_a_start_and_its_needs_are_those_of_the_whole():
    observation, target = small_observation(6)
    near = (target + 0.01 * torch.randn(target.shape, generator=seeded(0))).clamp(0, 1)
    warm = rr.attacks.prior_mean(near[0])
    attack = gauss_newton(warm_start=warm)
    assert Knows.PRIOR in attack.needs.knows
    with pytest.raises(InvalidInput, match="threat"):
        attack(observation, rng=seeded(0))
    believing = dataclasses.replace(observation, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR))
    result = attack(believing, rng=seeded(0))
    cold = gauss_newton()(observation, rng=seeded(0))
    assert decibels(result.estimates, target) > 90
    assert result.account.cost.evaluations < cold.account.cost.evaluations
    unmoved = gauss_newton(warm_start=warm, seconds=1e-9)(believing, rng=seeded(0))
    torch.testing.assert_close(unmoved.estimates, near, rtol=0, atol=1e-6)


def test_a_release_of_single_precision_parameters_only_is_attacked_in_that_precision():
    weight = torch.randn(6, 4, generator=seeded(0))
    observation = dataclasses.replace(
        linear_observation(weight, weight @ torch.full((4,), 0.3)),
        forward=lambda inputs, labels: {"y": weight @ inputs[0]},
    )
    result = gauss_newton()(observation, rng=seeded(0))
    torch.testing.assert_close(result.estimates, torch.full((1, 4), 0.3), rtol=0, atol=1e-5)


def test_estimates_stay_in_the_data_range_and_are_not_called_exact_there():
    result = gauss_newton()(linear_observation(torch.eye(3).double(), torch.tensor([2.0, -1.0, 0.5])), rng=seeded(0))
    torch.testing.assert_close(result.estimates, torch.tensor([[1.0, 0.0, 0.5]]), rtol=0, atol=1e-4)
    assert result.status.ending is Ending.CONVERGED
    assert result.account.objective[0] == pytest.approx(2 / 5.25, rel=1e-3)
    assert result.account.cost.evaluations >= 2


def test_a_zero_release_and_a_broken_forward_map_are_said():
    matrix = torch.eye(3, dtype=torch.float64)
    zero = gauss_newton()(linear_observation(matrix, torch.zeros(3)), rng=torch.Generator())
    assert zero.status.ending is Ending.NOT_APPLICABLE
    broken = gauss_newton()(linear_observation(matrix * math.nan, torch.ones(3)), rng=torch.Generator())
    assert broken.status.ending is Ending.DIVERGED
    assert torch.equal(broken.estimates, torch.full((1, 3), 0.5))


def test_a_release_that_does_not_depend_on_the_records_leaves_the_start():
    observation = dataclasses.replace(
        linear_observation(torch.eye(2).double(), torch.ones(2)), forward=lambda inputs, labels: {"y": torch.zeros(2)}
    )
    result = gauss_newton()(observation, rng=seeded(0))
    assert bool(result.estimates.isfinite().all())
    assert result.status.ending is not Ending.EXACT


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations=0 >= 1"),
        ({"inner_iterations": 0}, "inner_iterations=0 >= 1"),
        ({"restarts": 0}, "restarts=0 >= 1"),
        ({"seconds": 0.0}, "seconds=0.0 > 0"),
        ({"tolerance": -1.0}, "tolerance=-1.0 >= 0"),
        ({"prior_mean": 0.5}, "prior_std is missing. Pass prior_mean and prior_std together"),
        ({"prior_mean": 0.5, "prior_std": 0.0}, r"min\(prior_std\)=0.0 > 0"),
        ({"prior_mean": math.nan, "prior_std": 1.0}, "prior_mean to be finite"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        gauss_newton(**settings)


def test_a_prior_of_another_shape_is_refused():
    observation = linear_observation(torch.eye(3).double(), torch.ones(3), LABELLED.with_knowledge(Knows.PRIOR))
    with pytest.raises(InvalidInput, match=r"expand to the shape of the records, \(1, 3\)"):
        gauss_newton(prior_mean=torch.zeros(4), prior_std=1.0)(observation, rng=seeded(0))


def test_every_setting_shows():
    shown = repr(gauss_newton(prior_mean=torch.zeros(2, 2), prior_std=0.5, seconds=3.0))
    assert "prior_mean=tensor of shape (2, 2)" in shown
    assert "seconds=3.0" in shown
    assert shown.startswith("gauss_newton(iterations=50, inner_iterations=150, restarts=3")


def test_a_release_of_fewer_values_than_are_unknown_is_not_called_exact():
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
    observation = Observation(
        {"y": torch.tensor([0.5])},
        lambda inputs, labels: {"y": inputs.sum(1)},
        threat,
        (3,),
        (0.0, 1.0),
        labels=torch.tensor([0]),
    )
    result = gauss_newton()(observation, rng=torch.Generator().manual_seed(0))
    assert float(result.estimates.sum()) == pytest.approx(0.5, abs=1e-5)
    assert result.status.ending is Ending.CONVERGED
    assert "Other records may fit" in result.status.remedy


def test_laplacian_noise_is_fitted_by_least_absolute_values():
    """A linear release: against the same problem solved by many rounds of weighted least squares."""
    rows = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE, Knows.LABELS)
    ours, oracle, squares = [], [], []
    for seed in range(15):
        target = 0.2 + 0.6 * torch.rand(1, 6, generator=torch.Generator().manual_seed(seed + 1))
        release = rr.releases.ForwardRelease(
            lambda inputs, labels: {"y": rows @ inputs[0]}, target, torch.zeros(1).long()
        )
        noise = torch.Generator().manual_seed(100 + seed)
        seen = rr.observe(release, defense=rr.defenses.laplace_noise(1.0), threat=threat, rng=noise)
        assert seen.noise_law == "laplace"
        as_normal = dataclasses.replace(seen, noise_law="gaussian")
        for found, given in ((ours, seen), (squares, as_normal)):
            estimate = gauss_newton()(given, rng=torch.Generator().manual_seed(1)).estimates
            found.append(float((estimate - target).square().mean()))
        observed, fit = seen.released["y"], target[0].clone()
        for _ in range(200):
            weights = 1 / (observed - rows @ fit).abs().clamp_min(1e-6)
            fit = torch.linalg.solve(rows.T @ (rows * weights[:, None]), rows.T @ (weights * observed))
        oracle.append(float((fit - target[0]).square().mean()))
    mean = {name: sum(each) / 15 for name, each in (("ours", ours), ("oracle", oracle), ("squares", squares))}
    assert mean["ours"] < 1.15 * mean["oracle"]  # residuals near zero are smoothed
    assert mean["ours"] < 0.8 * mean["squares"]  # at equal variance the law tells twice as much
