"""Expressions that meng2025 prints as bounds of guided sampling: heuristics, none of which holds as stated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from reconrisk.core.papers import Reference
from reconrisk.core.validation import check_finite, check_nonnegative, check_positive, check_whole, invalid_input

Form = Literal["theorem", "proof"]


@dataclass(frozen=True)
class PrintedExpression:
    """What a paper's expression comes to, and why it may not be relied on; it is no number, and no guarantee.

    >>> print(PrintedExpression(0.25, "an upper bound", Reference("Theorem 5.1", "meng2025"), "it fails for x^2"))
    0.25 (Theorem 5.1, meng2025, printed as an upper bound; not a guarantee: it fails for x^2)
    """

    value: float
    printed_as: str
    reference: Reference
    caveat: str

    def __str__(self) -> str:
        """The value with its label."""
        return f"{self.value:.4g} ({self.reference}, printed as {self.printed_as}; not a guarantee: {self.caveat})"


def meng2025_smoothness(size: int, noise_variance: float, *, form: Form = "theorem") -> float:
    r"""The constant that the paper calls :math:`L_g`.

    .. math:: \frac{n}{\sqrt{2 \pi}\, \sigma^2} e^{-1/(2 \sigma^2)} \quad \text{(theorem)}, \qquad
        \frac{n}{\sqrt{2 \pi \sigma^2}} e^{-1/(2 \sigma^2)} \quad \text{(proof)}

    Notation: n = ``size`` is the number of values of a record, :math:`\sigma^2` the variance of the release's noise.
    Edge cases: it rises with the noise until a variance of 1/2, in the form of the proof until 1, where the paper says
    that it falls. For small noise it is far below the Lipschitz constant of a density that Lemma A.2 takes it for.
    Reference: Theorem 5.2 and Lemma A.2, meng2025.

    >>> [round(meng2025_smoothness(1, variance), 4) for variance in (0.1, 0.5, 2.0)]
    [0.0269, 0.2935, 0.1553]
    """
    if form not in get_args(Form):
        raise invalid_input("form", form, 'to be "theorem" or "proof"')
    variance = check_positive("noise_variance", noise_variance, "Without noise the expression has no value.")
    below = variance if form == "theorem" else math.sqrt(variance)
    return check_whole("size", size) / (math.sqrt(2 * math.pi) * below) * math.exp(-1 / (2 * variance))


def meng2025_gap_upper_expression(
    size: int, noise_variance: float, jacobian_norm: float, distance_to_mean: float
) -> PrintedExpression:
    r"""What the paper prints as an upper bound of the Jensen gap of the release.

    .. math:: \frac{n}{\sqrt{2 \pi}\, \sigma^2}\, |J| \int |x_0 - \hat x_0|\, p(x_0 \mid x_t)\, dx_0

    ``jacobian_norm`` is that of the release by the record, of which the reconstruction vulnerability is the largest;
    ``distance_to_mean`` is that of :class:`~reproductions.meng2025.jensen_gap.GapAt`.

    Guarantee: none. The gap does not depend on the noise, the expression vanishes for much of it.
    Reference: Theorem 5.1, meng2025.

    >>> meng2025_gap_upper_expression(1, 100.0, 1.0, 0.16).value < 0.04  # the gap of x^2 at a spread of 0.2
    True
    """
    variance = check_positive("noise_variance", noise_variance, "Without noise the expression has no value.")
    sizes = check_nonnegative("jacobian_norm", jacobian_norm) * check_nonnegative("distance_to_mean", distance_to_mean)
    value = check_whole("size", size) / (math.sqrt(2 * math.pi) * variance) * sizes
    caveat = "the gap does not fall with the noise on the release"
    return PrintedExpression(value, "an upper bound of the Jensen gap", Reference("Theorem 5.1", "meng2025"), caveat)


def meng2025_gap_lower_expression(
    size: int,
    noise_variance: float,
    least_eigenvalue: float,
    total_variance: float,
    *,
    convexity: float = 1.0,
    smoothness: float = 1.0,
    form: Form = "theorem",
) -> PrintedExpression:
    r"""What the paper prints as a lower bound of the Jensen gap of the attack loss.

    .. math:: \tfrac{1}{2} (\beta \lambda_{\min}(J^T J) - \alpha L_g) \sum_i \sigma_i^2

    Notation: ``convexity`` is :math:`\beta` and ``smoothness`` :math:`\alpha` of the loss as a function of the release;
    ``total_variance`` is that of :class:`~reproductions.meng2025.jensen_gap.GapAt`.
    Guarantee: none. :math:`L_g` is not the curvature of the release, and the proof loses a factor, the number of
    released values, between its equations 27 and 28.
    Reference: Theorem 5.2, meng2025.

    >>> meng2025_gap_lower_expression(1, 0.01, 4.0, 0.01).value > 1.5 * 0.01**2  # the gap of (x^2 - 3)^2 / 2 at 1
    True
    """
    least = check_nonnegative("least_eigenvalue", least_eigenvalue)
    curvature = check_nonnegative("convexity", convexity) * least
    curvature -= check_nonnegative("smoothness", smoothness) * meng2025_smoothness(size, noise_variance, form=form)
    value = curvature / 2 * check_nonnegative("total_variance", total_variance)
    caveat = "its L_g is not the curvature of the release"
    return PrintedExpression(value, "a lower bound of the Jensen gap", Reference("Theorem 5.2", "meng2025"), caveat)


def meng2025_decrease_expression(
    size: int,
    noise_variance: float,
    step_std: float,
    largest_eigenvalue: float,
    *,
    convexity: float,
    shift: float,
    form: Form = "theorem",
) -> PrintedExpression:
    r"""What the paper prints as the least change of the attack loss in one step of guided sampling.

    .. math:: \tfrac{\beta'}{2} n \sigma_t^2 + \beta' k \sqrt n\, \sigma_t + \tfrac{\beta'}{2} k^2
        - (k + \sqrt n\, \sigma_t) \sqrt{\lambda_{\max}(J J^T)}\, L_g

    Notation: ``convexity`` is :math:`\beta'` of the loss as a function of the record, ``step_std`` is :math:`\sigma_t`,
    ``shift`` the paper's unspecified positive k.
    Guarantee: none. :math:`L_g` is not the size of the loss's gradient, which does not depend on the noise's law.
    Reference: Theorem 5.4, meng2025.

    >>> meng2025_decrease_expression(4, 1.0, 0.5, 1.0, convexity=0.0, shift=1.0).value < 0
    True
    """
    reach = check_positive("shift", shift) + math.sqrt(check_whole("size", size)) * check_nonnegative(
        "step_std", step_std
    )
    slope = math.sqrt(check_nonnegative("largest_eigenvalue", largest_eigenvalue))
    slope *= meng2025_smoothness(size, noise_variance, form=form)
    value = check_finite("convexity", convexity) / 2 * reach**2 - reach * slope
    caveat = "its L_g is not the size of the loss's gradient"
    return PrintedExpression(value, "the least change of the attack loss", Reference("Theorem 5.4", "meng2025"), caveat)
