"""Output perturbation of regularised logistic regression: Renyi divergence, exact Fisher information, error bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from reconrisk.bounds.matrices import finite_array
from reconrisk.bounds.mean_squared_error_rdp import mse_lower_bound_from_rdp
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import output_perturbation
from reconrisk.core.validation import check_positive, check_whole, refuse

Floats = NDArray[np.float64]

_ROUNDING = 1e-13


def output_perturbation_epsilon(
    noise_std: float, *, records: int, regularization: float, record_norm: float = 1.0
) -> float:
    r"""Renyi divergence of order 2 of output perturbation, under replacement of one record.

    .. math:: \epsilon_2 = \Bigl(\frac{2R}{n \lambda s}\Bigr)^2

    Assumes: mean loss of slope at most 1 plus :math:`\frac\lambda2|w|^2`, every coefficient penalised, exact minimiser.
    Notation: ``noise_std`` s, ``records`` n, ``regularization`` lambda, ``record_norm`` R = sup|x|.
    Reference: Section 7.1, guo2022, which prints it without the square and without R.

    >>> round(output_perturbation_epsilon(0.01, records=12_665, regularization=0.01), 2)
    2.49
    """
    mechanism = output_perturbation(
        noise_std=noise_std, records=records, regularization=regularization, record_norm=record_norm
    )
    return (2 / mechanism.noise_multiplier) * (2 / mechanism.noise_multiplier)


def mse_lower_bound_from_output_perturbation(
    noise_std: float, *, records: int, regularization: float, record_norm: float = 1.0, diameters: ArrayLike = 1.0
) -> Guarantee:
    """Lower bound on the mean squared error of unbiased estimates from a noisy regularised linear classifier.

    Assumes: as :func:`output_perturbation_epsilon`; records in a box with the given ``diameters``, where
    ``record_norm`` must cover the whole box or the records must be scaled to it.
    Guarantee: that of :func:`reconrisk.bounds.mean_squared_error_rdp.mse_lower_bound_from_rdp`.
    Reference: Theorem 1 and Section 7.1, guo2022, corrected.

    >>> bound = mse_lower_bound_from_output_perturbation(0.01, records=12_665, regularization=0.01)
    >>> round(bound.value, 4)
    0.0225
    """
    setting = {"records": records, "regularization": regularization, "record_norm": record_norm}
    epsilon = output_perturbation_epsilon(noise_std, **setting)  # type: ignore[arg-type]  # one float, two kinds
    bound = mse_lower_bound_from_rdp(epsilon, diameters=diameters)
    return replace(bound, mechanism=output_perturbation(noise_std=noise_std, **setting))  # type: ignore[arg-type]  # as above


@dataclass(frozen=True, eq=False)
class LogisticInformation:
    """Fisher information about each record in a released logistic regression with Gaussian noise on its coefficients.

    ``traces`` holds tr(I) and ``inverse_traces`` tr(I^-1), one per record. They depend on private records and are
    private themselves.
    """

    traces: Floats
    inverse_traces: Floats
    _features: Floats
    _residuals: Floats
    _curvatures: Floats
    _coefficients: Floats
    _hessian: Floats
    _noise_std: float

    def matrix(self, record: int) -> Floats:
        """The information matrix about one record: ``J^T J / noise_std^2``."""
        index = check_whole("record", record, minimum=0)
        if index >= len(self._features):
            raise refuse("record", index, f"< {len(self._features)}, the number of records")
        x, a, b = self._features[index], self._residuals[index], self._curvatures[index]
        jacobian = np.linalg.solve(self._hessian, a * np.eye(len(x)) + b * np.outer(x, self._coefficients))
        return np.asarray(jacobian.T @ jacobian / self._noise_std**2)

    def mse_lower_bounds(self) -> Floats:
        """``tr(I^-1) / d`` for each record: lower bounds for unbiased estimates, not capped."""
        return np.asarray(self.inverse_traces / self._features.shape[1])


def logistic_information(
    coefficients: ArrayLike, *, features: ArrayLike, labels: ArrayLike, regularization: float, noise_std: float
) -> LogisticInformation:
    r"""Exact Fisher information about every record in a noisy logistic regression, for all records at once.

    .. math:: \frac{\partial\theta}{\partial x} = -H^{-1}\bigl[(s-y) 1 + s(1-s) x \theta^T\bigr], \quad
              H = \sum_i s_i(1-s_i) x_i x_i^T + n\lambda 1, \quad I = J^T J / \text{noise}^2

    The traces of I and of its inverse follow for all records from H, its inverse, and products with vectors.

    Assumes: ``coefficients`` minimise mean logistic loss plus :math:`\frac\lambda2|\theta|^2`, without intercept;
    labels are public.
    Guarantee: refuses coefficients more than 1e-6 (relative) from the minimum.
    Edge cases: a record whose information is singular has ``inverse_traces`` inf.
    Reference: Section 7.1, guo2022; `Hannun et al. (2021) <https://arxiv.org/abs/2102.11673>`_.

    >>> features, labels = [[1.0], [1.0]], [0, 1]
    >>> information = logistic_information([0.0], features=features, labels=labels, regularization=1.0, noise_std=1.0)
    >>> information.traces.round(3).tolist()
    [0.04, 0.04]
    """
    x = finite_array("features", features, dimensions=(2,))
    theta = finite_array("coefficients", coefficients, dimensions=(1,))
    y = finite_array("labels", labels, dimensions=(1,))
    if x.shape != (len(y), len(theta)):
        raise refuse("features.shape", x.shape, f"to be (records, coefficients) = {(len(y), len(theta))}")
    if not np.isin(y, (0.0, 1.0)).all():
        raise refuse("labels", sorted(set(y.tolist()))[:5], "to be 0 or 1", "Map the two classes to 0 and 1.")
    weight = len(y) * check_positive("regularization", regularization, "The minimiser needs a penalty to be smooth.")
    noise = check_positive("noise_std", noise_std, "Without noise the information is infinite.")
    probability = expit(x @ theta)
    residuals, curvatures = probability - y, probability * (1 - probability)
    hessian = (x.T * curvatures) @ x + weight * np.eye(len(theta))
    factor = cho_factor(hessian)
    _check_minimum(theta, cho_solve(factor, x.T @ residuals + weight * theta))
    inverse = cho_solve(factor, np.eye(len(theta)))
    traces = _traces(x, theta, residuals, curvatures, inverse) / noise**2
    inverse_traces = _inverse_traces(x, theta, residuals, curvatures, hessian) * noise**2
    return LogisticInformation(traces, inverse_traces, x, residuals, curvatures, theta, hessian, noise)


def _check_minimum(theta: Floats, newton_step: Floats) -> None:
    distance = float(np.linalg.norm(newton_step))
    if distance > 1e-6 * (1 + float(np.linalg.norm(theta))):
        raise refuse("coefficients", f"{distance:.3g} from the minimum", "to be the minimiser", "Train to convergence.")


def _traces(x: Floats, theta: Floats, residuals: Floats, curvatures: Floats, inverse: Floats) -> Floats:
    """``|J|^2`` for each record, J = H^-1 (a 1 + b x theta^T), rounded up where terms cancel."""
    reached = x @ inverse
    cross = reached @ (inverse @ theta)
    rank_one = (reached**2).sum(axis=1) * float(theta @ theta)
    terms = np.stack(
        [residuals**2 * float((inverse**2).sum()), 2 * residuals * curvatures * cross, curvatures**2 * rank_one]
    )
    return np.asarray(terms.sum(axis=0) + _ROUNDING * np.abs(terms).sum(axis=0))


def _inverse_traces(x: Floats, theta: Floats, residuals: Floats, curvatures: Floats, hessian: Floats) -> Floats:
    """``|J^-1|^2`` for each record, by Sherman and Morrison, rounded down; inf where J is singular."""
    turned = hessian @ theta
    determinant = residuals + curvatures * (x @ theta)
    regular = (residuals != 0) & (determinant != 0)
    share = np.divide(curvatures, determinant, out=np.zeros_like(determinant), where=regular)
    terms = np.stack(
        [
            np.full_like(share, float((hessian**2).sum())),
            -2 * share * (x @ (hessian @ turned)),
            share**2 * (x**2).sum(axis=1) * float(turned @ turned),
        ]
    )
    squares = np.maximum(terms.sum(axis=0) - _ROUNDING * np.abs(terms).sum(axis=0), 0.0)
    inverse = np.full_like(squares, np.inf)
    return np.asarray(np.divide(squares, residuals**2, out=inverse, where=regular))
