"""Fisher information about every record in a released generalised linear model with Gaussian noise.

For models with one output, :func:`_inverse_traces_of_one_output` computes the trace of the inverse for every record
without a solve for each record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.glm.problem import build_glm_problem, split_coefficients, stack_coefficients
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.releases.fitted_estimators.objective import Family, GlmObjective

Floats = NDArray[np.float64]

_DOUBTFUL = 0.1  # relative rounding error of the denominator above which the closed form is not used


@dataclass(frozen=True, eq=False)
class _Frame:
    """Quantities shared by all records, in the notation of :func:`_inverse_traces_of_one_output`.

    Attributes:
        shift: Vector u.
        kappa: Number kappa.
        square: Squared Frobenius norm of K.
        turned: Vector K^T K W.
        stretched: Squared norm of K W.
        whole: Squared Frobenius norm of the feature columns of H before the projection.
    """

    shift: Floats
    kappa: float
    square: float
    turned: Floats
    stretched: float
    whole: float


def _inverse_traces_of_one_output(
    problem: GlmObjective[Floats], theta: Floats, hessian: Floats, traces: Floats, unit: float
) -> Floats:
    r"""Compute ``tr((J^T J)^{-1})`` for each record and ``noise_std = 1``, rounded down.

    Here J is the derivative of the released coefficients by the record x with d values, H the Hessian of the objective,
    and W the coefficients. r and A are the first and second derivative of the record's training loss by its linear
    predictor. Let h be the column of H that belongs to the intercept and :math:`\kappa = 1/|h|^2`. Let :math:`H_0` be
    the other columns, :math:`u = -\kappa H_0^T h`, and :math:`K = H_0 + h u^T`, the projection of these columns onto
    the complement of h. Without an intercept, K = H, kappa = 0 and u = 0. With g = A W, y = x + u, t = K^T K g and the
    identity matrix I, a record of weight 1 has

    .. math:: J^T J = N^T (K^T K)^{-1} N + \kappa g g^T, \quad N = r I + y g^T, \quad \delta = r + g^T y,

    .. math:: r^2 \mathrm{tr}((J^T J)^{-1}) = |K|^2 + \frac{|Kg|^2 |y|^2 - 2 \delta y^T t - \kappa |t|^2}
              {\delta^2 + \kappa |Kg|^2}.

    ``traces`` are the traces of J^T J, rounded up; ``unit`` is the relative rounding error of a product. The result is
    never below ``d^2 / traces``, a simpler lower bound.
    """
    d, w = problem.features, theta[0, : problem.features]
    with np.errstate(divide="ignore"):
        floor = d * d / traces  # tr(M^-1) tr(M) >= d^2, with equality for d = 1
    if d == 1:
        return np.asarray(floor)
    frame = _frame(problem, hessian, w)
    r, a = problem.residuals(theta)[:, 0], problem.curvatures(problem.design @ theta.T)[:, 0, 0]
    y = problem.design[:, :d] + frame.shift
    delta = r + a * (y @ w)
    lengths = np.linalg.norm(y, axis=1) + 2 * float(np.linalg.norm(frame.shift))
    slip = unit * (a * (1 + np.abs(problem.design @ theta[0]) + 2 * lengths * np.linalg.norm(w)) + np.abs(r))
    numerator = a**2 * frame.stretched * (y**2).sum(axis=1) - 2 * delta * a * (y @ frame.turned)
    numerator -= frame.kappa * a**2 * float(frame.turned @ frame.turned)
    denominator = delta**2 + frame.kappa * a**2 * frame.stretched
    slips = _slips(frame, float(np.linalg.norm(w)), a, delta, lengths, slip, unit)
    with np.errstate(divide="ignore", invalid="ignore"):  # comparisons with NaN are False, which selects the floor
        doubt = slips[1] / denominator
        squares = frame.square + numerator / denominator - 4 * unit * frame.whole
        squares -= (slips[0] + 2 * doubt * np.abs(numerator)) / denominator
        value = squares / ((np.abs(r) + slip) ** 2 * problem.weights**2)
    return np.where((doubt < _DOUBTFUL) & (value > floor), value, floor)


def _frame(problem: GlmObjective[Floats], hessian: Floats, w: Floats) -> _Frame:
    d = problem.features
    kept, kappa, shift = hessian[:, :d], 0.0, np.zeros(d)
    if problem.has_intercept:
        column = hessian[:, d]
        kappa = 1 / float(column @ column)
        shift = -kappa * (kept.T @ column)
        kept = kept + np.outer(column, shift)
    moved = kept @ w
    # The size before projection, because rounding errors are relative to that and not to what the projection leaves.
    whole = float((hessian[:, :d] ** 2).sum())
    return _Frame(shift, kappa, float((kept**2).sum()), kept.T @ moved, float(moved @ moved), whole)


def _slips(
    frame: _Frame, length: float, a: Floats, delta: Floats, lengths: Floats, slip: Floats, unit: float
) -> tuple[Floats, Floats]:
    """Bound the rounding errors of numerator and denominator of the fraction by the sizes of their factors."""
    turned = float(np.linalg.norm(frame.turned))
    reach = a * frame.whole * length  # upper limit on the norm of the terms that cancel in t
    products = a**2 * frame.stretched * lengths**2 + 2 * np.abs(delta) * lengths * reach + frame.kappa * reach**2
    numerator = 4 * unit * products + 2 * slip * lengths * (a * turned + unit * reach)
    denominator = 2 * np.abs(delta) * slip + slip**2 + unit * frame.kappa * reach * a * length
    return numerator, denominator


_EPSILON = float(np.finfo(float).eps)
_CHUNK = 2**24  # numbers held at once, 128 MB


@dataclass(frozen=True, eq=False)
class GlmInformation:
    """Fisher information I about each record in a released model with Gaussian noise on coefficients and intercept.

    The values depend on private records and are private themselves.

    Attributes:
        traces: tr(I) for each record, rounded up.
        inverse_traces: tr(I^-1) for each record, rounded down. None for models with several outputs; invert
            :meth:`matrix` instead.
        coefficients: Coefficients at which the information was computed.
        intercept: Intercept at which the information was computed, or None.
    """

    traces: Floats
    inverse_traces: Floats | None
    coefficients: Floats
    intercept: Floats | None
    _problem: GlmObjective[Floats]
    _theta: Floats
    _inverse: Floats
    _noise_std: float

    def jacobian(self, record: int) -> Floats:
        """Return the derivative of the coefficients by one record.

        Rows are grouped by output, each group with its intercept last.
        """
        problem, index = self._problem, check_whole("record", record, minimum=0)
        if index >= len(problem.design):
            raise invalid_input("record", index, f"< {len(problem.design)}, the number of records")
        return np.asarray(-problem.weights[index] * (self._inverse @ problem.mixed_derivative(self._theta, index)))

    def matrix(self, record: int) -> Floats:
        """Return the information matrix about one record, ``J^T J / noise_std^2`` with J from :meth:`jacobian`."""
        jacobian = self.jacobian(record)
        return np.asarray(jacobian.T @ jacobian / self._noise_std**2)

    def mse_lower_bounds(self) -> Floats:
        """Return lower bounds on the mean squared error of unbiased estimates, one for each record with d values.

        A bound is ``tr(I^-1) / d``, or ``d / tr(I)`` for models with several outputs. It may exceed the error of a
        constant guess.
        """
        if self.inverse_traces is not None:
            return np.asarray(self.inverse_traces / self._problem.features)
        with np.errstate(divide="ignore"):
            return np.asarray(self._problem.features / self.traces)


def glm_information(
    coefficients: ArrayLike,
    *,
    features: ArrayLike,
    labels: ArrayLike,
    family: Family,
    penalty: float,
    noise_std: float,
    intercept: ArrayLike | None = None,
    intercept_penalty: float = 0.0,
    sample_weight: ArrayLike | None = None,
    tolerance: float = 1e-6,
) -> GlmInformation:
    r"""Exact Fisher information about every record in a noisy generalised linear model.

    .. math:: J = \frac{\partial W}{\partial x} = -w H^{-1} \bigl[r \otimes E + \tilde x \otimes (A W)\bigr], \quad
              H = \sum_i w_i A_i \otimes \tilde x_i \tilde x_i^T + \Lambda, \quad I = J^T J / \text{noise}^2

    Here W are the coefficients, x is a record, w its weight, :math:`\tilde x` the record with a 1 for the intercept,
    and E the derivative of :math:`\tilde x` by x. :math:`\Lambda` is the diagonal matrix of the penalties. r and A are
    the first and second derivative of the record's training loss by its linear predictors. Penalties belong to sums of
    training losses, not means: ``penalty = 1 / C`` in scikit-learn.

    Args:
        coefficients: Minimiser of the objective, shape (features,) or (outputs, features).
        features: Training records, shape (records, features).
        labels: One label for each record, see :func:`reconrisk.bounds.glm.problem.fit_glm`.
        family: Training loss: ``squared``, ``logistic``, ``multinomial`` or ``poisson``.
        penalty: Weight :math:`\lambda` of the penalty on the coefficients.
        noise_std: Standard deviation of the noise on each released number.
        intercept: Intercept of the minimiser, or None for a model without one.
        intercept_penalty: Weight :math:`\lambda_0` of the penalty on the intercept.
        sample_weight: Weight of each record; by default 1.
        tolerance: Largest accepted length of the Newton step to the minimum, relative to 1 plus the norm of all
            coefficients.

    Returns:
        The information about each record.

    Raises:
        InvalidInput: If the coefficients are further than ``tolerance`` from the minimum, if the Hessian is singular up
            to rounding, or if an argument is invalid.

    Assumes: ``coefficients`` and ``intercept`` minimise :math:`\sum_i w_i \ell_i + \frac\lambda2|W|^2 +
    \frac{\lambda_0}2|b|^2` as in :func:`reconrisk.bounds.glm.problem.fit_glm`; labels and weights are public; each
    released number, including the intercept, has independent noise of ``noise_std``.
    Guarantee: traces are rounded up. Traces of the inverse are rounded down and never below ``d^2 / tr(I)``.
    Edge cases: a record of weight zero has trace 0 and ``inverse_traces`` inf. A derivative r that may be zero up to
    rounding is replaced by the largest value that rounding allows.
    Reference: Section 7.1, guo2022; `Hannun et al. (2021) <https://arxiv.org/abs/2102.11673>`_.

    >>> records = {"features": [[1.0], [1.0]], "labels": [0, 1]}
    >>> information = glm_information([0.0], **records, family="logistic", penalty=2.0, noise_std=1.0)
    >>> information.traces.round(3).tolist()
    [0.04, 0.04]
    """
    theta = stack_coefficients(coefficients, intercept)
    classes = len(theta) if family == "multinomial" else None  # one row of coefficients for each class
    problem = build_glm_problem(
        features, labels, family, penalty, intercept is not None, intercept_penalty, sample_weight, classes
    )
    if theta.shape != (problem.outputs, problem.design.shape[1]):
        wide = theta.shape[1] - problem.has_intercept
        raise invalid_input(
            "features.shape",
            (len(problem.design), problem.features),
            f"to be (records, {wide}) with labels of {len(theta)} outputs, the shape of coefficients",
            "Pass the features and labels of the fit.",
        )
    noise = check_positive("noise_std", noise_std, "Without noise the information is infinite.")
    hessian = problem.hessian(theta)
    factor = problem.factorise(hessian)
    _check_minimum(theta, problem.newton_step(theta, factor), check_positive("tolerance", tolerance))
    inverse = problem.arrays.solve(factor, np.eye(len(hessian)))
    # Rounding of the Hessian, a sum over all records, and of products with it; times the condition for the inverse.
    unit = 4 * (len(hessian) + np.sqrt(len(problem.design))) * _EPSILON
    condition = float(np.abs(hessian).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max())
    if not unit * condition < 0.1:  # beyond, the error margins below are not valid
        remedy = "Scale the features or raise the penalty."
        raise InvalidInput(f"Expected an invertible Hessian, found condition number {condition:.2g}. {remedy}")
    traces = _traces(problem, theta, inverse, margin=unit * condition)
    inverse_traces = None
    if problem.outputs == 1:
        inverse_traces = noise**2 * _inverse_traces_of_one_output(problem, theta, hessian, traces, unit)
    fit = split_coefficients(theta, problem)
    return GlmInformation(
        traces / noise**2, inverse_traces, fit.coefficients, fit.intercept, problem, theta, inverse, noise
    )


def _check_minimum(theta: Floats, newton_step: Floats, tolerance: float) -> None:
    """Raise InvalidInput if the Newton step is longer than ``tolerance * (1 + |theta|)``."""
    distance = float(np.linalg.norm(newton_step))
    if not distance <= tolerance * (1 + float(np.linalg.norm(theta))):
        raise InvalidInput(
            f"Expected coefficients that minimise the objective up to a relative distance of {tolerance:g}, found a "
            f"distance of {distance:.3g}. Train to a tighter tolerance, polish by Newton's method (polish=True, or "
            "fit_glm(start=...)), or check penalty and weights."
        )


def _traces(problem: GlmObjective[Floats], theta: Floats, inverse: Floats, margin: float) -> Floats:
    r"""Compute ``tr(J^T J)`` for each record and ``noise_std = 1``, rounded up.

    In the notation of :func:`glm_information`, let :math:`e_a` be the unit vector of output a, :math:`f_j` the unit
    vector of feature j, :math:`Y_b = H^{-1}(e_b \otimes \tilde x)` and :math:`T_{ab} = \sum_j \langle H^{-1}(e_a
    \otimes f_j), H^{-1}(e_b \otimes f_j)\rangle`. For a record of weight 1 the trace is :math:`r^T T r + 2 \sum_{abc}
    r_a A_{bc} \langle Y_b, H^{-1}(e_a \otimes W_c)\rangle + \sum_{ab} (A W W^T A)_{ab} \langle Y_a, Y_b\rangle`. T and
    :math:`H^{-1}(e_a \otimes W_c)` are the same for all records.
    """
    d, m, k = problem.features, problem.design.shape[1], problem.outputs
    columns = inverse.reshape(k * m, k, m)
    weights = theta[:, :d]
    common = np.einsum("paj,pbj->ab", columns[:, :, :d], columns[:, :, :d], optimize=True)
    turned = np.einsum("paj,cj->pac", columns[:, :, :d], weights, optimize=True).reshape(k * m, k * k)
    gram = weights @ weights.T
    residuals, curvatures = problem.residuals(theta), problem.curvatures(problem.design @ theta.T)
    sums = np.empty(len(problem.design))
    rows = max(1, _CHUNK // (k * k * m))
    for begin in range(0, len(sums), rows):
        part = slice(begin, begin + rows)
        x, r, a = problem.design[part], residuals[part], curvatures[part]
        reached = np.stack([x @ columns[:, b, :].T for b in range(k)], axis=1)
        cross = (reached.reshape(-1, k * m) @ turned).reshape(-1, k, k, k)
        squares = reached @ reached.transpose(0, 2, 1)
        own = np.einsum("na,ab,nb->n", r, common, r)
        mixed = 2 * np.einsum("na,nbc,nbac->n", r, a, cross, optimize=True)
        moved = np.einsum("nab,nab->n", a @ gram @ a, squares)
        size = np.sqrt((r**2).sum(axis=1) * np.trace(common))
        pulled = np.sqrt(np.einsum("nab,bc,nac->n", a, gram, a, optimize=True) * np.einsum("naa->n", squares))
        # (size + pulled)^2 bounds the sum of the magnitudes of the three terms, to which the margin is relative.
        sums[part] = own + mixed + moved + margin * (size + pulled) ** 2
    return np.asarray(problem.weights**2 * np.maximum(sums, 0.0))
