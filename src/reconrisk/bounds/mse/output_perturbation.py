"""Output perturbation of regularised logistic regression: Renyi divergence, Fisher information, error bounds."""

from __future__ import annotations

from dataclasses import replace

from numpy.typing import ArrayLike

from reconrisk.bounds.glm.information import GlmInformation, glm_information
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.numerics.matrices import finite_array
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import output_perturbation
from reconrisk.core.validation import check_positive


def output_perturbation_epsilon(
    noise_std: float, *, records: int, regularization: float, record_norm: float = 1.0
) -> float:
    r"""Renyi divergence of order 2 of output perturbation, under replacement of one record.

    .. math:: \epsilon_2 = \Bigl(\frac{2R}{n \lambda s}\Bigr)^2

    Args:
        noise_std: Standard deviation of the noise on each coefficient (s).
        records: Number of training records (n).
        regularization: Weight of the penalty (:math:`\lambda`).
        record_norm: Largest Euclidean norm of a record, R = sup|x|.

    Returns:
        The divergence :math:`\epsilon_2`.

    Raises:
        InvalidInput: If an argument is not positive.

    Assumes: mean loss of slope at most 1 plus :math:`\frac\lambda2|w|^2`, every coefficient penalised, exact minimiser.
    Reference: Section 7.1, guo2022, where the printed formula lacks the square and R.

    >>> round(output_perturbation_epsilon(0.01, records=12_665, regularization=0.01), 2)
    2.49
    """
    mechanism = output_perturbation(
        noise_std=noise_std, records=records, regularization=regularization, record_norm=record_norm
    )
    # The mechanism states add/remove sensitivity R / (n lambda); replacing a record moves the minimiser twice as far.
    return (2 / mechanism.noise_multiplier) * (2 / mechanism.noise_multiplier)


def mse_lower_bound_from_output_perturbation(
    noise_std: float, *, records: int, regularization: float, record_norm: float = 1.0, diameters: ArrayLike = 1.0
) -> Guarantee:
    """Lower bound on the mean squared error of unbiased estimates from a noisy regularised linear classifier.

    Args:
        noise_std: Standard deviation of the noise on each coefficient.
        records: Number of training records.
        regularization: Weight of the penalty.
        record_norm: Largest Euclidean norm of a record.
        diameters: Width of the range of each value (largest minus smallest); one number for equal widths.

    Returns:
        A guarantee on the mean squared error.

    Raises:
        InvalidInput: If an argument is not positive.

    Assumes: as :func:`output_perturbation_epsilon`; each value lies in a known range of width ``diameters``. Every
    record with values in these ranges has a norm of at most ``record_norm``, or records are scaled to that norm.
    Guarantee: as :func:`reconrisk.bounds.mse.renyi.mse_lower_bound_from_rdp`.
    Reference: Theorem 1 and Section 7.1, guo2022, corrected.

    >>> bound = mse_lower_bound_from_output_perturbation(0.01, records=12_665, regularization=0.01)
    >>> round(bound.value, 4)
    0.0225
    """
    setting = {"records": records, "regularization": regularization, "record_norm": record_norm}
    epsilon = output_perturbation_epsilon(noise_std, **setting)  # type: ignore[arg-type]  # one float, two kinds
    bound = mse_lower_bound_from_rdp(epsilon, diameters=diameters)
    return replace(bound, mechanism=output_perturbation(noise_std=noise_std, **setting))  # type: ignore[arg-type]  # as above


def logistic_information(
    coefficients: ArrayLike, *, features: ArrayLike, labels: ArrayLike, regularization: float, noise_std: float
) -> GlmInformation:
    r"""Exact Fisher information about every record in a noisy logistic regression, in guo2022's convention.

    .. math:: \frac{\partial\theta}{\partial x} = -H^{-1}\bigl[(s-y) E + s(1-s) x \theta^T\bigr], \quad
              H = \sum_i s_i(1-s_i) x_i x_i^T + n\lambda E, \quad I = J^T J / \text{noise}^2

    Here :math:`\theta` are the coefficients, x and y are features and label of a record, s is its predicted probability
    of label 1, n the number of records, E the identity matrix, and :math:`J = \partial\theta/\partial x`.

    :func:`reconrisk.bounds.glm.information.glm_information` also handles other models, intercepts and weights.

    Args:
        coefficients: Minimiser of the objective, one value for each feature.
        features: Training records, shape (records, features).
        labels: Labels 0 or 1, one for each record.
        regularization: Weight :math:`\lambda` of the penalty next to the mean loss.
        noise_std: Standard deviation of the noise on each coefficient.

    Returns:
        The information about each record.

    Raises:
        InvalidInput: If the coefficients are more than 1e-6 (relative) from the minimum, or if an argument is invalid.

    Assumes: ``coefficients`` minimise the mean logistic loss plus :math:`\frac\lambda2|\theta|^2`, without intercept;
    labels are public.
    Guarantee: as :func:`reconrisk.bounds.glm.information.glm_information`.
    Reference: Section 7.1, guo2022; `Hannun et al. (2021) <https://arxiv.org/abs/2102.11673>`_.

    >>> features, labels = [[1.0], [1.0]], [0, 1]
    >>> information = logistic_information([0.0], features=features, labels=labels, regularization=1.0, noise_std=1.0)
    >>> information.traces.round(3).tolist()
    [0.04, 0.04]
    """
    y = finite_array("labels", labels, dimensions=(1,))
    rate = check_positive("regularization", regularization, "Without a penalty the minimiser may not exist.")
    return glm_information(
        finite_array("coefficients", coefficients, dimensions=(1,)),
        features=features,
        labels=y,
        family="logistic",
        penalty=len(y) * rate,  # guo2022 penalises the mean loss, glm_information the sum
        noise_std=noise_std,
    )
