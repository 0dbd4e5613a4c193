import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import ForwardRelease, GradientRelease, HardClip, SmoothClip
from reconrisk.releases.sensitivity.fisher import FisherTrace, fisher_diagonal, fisher_matrix, fisher_trace, jacobian
from tests.releases.conftest import single_jacobians

SEEDS = st.integers(0, 10_000)


def _linear_release(matrix, records=1):
    width = matrix.shape[1] // records
    return ForwardRelease(
        lambda inputs, labels: {"y": matrix @ inputs.flatten()},
        torch.zeros(records, width, dtype=torch.float64),
        torch.zeros(records),
    )


def _matrix(seed, rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=SEEDS, rows=st.integers(1, 6), records=st.integers(1, 3), width=st.integers(1, 4))
def test_linear_releases_match_the_closed_form(seed, rows, records, width):
    matrix = _matrix(seed, rows, records * width)
    release = _linear_release(matrix, records)
    torch.testing.assert_close(fisher_matrix(release, noise_std=0.5), 4 * matrix.T @ matrix)
    blocks = matrix.reshape(rows, records, width)
    torch.testing.assert_close(fisher_diagonal(release, noise_std=0.5), 4 * blocks.square().sum(0))
    torch.testing.assert_close(fisher_trace(release, noise_std=0.5).values, 4 * blocks.square().sum((0, 2)))


@given(seed=SEEDS, factor=st.floats(0.01, 100))
def test_information_scales_with_the_inverse_square_of_the_noise(seed, factor):
    release = _linear_release(_matrix(seed, 5, 3))
    once, scaled = fisher_matrix(release, noise_std=1.0), fisher_matrix(release, noise_std=factor)
    torch.testing.assert_close(scaled * factor**2, once)


@given(seed=SEEDS)
def test_information_adds_over_independent_releases(seed):
    first, second = _matrix(seed, 4, 3), _matrix(seed + 1, 2, 3)
    both = ForwardRelease(
        lambda inputs, labels: {"a": first @ inputs[0], "b": second @ inputs[0]},
        torch.zeros(1, 3).double(),
        torch.zeros(1),
    )
    parts = fisher_matrix(_linear_release(first), noise_std=2.0) + fisher_matrix(_linear_release(second), noise_std=0.1)
    torch.testing.assert_close(fisher_matrix(both, noise_std={"a": 2.0, "b": 0.1}), parts)


@given(seed=SEEDS)
def test_order_of_parameters_does_not_matter(seed):
    matrix = _matrix(seed, 6, 3)
    shuffled = matrix[torch.randperm(6, generator=torch.Generator().manual_seed(seed))]
    torch.testing.assert_close(fisher_matrix(_linear_release(shuffled)), fisher_matrix(_linear_release(matrix)))


@given(seed=SEEDS, kept=st.integers(1, 5))
def test_post_processing_never_adds_information(seed, kept):
    """Pruning drops coordinates, projection mixes them; the noise is mixed with them."""
    matrix = _matrix(seed, 6, 3)
    whole = fisher_matrix(_linear_release(matrix), noise_std=0.7)
    mask = torch.ones(6, dtype=torch.float64)
    mask[kept:] = math.inf
    pruned = fisher_matrix(_linear_release(matrix), noise_std={"y": 0.7 * mask})
    projection = torch.linalg.qr(_matrix(seed + 1, 6, kept)).Q.T  # orthonormal rows, so the noise stays 0.7
    projected = fisher_matrix(_linear_release(projection @ matrix), noise_std=0.7)
    for processed in (pruned, projected):
        assert torch.linalg.eigvalsh(whole - processed).min() > -1e-9


@pytest.mark.parametrize("clip", [None, HardClip(0.3), SmoothClip(0.8)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_releases_match_dense_jacobians(named_module, records, clip, reduction):
    _, model = named_module
    release = GradientRelease(model, nn.functional.cross_entropy, *records, reduction=reduction, clip=clip)
    jacobians = single_jacobians(model, *records, clip) / (0.1 * (5 if reduction == "mean" else 1))
    exact = fisher_trace(release, noise_std=0.1)
    torch.testing.assert_close(exact.values, jacobians.square().sum((1, 2)))
    torch.testing.assert_close(fisher_matrix(release, noise_std=0.1, record=2), jacobians[2].T @ jacobians[2])
    joint = torch.cat(list(jacobians), dim=1)
    torch.testing.assert_close(fisher_matrix(release, noise_std=0.1), joint.T @ joint)
    torch.testing.assert_close(jacobian(release, noise_std=0.1, record=3), jacobians[3])


def test_a_loss_over_the_batch_is_the_mean_of_its_records(records):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    whole, mean = (
        fisher_trace(GradientRelease(model, nn.functional.cross_entropy, *records, reduction=reduction)).values
        for reduction in (None, "mean")
    )
    torch.testing.assert_close(whole, mean)


def test_batch_norm_in_training_mode_is_differentiated_through_the_batch(records):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    release = GradientRelease(model, nn.functional.cross_entropy, *records)
    inputs, labels = records

    def flat(candidates):
        return torch.cat([value.flatten() for value in release.forward(candidates, labels).values()])

    step = 1e-6
    change = torch.zeros_like(inputs)
    change[2, 0, 1, 3] = step
    difference = (flat(inputs + change) - flat(inputs - change)) / (2 * step)
    expected = float(difference.square().sum())
    assert float(fisher_diagonal(release)[2, 0, 1, 3]) == pytest.approx(expected, rel=1e-6)


def test_one_layer_alone_leaks_its_share(records):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 3)).double()

    def trace(parameters):
        release = GradientRelease(model, nn.functional.cross_entropy, *records, reduction="sum", parameters=parameters)
        return fisher_trace(release).values

    torch.testing.assert_close(trace(["1"]) + trace(["3"]), trace(None))


def test_the_large_matrix_is_computed_without_the_jacobian(records, monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    release = GradientRelease(model, nn.functional.cross_entropy, *records, reduction="sum", clip=HardClip(0.3))
    expected = fisher_matrix(release, noise_std=0.1)
    monkeypatch.setattr("reconrisk.releases.sensitivity.fisher.LARGEST_JACOBIAN", 1)
    torch.testing.assert_close(fisher_matrix(release, noise_std=0.1), expected)


@pytest.mark.parametrize("target", [1e9, 0.35, 0.2])
@pytest.mark.parametrize("rank", [1, 3, 40])
def test_intervals_cover_the_exact_trace_at_their_rate(rank, target):
    """Spectra from one direction to many, with few probes and with as many as the target asks for."""
    matrix = torch.diag(torch.cat([torch.ones(rank), torch.zeros(40 - rank)])).double()
    release, runs = _linear_release(matrix), 150
    rng = torch.Generator().manual_seed(rank)
    covered, below = 0, 0
    for _ in range(runs):
        trace = fisher_trace(release, relative_error=target, rng=rng)
        low, high = trace.interval(0.95)
        covered += bool(low <= rank <= high)
        below += bool(trace.upper_limit(0.95) < rank)
    slack = 3 * math.sqrt(0.05 * 0.95 * runs)
    assert covered >= 0.95 * runs - slack - 0.02 * runs  # the rate holds up to two percent
    assert below <= 0.05 * runs + slack


def test_a_fixed_number_of_probes_gives_an_interval_that_can_miss():
    """The interval is no wider than it has to be: of 2,000 draws from the law itself, about 5 % are outside."""
    rng = torch.Generator().manual_seed(0)
    squares = torch.randn(16, 2000, 20, generator=rng, dtype=torch.float64).square().sum(2)
    trace = FisherTrace(squares.mean(0), squares.std(0) / 4, probes=16, dimension=1)
    low, high = trace.interval(0.95)
    missed = float(((low > 20) | (high < 20)).double().mean())
    assert 0.03 < missed < 0.07  # 0.05 and four standard deviations


@given(seed=SEEDS, target=st.floats(0.05, 0.3))
def test_the_stated_error_is_reached(seed, target):
    release = _linear_release(_matrix(seed, 8, 6), records=2)
    trace = fisher_trace(release, relative_error=target, rng=torch.Generator().manual_seed(seed))
    assert (trace.standard_errors <= target * trace.values).all()


def test_the_same_call_gives_the_same_number():
    release = _linear_release(_matrix(0, 8, 6))
    assert float(fisher_trace(release, relative_error=0.2)) == float(fisher_trace(release, relative_error=0.2))


def test_records_that_are_not_used_have_no_information():
    release = ForwardRelease(lambda inputs, labels: {"y": inputs[0]}, torch.ones(2, 3), torch.zeros(2))
    assert fisher_trace(release).values.tolist() == [3.0, 0.0]
    assert fisher_trace(release, relative_error=0.5).values[1] == 0


def test_what_does_not_depend_on_the_records_has_no_information():
    release = ForwardRelease(lambda inputs, labels: {"y": torch.ones(2)}, torch.ones(1, 3), torch.zeros(1))
    assert float(fisher_trace(release)) == 0


def test_few_probes_prove_nothing():
    trace = FisherTrace(torch.ones(1), torch.ones(1), probes=8, dimension=1)
    assert trace.upper_limit(0.95).isinf().all()


def test_derivatives_that_do_not_exist_are_refused():
    release = ForwardRelease(
        lambda inputs, labels: {"y": inputs.abs().sqrt().sum(1)}, torch.zeros(1, 3), torch.zeros(1)
    )
    for error in (None, 0.1):
        with pytest.raises(InvalidInput, match="finite derivatives"):
            fisher_trace(release, relative_error=error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_std": 0.0}, r"min\(noise_std\)=0.0 > 0"),
        ({"noise_std": -1.0}, r"min\(noise_std\)=-1.0 > 0"),
        ({"noise_std": math.nan}, "noise_std"),
        ({"noise_std": {"x": 1.0}}, "without a value"),
        ({"relative_error": 0.0}, "relative_error=0.0 > 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        fisher_trace(_linear_release(_matrix(0, 2, 2)), **settings)


def test_bad_records_are_refused():
    with pytest.raises(InvalidInput, match="record=3 < 1"):
        fisher_matrix(_linear_release(_matrix(0, 2, 2)), record=3)
    with pytest.raises(InvalidInput, match="coordinates=9000 <= 8192"):
        fisher_matrix(ForwardRelease(lambda inputs, labels: {"y": inputs}, torch.zeros(9, 1000), torch.zeros(9)))
    with pytest.raises(InvalidInput, match="trace of one record, got 2 records"):
        float(fisher_trace(_linear_release(_matrix(0, 2, 2), records=2)))
    with pytest.raises(InvalidInput, match="inputs"):
        ForwardRelease(lambda inputs, labels: {"y": inputs}, torch.full((1, 2), math.nan), torch.zeros(1))
    with pytest.raises(InvalidInput, match=r"labels\.shape=\(\) to begin with the number of records"):
        ForwardRelease(lambda inputs, labels: {"y": inputs}, torch.ones(1, 2), torch.tensor(0))
    with pytest.raises(InvalidInput, match=r"type\(inputs\)='ndarray' to be a torch\.Tensor"):
        ForwardRelease(lambda inputs, labels: {"y": inputs}, np.ones((1, 2)), torch.zeros(1))
    with pytest.raises(InvalidInput, match=r"clip=1\.0 to be a HardClip or SmoothClip"):
        GradientRelease(nn.Linear(2, 2), nn.functional.cross_entropy, torch.ones(1, 2), torch.tensor([0]), clip=1.0)
    with pytest.raises(InvalidInput, match="rng=0 to be a torch"):
        fisher_trace(_linear_release(_matrix(0, 2, 2)), relative_error=0.1, rng=0)
    with pytest.raises(InvalidInput, match="floating point"):
        ForwardRelease(lambda inputs, labels: {"y": inputs}, torch.ones(1, 2, dtype=torch.int64), torch.zeros(1))
