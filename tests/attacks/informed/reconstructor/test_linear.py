import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.informed.reconstructor.features import Scaling, fit_scaling
from reconrisk.attacks.informed.reconstructor.linear import (
    RIDGES,
    ClassMap,
    _fit_class,
    displacements,
    linear_reconstruction,
)


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def directional(count, noise=0.0, seed=1, classes=3, width=12):
    """Models that move from one origin by a size that says nothing, along a direction linear in the record."""
    labels = torch.randint(classes, (count,), generator=drawn(seed))
    targets = torch.rand(count, 5, generator=drawn(seed + 1))
    maps = torch.randn(classes, 6, width, generator=drawn(7))
    with_one = torch.cat([targets, torch.ones(count, 1)], 1)
    moved = torch.einsum("nk,nkp->np", with_one, maps[labels])
    size = torch.exp(torch.randn(count, 1, generator=drawn(seed + 2)))
    error = noise * torch.randn(count, width, generator=drawn(seed + 3))
    return 1.0 + 1e-2 * (size * moved / moved.norm(dim=1, keepdim=True) + error), targets, labels


def test_sizes_that_say_nothing_are_ignored_and_classes_are_told():
    rows, targets, labels = directional(400)
    fit = linear_reconstruction(rows, targets, labels, (0.0, 1.0))
    others, truth, classes = directional(100, seed=20)
    estimates, chosen = fit.linear(others)
    guess = float((targets.mean(0) - truth).square().mean())
    assert fit.linear.by_direction
    assert fit.linear.labels == (0, 1, 2)
    # a unit vector is not quite linear in the record, and the mean model is not quite the origin
    assert float((estimates - truth).square().mean()) < guess / 5
    assert int((chosen == classes).sum()) >= 97


def test_what_is_left_out_is_what_a_fit_without_it_gives():
    rows, targets, _ = directional(30)
    member = _fit_class(displacements(rows.double().mean(0), rows, True), targets, torch.arange(30))
    kernel = (member.members @ member.members.T).double() + member.scale
    centred = targets.double() - member.offset
    for ridge, tolerance in ((RIDGES[1], 1e-3), (RIDGES[4], 1e-6)):  # float32 kernels, divided by the ridge
        closed = member.left_out_residuals(ridge) + targets.double()
        for index in (0, 7, 29):
            rest = [other for other in range(30) if other != index]
            inner = kernel[rest][:, rest] + ridge * member.scale * torch.eye(29, dtype=torch.float64)
            plain = kernel[index, rest] @ torch.linalg.solve(inner, centred[rest]) + member.offset
            assert torch.allclose(closed[index], plain, atol=tolerance)


def test_the_dual_form_is_ridge_regression():
    rows, targets, _ = directional(50)
    member = _fit_class(displacements(rows.double().mean(0), rows, True), targets, torch.arange(50))
    made: ClassMap = member.class_map(0.01)
    features = torch.cat([member.members.double(), torch.full((50, 1), member.scale**0.5, dtype=torch.float64)], 1)
    gram = features.T @ features + 0.01 * member.scale * torch.eye(13, dtype=torch.float64)
    slopes = torch.linalg.solve(gram, features.T @ (targets.double() - member.offset))
    primal = features @ slopes + member.offset
    estimates, _ = made(member.members + member.mean)
    assert torch.allclose(estimates.double(), primal, atol=1e-4)  # float32 kernels


def test_noise_asks_for_a_larger_ridge():
    quiet, loud = (
        linear_reconstruction(*directional(200, noise=noise), (0.0, 1.0)).linear.ridge for noise in (1e-3, 1.0)
    )
    assert loud > quiet


def test_labels_that_are_numbers_are_ignored_and_one_class_is_one_map():
    rows, targets, labels = directional(60)
    assert linear_reconstruction(rows, targets, labels.float(), (0.0, 1.0)).linear.labels is None
    assert linear_reconstruction(rows, targets, torch.zeros_like(labels), (0.0, 1.0)).linear.labels is None


def test_a_model_at_the_origin_has_a_finite_estimate():
    rows, targets, labels = directional(60)
    fit = linear_reconstruction(rows, targets, labels, (0.0, 1.0))
    estimates, _ = fit.linear(fit.linear.origin[None])
    assert bool(estimates.isfinite().all())


def test_scaling_standardises_and_drops_what_does_not_vary():
    rows = torch.randn(50, 4, generator=drawn(0))
    rows[:, 1] = 3.0
    rows[:, 3] = 1 + 1e-7 * rows[:, 3]  # rounding of float32, no information
    fitted = fit_scaling(rows)
    features = fitted(rows)
    assert fitted.kept.tolist() == [0, 2]
    assert torch.allclose(features.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(features.square().mean(0), torch.ones(2), atol=1e-5)
    assert torch.allclose(fitted.rows(features).float(), rows[:, [0, 2]], atol=1e-6)


def test_small_differences_of_large_weights_keep_their_digits():
    # float32 numbers near 100 are multiples of 2^-17; their mean is none, rounded to one it is off by up to 0.03 std
    steps = torch.randint(-30, 31, (1000, 1), generator=drawn(0))
    rows = (100 + steps.double() * 2.0**-17).float()
    expected = (steps.double() - steps.double().mean()) / steps.double().std(unbiased=False)
    assert abs(float(steps.double().mean()) % 1 - 0.5) < 0.49
    assert torch.allclose(fit_scaling(rows)(rows).double(), expected, atol=1e-5)


def test_rows_that_cannot_be_scaled_are_refused():
    with pytest.raises(rr.InvalidInput, match="at least two models"):
        fit_scaling(torch.zeros(1, 3))
    with pytest.raises(rr.InvalidInput, match="depend on their targets"):
        fit_scaling(torch.ones(5, 3))
    with pytest.raises(rr.InvalidInput, match="diverged"):
        fit_scaling(torch.full((5, 3), torch.nan))


def test_scaling_is_what_it_was_fitted_to():
    fitted = Scaling(torch.tensor([1]), torch.tensor([2.0]).double(), torch.tensor([4.0]).double())
    assert fitted(torch.tensor([[9.0, 10.0]])).tolist() == [[2.0]]
    assert fitted.size == 1
