"""The solution of a regularised generalised linear model as a function of some of its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap
from reconrisk.core.validation import check_nonnegative, check_whole, invalid_input
from reconrisk.releases.fitted_estimators.objective import Arrays, Family, GlmObjective, minimise
from reconrisk.releases.release import Release, check_records


def _cholesky(matrix: Tensor) -> Tensor | None:
    """Return the lower Cholesky factor, or None if the matrix is not positive definite."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return None if int(failed) else factor


TORCH: Arrays[Tensor] = Arrays(
    exp=torch.exp,
    sigmoid=torch.sigmoid,
    softplus=functional.softplus,
    softmax=lambda rows: rows.softmax(1),
    logsumexp=lambda rows: rows.logsumexp(1),
    diagonal=torch.diag_embed,
    zeros=lambda shape, like: like.new_zeros(shape),
    cholesky=_cholesky,
    solve=lambda factor, columns: torch.cholesky_solve(columns, factor),
)
"""The functions of torch with which :class:`GlmObjective` can be differentiated."""


@dataclass(frozen=True, eq=False)
class GlmMap:
    r"""Forward map from records and labels to the exact minimiser on them together with known records.

    .. math:: \arg\min_{W,b} \sum_i \ell(W x_i + b, y_i) + \tfrac12\lambda|W|^2 + \tfrac12\lambda_0|b|^2

    Here W and b are coefficients and intercepts, and :math:`\ell` is the training loss of record :math:`x_i` with label
    :math:`y_i`.

    Attributes:
        known_inputs: Known records, ``(m, *shape)``.
        known_labels: Known labels: numbers (``squared``), 0 and 1 (``logistic``), class indices (``multinomial``),
            counts (``poisson``).
        family: Training loss: half the squared error (``squared``), or the negative log-likelihood with its usual link.
        penalty: Weight :math:`\lambda` of the squared coefficients, relative to the sum over records, not the mean.
        intercept: True to fit an intercept b.
        intercept_penalty: Weight :math:`\lambda_0` of the squared intercept, relative to the sum over records.
        classes: Number of classes; only for ``multinomial``.

    Assumes: a unique minimum.
    Guarantee: solved in double precision up to rounding; the first derivative with respect to the records is exact, by
    the implicit function theorem. Second derivatives by autograd are wrong.
    Edge cases: predictors of a multinomial model without penalty are centred over the classes.

    >>> ridge = GlmMap(torch.tensor([[1.0]]), torch.tensor([1.0]), family="squared", penalty=5.0)
    >>> ridge(torch.tensor([[2.0]]), torch.tensor([2.0]))["weight"]
    tensor([[0.5000]])
    """

    known_inputs: Tensor
    known_labels: Tensor
    family: Family = field(kw_only=True)
    penalty: float = field(kw_only=True)
    intercept: bool = field(default=False, kw_only=True)
    intercept_penalty: float = field(default=0.0, kw_only=True)
    classes: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise invalid_input("family", self.family, f"to be one of {', '.join(get_args(Family))}")
        check_records(self.known_inputs, self.known_labels)
        check_nonnegative("penalty", self.penalty)
        check_nonnegative("intercept_penalty", self.intercept_penalty)
        if self.family == "multinomial":
            check_whole("classes", self.classes, minimum=2, remedy="Pass the number of classes.")
        self._targets(self.known_labels)

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return ``weight`` (outputs, features) and, with an intercept, ``bias`` (outputs,)."""
        check_records(inputs, labels)
        if inputs.shape[1:] != self.known_inputs.shape[1:]:
            raise invalid_input("inputs.shape", tuple(inputs.shape), f"to end in {tuple(self.known_inputs.shape[1:])}")
        design = torch.cat([self._design(self.known_inputs).to(inputs.device), self._design(inputs)])
        targets = self._targets(torch.cat([self.known_labels.to(labels.device), labels])).to(design.device)
        with torch.no_grad():
            fixed = self._objective(design.detach(), targets)
            theta = minimise(fixed, self._start.to(design.device))
            factor = fixed.factorise(fixed.hessian(theta))
        # At the minimiser the gradient is zero, so a Newton step with a constant Hessian leaves the value unchanged
        # and has the derivative of the implicit function theorem, -H^-1 dG/dx.
        solution = (theta - self._objective(design, targets).newton_step(theta, factor)).to(inputs.dtype)
        if not self.intercept:
            return {"weight": solution}
        return {"weight": solution[:, :-1], "bias": solution[:, -1]}

    @cached_property
    def _start(self) -> Tensor:
        """The minimiser on the known records alone, from which all fits start; zeros if it does not exist."""
        with torch.no_grad():
            design, targets = self._design(self.known_inputs), self._targets(self.known_labels)
            zeros = torch.zeros(targets.shape[1], design.shape[1], dtype=torch.float64, device=design.device)
            try:
                return minimise(self._objective(design, targets), zeros)
            except InvalidInput:  # known classes may be separable without the private records
                return zeros

    def _design(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1).double()  # single precision would limit the derivative to a few digits
        return torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1) if self.intercept else rows

    def _targets(self, labels: Tensor) -> Tensor:
        """Return labels as one column per linear predictor, refusing labels outside the family's domain."""
        if self.family == "logistic" and not bool(((labels == 0) | (labels == 1)).all()):
            raise invalid_input(
                "labels", sorted(set(labels.tolist()))[:5], "to be 0 or 1", "Map the two classes to 0 and 1."
            )
        if self.family == "poisson" and bool((labels < 0).any()):
            raise invalid_input(
                "min(labels)", float(labels.min()), ">= 0", "Pass counts as the labels of a Poisson model."
            )
        if self.family != "multinomial":
            return labels.double().reshape(len(labels), -1)
        classes = self.classes or 0
        if labels.is_floating_point() or not bool(((labels >= 0) & (labels < classes)).all()):
            raise invalid_input(
                "labels",
                sorted(set(labels.tolist()))[:5],
                f"to be class indices below {classes}",
                "Map the classes to 0, 1, and so on.",
            )
        return functional.one_hot(labels, classes).double()

    def _objective(self, design: Tensor, targets: Tensor) -> GlmObjective[Tensor]:
        penalties = torch.full((design.shape[1],), self.penalty, dtype=torch.float64, device=design.device)
        if self.intercept:
            penalties[-1] = self.intercept_penalty
        weights = torch.ones(len(design), dtype=torch.float64, device=design.device)
        return GlmObjective(design, targets, weights, penalties, self.family, TORCH, self.intercept)


@dataclass(frozen=True, eq=False)
class GlmRelease(Release):
    """The solution of a regularised generalised linear model on private records together with known ones.

    Without noise, its derivative equals the closed form of :func:`reconrisk.bounds.glm.information.glm_information`,
    which covers all records at once.

    Attributes:
        inputs: Private records, ``(n, *shape)``.
        labels: Private labels, one per record.
        known_inputs: Known records; this and the following attributes are explained in :class:`GlmMap`.
        known_labels: Known labels.
        family: Training loss: ``squared``, ``logistic``, ``multinomial`` or ``poisson``.
        penalty: Weight of the squared coefficients.
        intercept: True to fit an intercept.
        intercept_penalty: Weight of the squared intercept.
        classes: Number of classes; only for ``multinomial``.

    >>> known = {"known_inputs": torch.zeros(1, 2), "known_labels": torch.zeros(1)}
    >>> release = GlmRelease(torch.ones(1, 2), torch.ones(1), **known, family="logistic", penalty=1.0)
    >>> release.linearize().pull({"weight": torch.ones(1, 2)}).shape
    torch.Size([1, 2])
    """

    inputs: Tensor
    labels: Tensor
    known_inputs: Tensor = field(kw_only=True)
    known_labels: Tensor = field(kw_only=True)
    family: Family = field(kw_only=True)
    penalty: float = field(kw_only=True)
    intercept: bool = field(default=False, kw_only=True)
    intercept_penalty: float = field(default=0.0, kw_only=True)
    classes: int | None = field(default=None, kw_only=True)
    _map: GlmMap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_records(self.inputs, self.labels)
        known = GlmMap(
            self.known_inputs,
            self.known_labels,
            family=self.family,
            penalty=self.penalty,
            intercept=self.intercept,
            intercept_penalty=self.intercept_penalty,
            classes=self.classes,
        )
        object.__setattr__(self, "_map", known)

    @property
    def forward(self) -> ForwardMap:
        """The map from private records to the solution; it holds the known records only."""
        return self._map
