"""Reconstruct a training record from a fitted linear model, knowing every other training record."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reconrisk.attacks.informed.glm.arguments import PENALTIES, LinearObjective
from reconrisk.attacks.informed.glm.attack import NEEDS, GlmReconstruction, glm
from reconrisk.attacks.informed.glm.candidates import glm_candidates
from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import AttackReport
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_nonnegative, check_positive, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.releases.fitted_estimators.estimators import (
    LinearModel,
    broadcast_sample_weight,
    is_estimator,
    read_estimator,
)
from reconrisk.releases.fitted_estimators.objective import Family
from reconrisk.releases.float_safe_noise import add_noise
from reconrisk.studies.informed.result import AttackDescription, Finding, RebuiltInformed, informed_result
from reconrisk.studies.informed.split import InformedSplit, informed_split, linear_bound

Floats = NDArray[np.float64]
Kind = Literal["logistic", "ridge", "linear", "poisson"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Linear models by name, which scikit-learn fits."""

_TOLERANCE = 1e-12  # the attack is as exact as the fit, so solvers run close to the precision of float64
_SECOND_ORDER = 2000  # number of coefficients up to which Newton's method with a full Hessian is fastest


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of a released linear model.

    Attributes:
        kind: ``logistic``, ``ridge``, ``linear`` or ``poisson``.
        weight: Weights of shape (outputs, features) or (features,).
        intercept: Intercepts, one per output; None without them.

    >>> Coefficients("ridge", np.zeros(3)).intercept is None
    True
    """

    kind: Kind
    weight: NDArray[Any]
    intercept: NDArray[Any] | None = None


def rebuild_informed_linear(
    model: Kind | Coefficients | Any,
    dataset: Dataset,
    targets: Sequence[int],
    *,
    regularization: float | None = None,
    fixed: int | None = None,
    known_labels: bool = False,
    known_columns: Sequence[str] = (),
    sample_weight: ArrayLike | None = None,
    noise_std: float | None = None,
    membership: bool = False,
    model_name: str | None = None,
    rng: torch.Generator,
) -> RebuiltInformed:
    r"""Reconstruct target records from fitted linear models, knowing all other records.

    .. math:: \theta = \arg\min_\theta \sum_{i \in D_- \cup \{z\}} \ell(\theta; x_i, y_i) + \tfrac12\lambda|\theta|^2 +
        N(0, \sigma^2), \qquad (\theta, D_-) \to z

    Here :math:`\theta` are the released coefficients, :math:`D_-` the known records, z the target, :math:`\ell` the
    training loss and :math:`\sigma` the standard deviation of the noise. A model by name, or an estimator that is not
    fitted, is fitted for each target to the fixed records and that target. A fitted estimator or :class:`Coefficients`
    is one released model of the fixed records and all targets. Each target is then attacked by an adversary who knows
    the others.

    Args:
        model: ``logistic``, ``ridge``, ``linear`` or ``poisson``; a scikit-learn estimator; or :class:`Coefficients`.
        dataset: Records with labels.
        targets: Indices of the records to reconstruct.
        regularization: Penalty :math:`\lambda`: 1 / C of logistic, alpha of ridge, or alpha of poisson times the number
            of records, since its loss is a mean. By default 1; required for coefficients, not accepted for an
            estimator.
        fixed: Number of known training records: the first ones that are not targets. By default all of them.
        known_labels: True if the adversary knows the labels of the targets.
        known_columns: Columns of the target that the adversary knows. Only the other columns are then scored
            (attribute inference).
        sample_weight: Weight in the fit of each record of the data set, known to the adversary; by default 1.
        noise_std: Standard deviation of noise on every coefficient, known to the adversary. The noise is drawn here
            unless the model is released. By default none.
        membership: True to decide for each target if it was trained on.
        model_name: Name of the model in the report; None for its kind.
        rng: Source of the noise.

    Returns:
        The report, the estimates, the targets and their nearest known records.

    Raises:
        InvalidInput: If the model, its labels, its regularization or the columns do not fit together.

    Guarantee: the attack sees models, known records and the stated knowledge; targets are used for scores only. The
    tolerance of the solver limits the accuracy, and the status reports this limit.
    Edge cases: an estimator that is not fitted is fitted with its own settings, which may leave it far from the
    minimum. Ctrl-C returns the finished targets.
    Reference: Theorems 1 and 8, balle2022.

    >>> data = Dataset("toy", torch.rand(9, 3, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2)
    >>> found = rebuild_informed_linear("logistic", data, [4, 7], rng=torch.Generator().manual_seed(0))
    >>> max(target.mse for target in found.report.targets) < 1e-12, [target.found for target in found.report.targets]
    (True, ['0', '1'])
    """
    released = isinstance(model, Coefficients) or hasattr(model, "coef_")
    split = informed_split(dataset, targets, fixed=fixed, together=released)
    noise = None if noise_std is None else check_positive("noise_std", noise_std)
    weights = None if sample_weight is None else broadcast_sample_weight(sample_weight, len(dataset))
    columns = _known_features(dataset, known_columns)
    run = _LinearRun(model, split, regularization, known_labels, columns, weights, noise, membership, rng)
    run.check()
    findings, accounts = run.attack_targets(released)
    return informed_result(
        split,
        findings,
        accounts,
        description=run.describe(model_name, known_columns, released=released),
        threat=run.threat,
        membership=membership,
        sought=~run.known if known_columns else None,
        seed=rng.initial_seed(),
    )


@dataclass(frozen=True, eq=False)
class _LinearRun:
    """Attack on linear models of one kind."""

    model: Any
    split: InformedSplit
    regularization: float | None
    known_labels: bool
    known: Tensor
    weights: Floats | None
    noise_std: float | None
    membership: bool
    rng: torch.Generator

    def check(self) -> None:
        """Raise if model, labels and regularization do not fit together."""
        if isinstance(self.model, str) and self.model not in KINDS:
            raise invalid_input("model", self.model, f"to be one of {', '.join(KINDS)}")
        kind = self.model.kind if isinstance(self.model, Coefficients) else self.model
        if not isinstance(kind, str):
            if not is_estimator(kind):
                raise invalid_input(
                    "type(model)", type(kind).__name__, f"to be an estimator, Coefficients or {', '.join(KINDS)}"
                )
            if self.regularization is not None:
                raise invalid_input(
                    "regularization", self.regularization, "to be left out for an estimator, which has its own"
                )
            return
        if kind == "linear" and self.regularization:
            raise invalid_input(
                "regularization", self.regularization, "to be 0 for model='linear'", "Use model='ridge'."
            )
        if isinstance(self.model, Coefficients) and kind != "linear" and self.regularization is None:
            raise invalid_input("regularization", None, "to be a number for released coefficients", PENALTIES)
        if kind == "logistic" and self._labels.dtype.kind == "f":
            raise invalid_input(
                "labels.dtype",
                str(self._labels.dtype),
                "to be a type of classes (whole numbers or text) for logistic",
                "Use ridge, linear or poisson.",
            )
        if kind == "poisson" and float(self._labels.min()) < 0:
            raise invalid_input("min(labels)", float(self._labels.min()), ">= 0 for poisson, a model of counts")

    @property
    def threat(self) -> ThreatModel:
        """Threat model of the informed adversary, with the stated knowledge."""
        more = {Knows.LABELS: self.known_labels, Knows.DEFENSE: self.noise_std is not None}
        return NEEDS.with_knowledge(*(item for item, known in more.items() if known))

    def describe(self, name: str | None, columns: Sequence[str], *, released: bool) -> AttackDescription:
        """Return the texts of the report."""
        noise = "none" if self.noise_std is None else f"{self.noise_std:g} on every coefficient, known"
        own = "one released model" if released else "fitted in float64 for each target"
        training = repr(self.model).replace("\n", " ")
        model = str(
            getattr(self.model, "kind", self.model if isinstance(self.model, str) else type(self.model).__name__)
        )
        if isinstance(self.model, (str, Coefficients)):
            training = f"to the minimum with regularization {self._penalty:g}{', as stated' if released else ''}"
        attributes = f", {', '.join(columns)} known" if columns else ""
        return AttackDescription(f"glm{attributes}", name or model, training, noise, own)

    def attack_targets(self, released: bool) -> tuple[list[Finding], list[AttackReport]]:
        """Attack one target after the other; after an interruption return the finished ones."""
        findings: list[Finding] = []
        accounts: list[AttackReport] = []
        try:
            for place in track(range(len(self.split.targets)), "targets"):
                model = self.model if released else self._fit_model(place)
                found, finding = self._attack_target(model, place)
                findings.append(finding)
                accounts.append(found.account)
        except KeyboardInterrupt:
            if not findings:
                raise
        return findings, accounts

    def _attack_target(self, model: Any, place: int) -> tuple[GlmReconstruction, Finding]:
        rows, row = self.split.known_rows(place).numpy(), self.split.targets[place]
        inputs, labels = self._inputs[rows], self._labels[rows]
        subject, stated = model, dict[str, Any]()
        if isinstance(model, Coefficients):  # unlike an estimator, they do not carry family and penalty
            subject = model.weight
            objective = LinearObjective(self._family(model), self._penalty)
            stated = {"intercept": model.intercept, "objective": objective}
        if self.weights is not None:
            stated |= {"sample_weight": self.weights[rows], "target_weight": float(self.weights[row])}
        own = self._labels[row] if self.known_labels else None
        side = np.where(self.known.numpy(), self._inputs[row], np.nan) if bool(self.known.any()) else None
        found = glm(subject, inputs, labels, label=own, known_values=side, noise_std=self.noise_std, **stated)
        member = None
        if self.membership:
            record = self._inputs[row][None], self._labels[row][None]
            match = glm_candidates(subject, inputs, labels, *record, noise_std=self.noise_std, **stated)
            member = match.membership()
        finding = Finding(
            estimate=torch.as_tensor(found.record),
            label=None if self.known_labels or np.ndim(found.label) else float(found.label),
            objective=found.account.objective[0],
            account=place,
            cramer_rao_mse=self._bound(model, place),
            membership=member,
        )
        return found, finding

    def _bound(self, model: Any, place: int) -> float | None:
        """Return the Cramer-Rao bound for the target under known noise; None without noise."""
        if self.noise_std is None:
            return None
        rows = torch.cat([self.split.known_rows(place), torch.tensor([self.split.targets[place]])]).numpy()
        inputs, labels, ones = torch.as_tensor(self._inputs[rows]), self._labels[rows], self._weights(rows)
        if isinstance(model, Coefficients):
            weight = np.atleast_2d(model.weight)
            linear = LinearModel(weight, model.intercept, self._family(model), labels, ones, self._penalty)
        else:
            linear = read_estimator(model, labels, ones)
        sought = ~self.known if bool(self.known.any()) else None
        return linear_bound(linear, inputs[:-1], inputs[-1], noise_std=self.noise_std, sought=sought)

    def _family(self, model: Coefficients) -> Family:
        if model.kind == "logistic":
            return "logistic" if len(np.atleast_2d(model.weight)) == 1 else "multinomial"
        return "poisson" if model.kind == "poisson" else "squared"

    @property
    def _penalty(self) -> float:
        if self.regularization is not None:
            return check_nonnegative("regularization", self.regularization)
        return 0.0 if "linear" in (self.model, getattr(self.model, "kind", "")) else 1.0

    def _fit_model(self, place: int) -> Any:
        """Fit an estimator to the known records and the target, and add noise to its coefficients."""
        from sklearn.base import clone
        from sklearn.exceptions import ConvergenceWarning

        rows = torch.cat([self.split.known_rows(place), torch.tensor([self.split.targets[place]])]).numpy()
        blank = (
            self._blank_estimator(float(self._weights(rows).sum()))
            if isinstance(self.model, str)
            else clone(self.model)
        )
        with warnings.catch_warnings():
            # the status of the attack reports the accuracy of the fit
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                fitted = blank.fit(self._inputs[rows], self._labels[rows], sample_weight=self._weights(rows))
            except ValueError as error:
                raise InvalidInput(f"Expected records that {type(blank).__name__} can be fitted to. {error}") from error
        if self.noise_std is not None:
            fitted = copy.deepcopy(fitted)
            for name in ("coef_", "intercept_"):
                value = torch.as_tensor(getattr(fitted, name), dtype=torch.float64)
                noisy = add_noise(value, self.noise_std, self.rng).numpy()
                setattr(fitted, name, noisy if value.ndim else float(noisy))
        return fitted

    def _blank_estimator(self, records: float) -> Any:
        """Return an estimator of the named kind, not fitted; ``records`` is the sum of the sample weights."""
        from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge  # slow to import

        penalty = self._penalty
        if self.model == "linear":
            return LinearRegression()
        if self.model == "ridge":
            return Ridge(alpha=penalty)
        if self.model == "poisson":
            precise: dict[str, Any] = {"solver": "newton-cholesky", "tol": _TOLERANCE, "max_iter": 1000}
            # scikit-learn averages the Poisson loss over records, the attack sums it
            return PoissonRegressor(alpha=penalty / records, **precise)
        classes = len(np.unique(self._labels))
        small = self._inputs.shape[1] * (1 if classes == 2 else classes) <= _SECOND_ORDER
        solver = "newton-cholesky" if small else "lbfgs"
        return LogisticRegression(C=1 / penalty if penalty else np.inf, solver=solver, tol=_TOLERANCE, max_iter=10_000)

    def _weights(self, rows: NDArray[Any]) -> Floats:
        return np.ones(len(rows)) if self.weights is None else self.weights[rows]

    @cached_property
    def _inputs(self) -> Floats:
        values: Floats = self.split.dataset.inputs.flatten(1).double().numpy()
        return values

    @cached_property
    def _labels(self) -> NDArray[Any]:
        labels = self.split.dataset.labels
        values = np.empty(0) if labels is None else labels.numpy()
        return values.astype(float) if values.dtype.kind == "f" else values


def _known_features(dataset: Dataset, columns: Sequence[str]) -> Tensor:
    """Return a mask of the features of the named columns."""
    known = torch.zeros(dataset.inputs[0].numel(), dtype=torch.bool)
    if not columns:
        return known
    if dataset.columns is None:
        raise invalid_input("known_columns", list(columns), "to be left out for records that are not a table")
    named = {column.name: column for column in dataset.columns}
    for name in columns:
        if name not in named:
            raise invalid_input("known_columns", name, f"to be one of {', '.join(named)}")
        known[named[name].coordinates] = True
    if bool(known.all()):
        raise invalid_input("known_columns", list(columns), "to leave at least one column unknown")
    return known
