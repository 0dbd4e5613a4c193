"""Which of given records a linear model was fitted to besides the known ones, if any; attributes are such records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reconrisk.attacks.informed.glm.accuracy import leftover_limit
from reconrisk.attacks.informed.glm.arguments import Given, finite_labels, known_features, known_records, precision_of
from reconrisk.attacks.informed.glm.equations import TargetEquations, target_row
from reconrisk.attacks.informed.glm.outcomes import index_of
from reconrisk.core.validation import check_positive, invalid_input

Floats = NDArray[np.float64]

Membership = Literal["in", "not in", "undecided"]

_DECIDED = math.log(100.0)  # odds at which a likelihood ratio counts as an answer
_TOLD = 3.0  # times what a solver may leave: less could be left of the known records alone
_SHARE = 1e-6  # of what known records leave unexplained: a candidate that leaves no more is the record, by no chance
_SETTINGS = ("family", "penalty", "intercept", "intercept_penalty", "loss_fn", "weight_decay", "decay_bias")


@dataclass(frozen=True, eq=False)
class GlmMatch:
    """How well each candidate explains a linear model.

    ``misfits`` are lengths of what remains to be explained: under noise of the way from the released coefficients to
    the minimiser with the candidate, in units of the noise; else of the gradient, in units of what the solver may have
    left over. ``without`` is the same for the known records alone. ``fits`` marks candidates that leave nothing to be
    explained; ``posterior`` the probability of each under noise and equal belief, None without noise. Where nothing
    tells what the solver left over, units are those of rounding, and a candidate fits that leaves next to nothing of
    what known records do not explain; if neither one does nor known records alone explain all, ``excludes`` is False:
    candidates that do not fit may have been trained on all the same.
    """

    misfits: Floats
    without: float
    fits: NDArray[np.bool_]
    posterior: Floats | None
    excludes: bool = True

    @property
    def index(self) -> int:
        """The candidate that fits best."""
        return int(np.argmin(self.misfits))

    @property
    def is_member(self) -> bool:
        """Whether the best candidate explains the model and the known records alone do not; False if undecided."""
        return self.membership(self.index) == "in"

    def membership(self, index: int = 0) -> Membership:
        """Whether a candidate was trained on: in, not in, or undecided where known records alone explain the model."""
        if not bool(self.fits[index]):
            return "not in" if self.excludes else "undecided"
        if self.posterior is None:
            return "in" if self.without > _TOLD else "undecided"
        evidence = (self.without**2 - float(self.misfits[index]) ** 2) / 2  # of the logarithms of two likelihoods
        return "in" if evidence > _DECIDED else "undecided"


def glm_candidates(
    model: Any,
    known_inputs: ArrayLike | Tensor,
    known_labels: ArrayLike | Tensor,
    records: ArrayLike | Tensor,
    labels: ArrayLike,
    *,
    noise_std: float | None = None,
    **conventions: Any,
) -> GlmMatch:
    r"""Compare a fitted linear model with what each candidate would have made of it, without fitting any.

    .. math:: G_c = Z - \rho_c \tilde x_c^T, \qquad |\theta - \theta_c| \approx |H_c^{-1} G_c|

    the gradient of the objective with the candidate at the released coefficients, and one Newton step, which is the
    distance to the candidate's minimiser up to second order. ``conventions`` are those of :func:`glm` for models that
    do not carry their own, and ``sample_weight``, ``target_weight``.

    Assumes: at most one of the candidates was trained on besides the known records.
    Edge cases: a candidate that the model fits exactly cannot be told from none. A model that does not say how near it
    is to its minimum excludes candidates only where another one, or none, explains it far better.
    Reference: the informed membership test of Section II-D, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]], [0.0, 1.0, 1.0, 4.0]
    >>> found = glm_candidates(Ridge().fit(x, y), x[:3], y[:3], [[3.0, 0.0], [3.0, 1.0]], [4.0, 4.0])
    >>> found.fits.tolist(), found.is_member
    ([False, True], True)
    """
    given = _given(model, known_inputs, known_labels, conventions)
    features = given.inputs.shape[1]
    rows = torch.as_tensor(np.asarray(records, dtype=float))
    rows = rows.reshape(len(rows), -1) if rows.ndim > 1 else rows[None]
    if rows.shape[1] != features or not bool(rows.isfinite().all()):
        raise invalid_input("records.shape", tuple(rows.shape), f"to be (candidates, {features}) finite numbers")
    values = np.asarray(labels)
    if len(values) != len(rows):
        raise invalid_input("labels", f"of {len(values)} records", f"to be of {len(rows)}, as records")
    names = list(finite_labels("labels", values))  # as the estimator names them
    systems = {label: given.equations(label) for label in set(names)} if given.depends_on_label else {}
    common = None if systems else given.equations(None)
    pieces = [common or systems[label] for label in names]
    gradients = [_gradient(*each) for each in zip(pieces, rows, names, strict=True)]
    alone = given.alone()
    if noise_std is None:
        misfits = np.array([_leftover(g, system) for g, system in zip(gradients, pieces, strict=True)])
        tells = alone.model.optimisation.gradient_limit is not None
        without = _leftover(alone.moments, alone)
        fits = misfits <= (1.0 if tells else max(1.0, _SHARE * without))
        # known records that explain the model far better, alone or with one candidate, show that it is at its minimum
        shown = bool(fits.any()) or without <= max(1.0, _SHARE * float(misfits.min()))
        return GlmMatch(misfits, without, fits, None, excludes=tells or shown)
    noise = check_positive("noise_std", noise_std)
    steps = {id(system): _NewtonSteps(system) for system in pieces}
    each = zip(gradients, pieces, rows, strict=True)
    misfits = np.array([steps[id(system)].length(g, row) / noise for g, system, row in each])
    without = _NewtonSteps(alone).length(alone.moments, None) / noise
    weights = torch.as_tensor(-0.5 * misfits**2).softmax(0).numpy()
    usual = math.sqrt(alone.theta.numel()) + 3.0  # the length of noise on all coefficients, with room
    return GlmMatch(misfits, without, misfits <= usual, weights)


def glm_attributes(
    model: Any,
    known_inputs: ArrayLike | Tensor,
    known_labels: ArrayLike | Tensor,
    record: ArrayLike,
    label: Any,
    values: ArrayLike,
    *,
    noise_std: float | None = None,
    **conventions: Any,
) -> GlmMatch:
    """Which values of a record's unknown attributes explain a fitted linear model.

    ``record`` has NaN for the features that are not known, ``values`` one row per possibility for these, in their
    order: all combinations that an attribute can take. Where every real number is possible, use ``glm`` with
    ``known_values`` instead.

    Reference: attribute inference as reconstruction with side knowledge, Section II-C, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]], [0.0, 1.0, 1.0, 4.0]
    >>> glm_attributes(Ridge().fit(x, y), x[:3], y[:3], [3.0, float("nan")], 4.0, [[0.0], [1.0]]).index
    1
    """
    inputs, _ = known_records(known_inputs, known_labels)
    known = known_features(record, inputs.shape[1])
    free = known.isnan()
    options = torch.as_tensor(np.asarray(values, dtype=float))
    if options.ndim != 2 or options.shape[1] != int(free.sum()):
        raise invalid_input(
            "values.shape", tuple(options.shape), f"to be (possibilities, {int(free.sum())} unknown features)"
        )
    records = known.repeat(len(options), 1)
    records[:, free] = options
    labels = np.full(len(options), label) if np.ndim(label) == 0 else np.tile(label, (len(options), 1))
    return glm_candidates(model, known_inputs, known_labels, records, labels, noise_std=noise_std, **conventions)


def _given(model: Any, known_inputs: Any, known_labels: Any, conventions: dict[str, Any]) -> Given:
    inputs, labels = known_records(known_inputs, known_labels)
    unknown = [key for key in conventions if key not in (*_SETTINGS, "sample_weight", "target_weight")]
    if unknown:
        raise invalid_input(unknown[0], conventions[unknown[0]], f"to be one of {', '.join(_SETTINGS)}")
    settings = {key: conventions.get(key) for key in _SETTINGS}
    weights = conventions.get("sample_weight"), conventions.get("target_weight", 1.0)
    return Given(model, inputs, labels, settings, *weights, precision_of(known_inputs))


def _gradient(system: TargetEquations, row: Tensor, label: Any) -> Tensor:
    """The gradient of the objective with a candidate at the released coefficients."""
    pulls = system.target_weight * (target_row(system.model, index_of(system.model, label)) - system.means(row))
    return system.moments - pulls[:, None] * system.known_columns(row)


def _leftover(gradient: Tensor, system: TargetEquations) -> float:
    """A gradient in units of what the solver may leave: in the scales of features, or by its rule's largest entry."""
    scaled = float((gradient / system.scales).square().mean().sqrt()) / leftover_limit(system)
    limit = system.model.optimisation.gradient_limit
    return min(scaled, float(gradient.abs().max()) / limit) if limit else scaled


class _NewtonSteps:
    """Lengths of Newton steps at the released coefficients, from one factor of the known records' Hessian."""

    def __init__(self, equations: TargetEquations) -> None:
        self._equations = equations
        objective = equations.objective
        self._factor = objective.factorise(objective.hessian(equations.theta))

    def length(self, gradient: Tensor, record: Tensor | None) -> float:
        """The length of the step for a gradient, with a candidate's curvature added to the Hessian (Woodbury)."""
        system, step = self._equations, torch.cholesky_solve(gradient.reshape(-1, 1), self._factor)
        if record is not None:
            # side side^T is the Hessian of the candidate's own loss
            values, vectors = torch.linalg.eigh(system.curvature(record))
            root = vectors * values.clamp_min(0.0).sqrt() * math.sqrt(system.target_weight)
            side = torch.kron(root.contiguous(), system.known_columns(record)[:, None].contiguous())
            turned = torch.cholesky_solve(side, self._factor)
            inner = torch.eye(side.shape[1], dtype=side.dtype) + side.T @ turned
            step = step - turned @ torch.linalg.solve(inner, side.T @ step)
        return float(step.norm())
