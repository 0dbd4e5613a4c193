r"""Measure the leakage of each record through one noisy step of DP-SGD: the dFIL of guo2022.

Random directions u of parameters give :math:`E|J^T u|^2 = |J|_F^2` for the Jacobian J of a record's clipped gradient.
Their number is doubled until the record's standard error is small enough; finished records drop out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reconrisk.accounting.subsampled_fisher import subsampled_information
from reconrisk.bounds.mse.fisher import mse_lower_bound_from_fisher
from reconrisk.bounds.mse.premises import constant_guess_mse
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import Mechanism, dp_sgd
from reconrisk.core.progress import track
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input
from reconrisk.data.columns import NumericColumn
from reconrisk.data.dataset import Dataset
from reconrisk.releases.model_state import LossFunction, model_state
from reconrisk.releases.sensitivity.fisher import FisherTrace
from reconrisk.releases.updates.clipped_gradient import ClippedProbes, probe_clipped_gradients
from reconrisk.releases.updates.clipping import Clip, HardClip, SmoothClip
from reconrisk.studies.common.subjects.model_updates import first_outputs, require_labels, training_loss
from reconrisk.studies.common.subjects.subject import as_dataset
from reconrisk.studies.leakage.report import SCALED, LeakageReport

_CHUNK = 100  # records probed together; an interrupted run keeps whole chunks
_FIRST = 64  # fewer probes leave the proved upper limit many times above the estimate
_SMALLEST_ERROR = 0.005  # probes grow with its inverse square; exact traces are cheaper below it
_ROUNDING = 64 * float(np.finfo(float).eps)  # lower bounds are reduced by more than the rounding of their computation
_ASSUMPTIONS = (
    "the loss of a record depends on that record alone, and its clipped gradient is differentiable at the record",
    "the step is taken at these weights, with layers in evaluation mode",
)
_POISSON = "each record takes part independently with the sampling probability, and participation is not revealed"


@dataclass(frozen=True, eq=False)
class _InformationTraces:
    """Traces of the Fisher information about records: estimates, approximate intervals and proved upper limits."""

    rows: Tensor
    values: Tensor
    low: Tensor
    high: Tensor
    upper: Tensor
    probes: Tensor

    def select(self, places: Tensor) -> _InformationTraces:
        """Return the traces at the given places, in their order."""
        return _InformationTraces(*(column[places] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class _NoisyStep:
    """One step of DP-SGD, and the required precision of its information."""

    model: nn.Module
    loss_fn: LossFunction
    clip: Clip
    noise_std: float
    sampling_probability: float
    parameters: Sequence[str] | None
    relative_error: float
    confidence: float
    rng: torch.Generator

    def traces(self, inputs: Tensor, labels: Tensor, rows: Tensor) -> Iterator[_InformationTraces]:
        """Yield traces for the records at ``rows``, in groups that needed the same number of probes."""
        squares = torch.zeros(0, len(rows), dtype=torch.float64)
        while len(rows):
            probes = probe_clipped_gradients(
                self.model,
                self.loss_fn,
                inputs[rows],
                labels[rows],
                clip=self.clip,
                probes=max(_FIRST, len(squares)),  # doubles the number of probes
                rng=self.rng,
                parameters=self.parameters,
            )
            squares = torch.cat([squares, probes.squares.double()])
            group, errors = self._summarise_group(rows, squares, probes)
            # negated, so that records with NaN errors count as done instead of being probed for ever
            done = ~(errors > self.relative_error * group.values)
            yield group.select(done)
            rows, squares = rows[~done], squares[:, ~done]

    def _summarise_group(
        self, rows: Tensor, squares: Tensor, probes: ClippedProbes
    ) -> tuple[_InformationTraces, Tensor]:
        """Return traces of records with the same number of probes, and the standard errors of the traces."""
        radial, norms, count = probes.radial.double(), probes.norms.double(), len(squares)
        # records with derivatives that are not finite are computed as zeros, then set to infinite leakage in trace()
        known = squares.isfinite().all(0) & radial.isfinite() & norms.isfinite()
        squares, radial, norms = (torch.where(known, each, 0.0) for each in (squares, radial, norms))
        factors = subsampled_information((norms / self.noise_std).numpy(), self.sampling_probability)
        scale = self.sampling_probability / self.noise_std**2
        across, along = (scale * torch.from_numpy(factor) for factor in factors)

        def trace(total: Tensor) -> Tensor:
            # the part along the gradient is computed exactly, so the total cannot be below it
            return torch.where(known, across * (total - radial).clamp_min(0) + along * radial, math.inf)

        errors = squares.std(0) / math.sqrt(count)
        totals = FisherTrace(torch.maximum(squares.mean(0), radial), errors, count, 1)
        proved = totals.upper_limit(self.confidence)
        low, high = (trace(each) for each in totals.interval(self.confidence))
        used = torch.full_like(rows, count)
        return _InformationTraces(rows, trace(totals.values), low, high, trace(proved), used), across * errors


def leakage(
    model: nn.Module,
    dataset: Any,
    *,
    noise_multiplier: float,
    clip_norm: float,
    sampling_probability: float = 1.0,
    loss_fn: LossFunction | None = None,
    parameters: Sequence[str] | None = None,
    smooth_clipping: bool = False,
    records: int | None = None,
    relative_error: float = 0.05,
    confidence: float = 0.95,
    model_name: str | None = None,
    rng: torch.Generator,
) -> LeakageReport:
    r"""Measure the Fisher information leakage of each record through one noisy DP-SGD step.

    .. math:: \mathrm{dFIL}_i = \frac{\mathrm{tr}\,I_i}d, \qquad I_i = \frac q{s^2}
              \bigl[h_\perp J_i^TJ_i + (h_\parallel - h_\perp) J_i^Tuu^TJ_i\bigr], \quad s = \sigma C

    Here :math:`J_i` is the derivative of the clipped gradient of record i with respect to its d values, and u the
    direction of that gradient. The factors h are those of
    :func:`reconrisk.accounting.subsampled_fisher.subsampled_information`.

    Args:
        model: Model at the weights of the step.
        dataset: Records with labels: a data set, or what ``rr.audit`` accepts as data.
        noise_multiplier: Standard deviation of the noise divided by the clip norm (:math:`\sigma`).
        clip_norm: Clip norm of each record's gradient (:math:`C`).
        sampling_probability: Probability that a record is in the batch of the step (:math:`q`).
        loss_fn: Training loss of a record; None for
            :func:`reconrisk.studies.common.subjects.model_updates.training_loss`.
        parameters: Names of the released parameters, as in
            :class:`reconrisk.releases.updates.gradient.GradientMap`; None for all.
        smooth_clipping: True for differentiable clipping, False for hard clipping.
        records: Number of records to draw at random; None for all.
        relative_error: Largest standard error of a dFIL, relative to its value.
        confidence: Confidence of each record's interval and bound by itself.
        model_name: Name of the model in the report; None for its class.
        rng: Source of random directions and of the order of records.

    Returns:
        The leakage of each record with intervals, and bounds on the error of unbiased estimates.

    Raises:
        InvalidInput: If a number is outside its range, or the data set has no labels.

    Assumes: Gaussian noise of standard deviation s on the sum of clipped gradients; labels and other records known.
    Guarantee: the estimated standard error of each record is at most ``relative_error`` of its dFIL. Bounds on the
    error of unbiased estimates use proved upper limits, each with ``confidence`` by itself.
    Edge cases: a record with a derivative that is not finite has infinite leakage and the bound 0. Ctrl-C returns the
    finished records, a random sample; before the first ones it passes through.
    Reference: equations 1 and 5 and Algorithm 1, guo2022. The values are private (footnote 2 of guo2022).

    >>> data = Dataset("toy", torch.rand(3, 2), torch.zeros(3))
    >>> report = leakage(nn.Linear(2, 1, bias=False), data, noise_multiplier=0.1, clip_norm=10.0,
    ...                  loss_fn=lambda output, label: output.sum(), rng=torch.Generator().manual_seed(0))
    >>> [round(value) for value in report.dfil]  # gradient = record and noise std = 1, so the information is 1
    [1, 1, 1]
    """
    check_positive("clip_norm", clip_norm, "Pass the norm used in training.")
    clip = SmoothClip(clip_norm) if smooth_clipping else HardClip(clip_norm)
    overshoot = clip.largest_norm / clip.norm  # gradients longer than the clip norm are equivalent to less noise
    mechanism = dp_sgd(
        noise_multiplier=check_positive("noise_multiplier", noise_multiplier, "Without noise there is no bound.")
        / overshoot,
        clip_norm=clip_norm * overshoot,
        sampling_probability=sampling_probability,
    )
    dataset = as_dataset(dataset, name="dataset")  # a pair of tensors too, as in audits
    loss = _check_loss(model, dataset, loss_fn, parameters)
    if not _SMALLEST_ERROR <= check_positive("relative_error", relative_error, "Pass 0.05, for instance.") < 1:
        remedy = "For exact traces use rr.sensitivity.fisher_trace without relative_error."
        raise invalid_input("relative_error", relative_error, f"in [{_SMALLEST_ERROR}, 1)", remedy)
    if not 0.5 <= check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in [0.5, 1)", "Pass 0.95, for instance.")
    step = _NoisyStep(
        model,
        loss,
        clip,
        noise_multiplier * clip_norm,
        sampling_probability,
        parameters,
        relative_error,
        confidence,
        rng,
    )
    count = len(dataset) if records is None else check_whole("records", records)
    if count > len(dataset):
        raise invalid_input("records", count, f"<= {len(dataset)}, the number of records", "Omit it to use all.")
    # in random order, so that the finished part of an interrupted run is a random sample
    rows = torch.randperm(len(dataset), generator=rng)[:count]
    found = _measure_traces(step, dataset, rows)
    return _build_report(found, dataset, step, mechanism, requested=len(rows), model_name=model_name)


def _check_loss(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction | None, parameters: Sequence[str] | None
) -> LossFunction:
    model_state(model, dataset.inputs.dtype, parameters=parameters)
    if loss_fn is None:
        return training_loss(model, dataset)
    require_labels(dataset)
    first_outputs(model, dataset)
    return loss_fn


def _measure_traces(step: _NoisyStep, dataset: Dataset, rows: Tensor) -> _InformationTraces:
    """Return the traces in the order of the records; after an interruption those of the finished chunks."""
    labels, parts = require_labels(dataset), []
    try:
        for chunk in track(rows.split(_CHUNK), f"Leakage, {_CHUNK} records a turn"):
            # whole chunks only: within a chunk, records that finish early are not a random sample
            parts.append(list(step.traces(dataset.inputs, labels, chunk)))
    except KeyboardInterrupt:
        if not parts:
            raise
    columns = zip(*(vars(group).values() for part in parts for group in part), strict=True)
    found = _InformationTraces(*(torch.cat(column) for column in columns))
    return found.select(found.rows.argsort())


def _build_report(
    found: _InformationTraces,
    dataset: Dataset,
    step: _NoisyStep,
    mechanism: Mechanism,
    *,
    requested: int,
    model_name: str | None,
) -> LeakageReport:
    dimension, (low, high) = math.prod(dataset.shape), dataset.data_range
    guess = constant_guess_mse(low=low, high=high)
    units = f"mean squared errors are those of values in [{low:g}, {high:g}]"
    if any(isinstance(column, NumericColumn) for column in dataset.columns or ()):
        units = SCALED
    resolution = torch.finfo(dataset.inputs.dtype).eps
    # derivatives below rounding count as large as rounding permits, so that no record seems perfectly safe
    least = dimension * (step.sampling_probability * resolution / step.noise_std) ** 2
    upper = found.upper.clamp_min(least)
    return LeakageReport(
        model=model_name or type(step.model).__name__,
        data=dataset.name,
        loss=getattr(step.loss_fn, "__name__", type(step.loss_fn).__name__),
        mechanism=mechanism,
        clipping="smooth" if isinstance(step.clip, SmoothClip) else "hard",
        parameters=tuple(step.parameters or ()),
        dimension=dimension,
        requested=requested,
        records=tuple(found.rows.tolist()),
        labels=_label_names(dataset, found.rows),
        dfil=tuple((found.values / dimension).tolist()),
        low=tuple((found.low / dimension).tolist()),
        high=tuple((found.high / dimension).tolist()),
        mse_lower_bounds=tuple((dimension / upper * (1 - _ROUNDING)).tolist()),
        probes=tuple(found.probes.tolist()),
        relative_error=step.relative_error,
        confidence=step.confidence,
        seed=step.rng.initial_seed(),
        guarantee=_worst_case_guarantee(float(upper.max()), dimension, guess, mechanism, step),
        constant_guess_mse=guess,
        units=units,
    )


def _worst_case_guarantee(
    upper: float, dimension: int, guess: float, mechanism: Mechanism, step: _NoisyStep
) -> Guarantee:
    guarantee = mse_lower_bound_from_fisher(
        trace=min(upper, sys.float_info.max), dimension=dimension, constant_guess_mse=guess, mechanism=mechanism
    )
    sampling = (_POISSON,) if step.sampling_probability < 1 else ()
    chance = f"each record's upper limit of the information holds with probability {step.confidence:g} by itself"
    assumptions = (*guarantee.assumptions, *_ASSUMPTIONS, *sampling, chance)
    return replace(guarantee, value=0.0 if math.isinf(upper) else guarantee.value, assumptions=assumptions)


def _label_names(dataset: Dataset, rows: Tensor) -> tuple[str, ...]:
    labels = require_labels(dataset)[rows]
    if dataset.classes is not None:
        return tuple(dataset.classes[label] for label in labels.tolist())
    return tuple(" ".join(f"{number:g}" for number in label) for label in labels.reshape(len(labels), -1).tolist())
