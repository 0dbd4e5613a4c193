"""The exact attack on linear models in the form that audits run: from an observation of a fitted estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.attacks.glm import NEEDS, GlmReconstruction, glm
from reconrisk.attacks.invert_training_defended import adds_noise_alone
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import refuse
from reconrisk.releases.estimator_release import EstimatorMap
from reconrisk.releases.observe import DefendedMap

_ROUNDING = 1e-6


@dataclass(frozen=True)
class GlmObserved:
    """The configured attack that :func:`glm_observed` returns."""

    needs: ThreatModel = NEEDS
    name: str = "glm"

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The record behind one fitted estimator; ``rng`` is not used, the attack is deterministic."""
        del rng
        observation.check_covers(self.needs)
        known = _known(observation)
        label = None if observation.labels is None else known.names(observation.labels)[0]
        if label is None and "intercept" not in observation.released and not hasattr(known.estimator, "classes_"):
            remedy = "Without an intercept, coefficients do not tell the length of a record from its label."
            raise refuse("threat", observation.threat, "to know the labels", remedy)
        noise_std = _noise(observation)
        found = glm(
            known.shown(observation.released),
            known.known_inputs,
            known.names(known.known_labels),
            label=label,
            noise_std=noise_std,
            sample_weight=known.known_weights,
            target_weight=known.target_weight,
        )
        record = _likeliest(found, known, observation.data_range).clamp(*observation.data_range)
        estimates = record.view(1, *observation.input_shape).to(torch.get_default_dtype())
        return Reconstruction(estimates, replace(found.account, attack=repr(self), status=_status(found, noise_std)))

    def __repr__(self) -> str:
        """It has no settings."""
        return "glm()"


def glm_observed() -> GlmObserved:
    """Read the one unknown record from the coefficients of a fitted scikit-learn estimator.

    :func:`reconrisk.attacks.glm.glm` with everything from the observation of an
    :class:`reconrisk.releases.estimator_release.EstimatorRelease`: known records, conventions, the noise of a known
    defense, the label if the threat knows it.

    Assumes: as ``glm``.
    Guarantee: as ``glm``; the estimate is clipped to the data range. Of several records that explain a model without
    intercept, one within the range is taken, the nearest to a known record.
    Edge cases: where known noise hides the record the attack has converged, and its estimate stands. Where the solver
    stopped too early to tell, it does not apply. Defenses that do more than add noise of one size are refused.
    Reference: Theorems 1 and 8, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> from reconrisk.core.threat import INFORMED
    >>> from reconrisk.releases.estimator_release import EstimatorRelease
    >>> from reconrisk.releases.observe import observe
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.25], [0.75, 1.0]]).double()
    >>> y = torch.tensor([0.0, 1.0, 1.0, 4.0]).double()
    >>> fitted = Ridge().fit(x.numpy(), y.numpy())
    >>> release = EstimatorRelease(fitted, x[3:], y[3:], known_inputs=x[:3], known_labels=y[:3])
    >>> glm_observed()(observe(release, threat=INFORMED), rng=torch.Generator()).estimates
    tensor([[0.7500, 1.0000]])
    """
    return GlmObserved()


def _known(observation: Observation) -> EstimatorMap:
    forward = observation.forward
    inner = forward.undefended if isinstance(forward, DefendedMap) else forward
    if not isinstance(inner, EstimatorMap):
        remedy = "For others use rr.attacks.glm(model, known_inputs, known_labels)."
        raise refuse("observation", type(inner).__name__, "to be of a fitted estimator of scikit-learn", remedy)
    changed = isinstance(forward, DefendedMap) and not adds_noise_alone(forward.defense, observation.released)
    if isinstance(forward, DefendedMap) and (changed or observation.kept is not None):
        remedy = "Coefficients that are clipped or left out are no minimum any more."
        raise refuse("defense", type(forward.defense).__name__, "to add noise and do nothing else", remedy)
    return inner


def _likeliest(found: GlmReconstruction, known: EstimatorMap, data_range: tuple[float, float]) -> Tensor:
    """Of all records that explain the model alike, one within the range, nearest to a known record."""
    rows = known.scaled(torch.cat([torch.as_tensor(found.record)[None], torch.as_tensor(found.alternatives)]))
    outside = (rows - rows.clamp(*data_range)).square().mean(1).sqrt()
    within = outside <= max(_ROUNDING * (data_range[1] - data_range[0]), float(outside.min()))
    distances = torch.cdist(rows, known.scaled(known.known_inputs)).min(1).values
    return rows[int(distances.masked_fill(~within, torch.inf).argmin())]


def _noise(observation: Observation) -> float | None:
    if observation.noise_std is None:
        return None
    values = torch.cat([value.double().flatten() for value in observation.noise_std.values()])
    if float(values.max()) > float(values.min()) * (1 + 1e-6):
        raise refuse("noise_std", f"{float(values.min()):g} to {float(values.max()):g}", "to be one number for all")
    return float(values[0])


def _status(found: GlmReconstruction, noise_std: float | None) -> Status:
    """As the attack ended; what known noise hides is a finding, not a failure."""
    status = found.status
    if noise_std is None or status.ending is not Ending.NOT_APPLICABLE:
        return status
    return Status(Ending.CONVERGED, status.cause, status.remedy)
