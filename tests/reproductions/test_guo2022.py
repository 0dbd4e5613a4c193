"""The attacks of guo2022's figures on records small enough to check directly."""

import numpy as np
import pytest

from reconrisk.bounds.glm.problem import fit_glm
from reproductions.guo2022.figure2 import REGULARIZATION, Digits
from reproductions.guo2022.figure3 import intercept_attack, label_attack, margins


def _digits(seed=0, n=200, d=6):
    """Two classes apart, of norms so alike within a class that the usual norm tells solutions apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    centres = np.where(np.arange(d) < d // 2, 0.9, 0.1)
    features = np.where(labels[:, None] == 1, centres, 1 - centres) + 0.05 * rng.standard_normal((n, d))
    return Digits(10 * features, labels.astype(float))


def _released(train, intercept):
    penalty = REGULARIZATION * len(train.labels)
    fit = fit_glm(
        features=train.features,
        labels=train.labels,
        family="logistic",
        penalty=penalty,
        intercept=intercept,
        intercept_penalty=penalty,
    )
    return (np.append(fit.coefficients, fit.intercept) if intercept else fit.coefficients)[:, None]


@pytest.mark.parametrize(("attack", "intercept"), [(intercept_attack, True), (label_attack, False)])
def test_without_noise_every_record_is_found(attack, intercept):
    train = _digits()
    attacked = attack(train, _released(train, intercept))
    # The minimiser's rounding of 1e-15 is divided by residuals down to 1e-3.
    assert attacked.squared_errors(train).max() < 1e-18
    for record in (0, 1, 77):
        np.testing.assert_allclose(attacked.estimate(train, record, 0), train.features[record], rtol=1e-8)


@pytest.mark.parametrize(("attack", "intercept"), [(intercept_attack, True), (label_attack, False)])
def test_errors_from_products_are_those_of_the_estimates(attack, intercept):
    train = _digits()
    rng = np.random.default_rng(1)
    theta = _released(train, intercept)
    attacked = attack(train, theta + 1e-3 * rng.standard_normal((len(theta), 3)))
    errors = attacked.squared_errors(train)
    for record, trial in ((0, 0), (1, 2), (50, 1)):
        direct = np.mean((attacked.estimate(train, record, trial) - train.features[record]) ** 2)
        assert errors[record, trial] == pytest.approx(direct, rel=1e-9)


def test_the_intercept_gives_the_record_without_its_label():
    train = _digits()
    released = _released(train, True)
    found = intercept_attack(train, released).estimate(train, 3, 0)
    # The other records' sums do not change with the target's label, nor does what is released: nor may the estimate.
    hidden = Digits(train.features, np.where(np.arange(len(train.labels)) == 3, 1 - train.labels, train.labels))
    np.testing.assert_allclose(intercept_attack(hidden, released).estimate(hidden, 3, 0), found, rtol=1e-8)
    np.testing.assert_allclose(found, train.features[3], rtol=1e-8)


def test_margins_solve_their_equation_on_both_sides_of_the_fold():
    c = np.array([-5.0, -0.3, 1e-9, 0.01, 0.2, 0.2784])
    lower, upper = margins(c)
    for root in (lower, upper):
        np.testing.assert_allclose(root, c * (1 + np.exp(root)), rtol=1e-6, atol=1e-12)
    assert (upper[2:] > 1.27).all()
    assert (lower[2:] < 1.28).all()
    np.testing.assert_array_equal(lower[:2], upper[:2])
    beyond = margins(np.array([3.0]))
    np.testing.assert_allclose(beyond, [[1.2784645], [1.2784645]], atol=1e-3)
