import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.spectrum import spectral_norm, top_directions
from reconrisk.releases.updates.gradient import GradientRelease


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def linear_release(matrices):
    """y = sum_i A_i x_i, whose Jacobian block for record i is A_i: matrices is (n, p, d)."""
    n, _, d = matrices.shape

    def forward(inputs, labels):
        return {"y": torch.einsum("npd,nd->p", matrices, inputs)}

    return ForwardRelease(forward, torch.ones(n, d, dtype=torch.float64), torch.zeros(n))


@pytest.fixture
def network():
    """A real ReLU network with pooling, two records, and its sum gradient."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        ).double()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def forward(inputs, labels):
        def loss(values):
            outputs = torch.func.functional_call(model, values, (inputs,))
            return nn.functional.cross_entropy(outputs, labels, reduction="sum")

        return torch.func.grad(loss)(parameters)

    inputs = torch.rand(2, 1, 6, 6, dtype=torch.float64, generator=rng(1))
    return ForwardRelease(forward, inputs, torch.tensor([0, 2]))


def dense_blocks(release, noise_std=1.0):
    linear, inputs = release.linearize(), release.inputs
    columns = []
    for index in range(inputs.numel()):
        tangent = torch.zeros(inputs.numel(), dtype=inputs.dtype)
        tangent[index] = 1
        pushed = linear.push(tangent.reshape(inputs.shape))
        columns.append(torch.cat([value.flatten() for value in pushed.values()]))
    jacobian = torch.stack(columns, 1).reshape(-1, len(inputs), inputs[0].numel()) / noise_std
    return [jacobian[:, record] for record in range(len(inputs))]


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 12), p=st.integers(1, 15), count=st.integers(1, 4))
def test_top_directions_are_the_singular_vectors_of_each_block(seed, d, p, count):
    matrices = torch.randn(2, p, d, dtype=torch.float64, generator=rng(seed))
    count = min(count, d)
    found = top_directions(linear_release(matrices), count, tolerance=1e-9, rng=rng(seed + 1))
    for record in range(2):
        _, sizes, right = torch.linalg.svd(matrices[record])
        expected = torch.zeros(d, dtype=torch.float64)
        expected[: len(sizes)] = sizes.square()
        torch.testing.assert_close(found.values[record], expected[:count], rtol=1e-7, atol=1e-9 * float(expected[0]))
        assert abs(float(found.directions[record, 0] @ right[0])) == pytest.approx(1, abs=1e-4)
        gram = found.directions[record] @ found.directions[record].T
        torch.testing.assert_close(gram, torch.eye(count, dtype=torch.float64), atol=1e-10, rtol=0)
        assert found.upper_limit[record] >= expected[0] * (1 - 1e-12)


def test_a_network_agrees_with_its_dense_jacobian_and_with_arpack(network):
    found = top_directions(network, 3, noise_std=0.1, tolerance=1e-9, rng=rng())
    for record, block in enumerate(dense_blocks(network, 0.1)):
        information = (block.T @ block).numpy()
        operator = LinearOperator(information.shape, matvec=lambda v, matrix=information: matrix @ v)
        expected = eigsh(operator, k=3, return_eigenvectors=False)[::-1]
        torch.testing.assert_close(found.values[record], torch.tensor(expected.copy()), rtol=1e-8, atol=0)
        for value, direction in zip(found.values[record], found.directions[record], strict=True):
            change = information @ direction.flatten().numpy() - float(value) * direction.flatten().numpy()
            assert (change**2).sum() ** 0.5 <= 1e-8 * float(found.values[record, 0])
    assert found.directions.shape == (2, 3, 1, 6, 6)


def test_multiple_eigenvalues_are_found_with_their_copies():
    matrix = torch.diag(torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0, 0.0], dtype=torch.float64))
    found = top_directions(linear_release(matrix[None]), 4, tolerance=1e-9, rng=rng())
    torch.testing.assert_close(found.values[0], torch.tensor([9.0, 4, 4, 4]).double())


def test_a_record_that_leaks_nothing_has_zero_and_zero():
    found = spectral_norm(linear_release(torch.zeros(1, 3, 5, dtype=torch.float64)), rng=rng())
    assert float(found.values) == float(found.upper_limit) == 0
    below = top_directions(linear_release(torch.ones(1, 1, 5, dtype=torch.float64)), 2, rng=rng())
    torch.testing.assert_close(below.values[0], torch.tensor([5.0, 0.0]).double(), atol=1e-12, rtol=0)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), noise=st.floats(0.01, 100))
def test_information_falls_with_the_square_of_the_noise(seed, noise):
    release = linear_release(torch.randn(1, 6, 8, dtype=torch.float64, generator=rng(seed)))
    unit, noisy = (spectral_norm(release, noise_std=std, rng=rng(1)) for std in (None, noise))
    torch.testing.assert_close(noisy.values, unit.values / noise**2)
    torch.testing.assert_close(noisy.upper_limit, unit.upper_limit / noise**2)


def test_masking_never_increases_and_permuting_changes_nothing():
    matrix = torch.randn(1, 9, 6, dtype=torch.float64, generator=rng(5))
    order = torch.randperm(9, generator=rng(6))
    whole = top_directions(linear_release(matrix), tolerance=1e-9, rng=rng())
    permuted = top_directions(linear_release(matrix[:, order]), tolerance=1e-9, rng=rng())
    torch.testing.assert_close(permuted.values, whole.values)
    mask = torch.ones(9)
    for dropped in range(9):
        mask[dropped] = math.inf
        masked = top_directions(linear_release(matrix), noise_std={"y": mask}, tolerance=1e-9, rng=rng())
        assert masked.values <= whole.values * (1 + 1e-12)
        whole = masked
    assert float(masked.values) == 0


def test_the_upper_limit_fails_no_more_often_than_it_says():
    """A spectrum as hard as the certificate assumes: one eigenvalue above a dense continuum of others."""
    size, trials = 60, 400
    spectrum = torch.cat([torch.linspace(0, 0.7, size - 1), torch.ones(1)]).double()
    release = linear_release(torch.diag(spectrum.sqrt())[None])
    generator, missed, too_low = rng(0), 0, 0
    for _ in range(trials):
        found = spectral_norm(release, relative_error=0.5, confidence=0.9, rng=generator)
        missed += float(found.upper_limit) < 1
        too_low += float(found.values) < 0.999
        assert float(found.values) <= 1 + 1e-12
    assert too_low > trials / 4  # the estimate itself is optimistic: the limit is needed
    assert missed <= 0.1 * trials + 3 * math.sqrt(0.09 * trials)


def test_one_step_is_the_worst_case_of_its_certificate():
    """A rank one information after one step: theta = s, so the limit holds exactly when s exceeds its quantile."""
    release = linear_release(torch.eye(1, 4, dtype=torch.float64)[None])
    generator, trials = rng(0), 1000
    missed = 0
    for _ in range(trials):
        found = top_directions(release, max_steps=1, confidence=0.8, rng=generator)
        missed += float(found.upper_limit) < 1
    assert abs(missed / trials - 0.2) < 4 * math.sqrt(0.16 / trials)


def test_relative_error_sets_the_distance_between_the_limits(network):
    found = spectral_norm(network, relative_error=0.2, rng=rng())
    assert (found.upper_limit <= found.values[:, 0] / 0.8 * (1 + 1e-12)).all()
    for record, block in enumerate(dense_blocks(network)):
        largest = torch.linalg.matrix_norm(block, 2) ** 2
        assert found.values[record] <= largest * (1 + 1e-12)
        assert largest <= found.upper_limit[record]


def test_without_a_generator_the_same_start_is_drawn_each_time(network):
    assert torch.equal(spectral_norm(network).upper_limit, spectral_norm(network).upper_limit)


def test_a_gradient_release_gives_the_same_record_by_record(network):
    """Records of a sum do not interact, so each has a graph of its own; the general path holds all at once."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    release = GradientRelease(
        model.double(), nn.functional.cross_entropy, network.inputs, network.labels, reduction="sum"
    )
    one, two = (top_directions(each, 2, tolerance=1e-9, rng=rng()) for each in (network, release))
    torch.testing.assert_close(one.values, two.values, rtol=1e-9, atol=0)


def test_chosen_records_only(network):
    both, one = spectral_norm(network, rng=rng()), spectral_norm(network, records=[1], rng=rng())
    assert one.records == (1,)
    torch.testing.assert_close(one.values[0], both.values[1], rtol=0.02, atol=0)  # within the relative error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relative_error": 0.0}, "relative_error=0.0 > 0"),
        ({"relative_error": 1.0}, "relative_error=1.0 < 1"),
        ({"confidence": 1.0}, r"confidence=1.0 in \(0, 1\)"),
        ({"records": [5]}, r"records=\[5\] to be indices from 0 to 0, the records of the release"),
        ({"records": []}, r"records=\[\] to be indices"),
        ({"noise_std": 0.0}, r"min\(noise_std\)=0.0 > 0"),
        ({"rng": 1}, r"rng=1 to be a torch\.Generator"),
    ],
)
def test_arguments_outside_their_domain_are_refused(arguments, message):
    release = linear_release(torch.ones(1, 2, 3, dtype=torch.float64))
    with pytest.raises(InvalidInput, match=message):
        spectral_norm(release, **{"rng": rng(), **arguments})


def test_more_directions_than_the_record_has_are_refused():
    with pytest.raises(InvalidInput, match="count=4 <= 3, the size of a record"):
        top_directions(linear_release(torch.ones(1, 2, 3, dtype=torch.float64)), 4, rng=rng())
