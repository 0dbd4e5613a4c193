r"""How much each record of a data set leaks through one noisy step of DP-SGD: guo2022's dFIL, record by record.

Random directions u of parameters give :math:`E|J^T u|^2 = |J|_F^2` for the Jacobian J of a record's clipped gradient.
Their number is doubled until the record's standard error is small enough; records that are done drop out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
from reconrisk.studies.common.subjects.model_updates import first_outputs, given_labels, training_loss
from reconrisk.studies.leakage.report import SCALED, LeakageReport

_CHUNK = 100
_FIRST = 64  # fewer probes leave the proved upper limit many times above the estimate
_SMALLEST_ERROR = 0.005
_ROUNDING = 64 * float(np.finfo(float).eps)
_ASSUMPTIONS = (
    "the loss of a record depends on that record alone, and its clipped gradient is differentiable there",
    "the step is taken at these weights, with layers as in evaluation",
)
_POISSON = "the record takes part with the sampling probability, independently of the others, and nobody sees whether"


@dataclass(frozen=True, eq=False)
class _Traces:
    """Traces of the information about records: estimates, approximate intervals and proved upper limits."""

    rows: Tensor
    values: Tensor
    low: Tensor
    high: Tensor
    upper: Tensor
    probes: Tensor

    def chosen(self, places: Tensor) -> _Traces:
        return _Traces(*(column[places] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class _Step:
    """One step of DP-SGD, and how well its information is to be known."""

    model: nn.Module
    loss_fn: LossFunction
    clip: Clip
    noise_std: float
    sampling_probability: float
    parameters: Sequence[str] | None
    relative_error: float
    confidence: float
    rng: torch.Generator

    def traces(self, inputs: Tensor, labels: Tensor, rows: Tensor) -> Iterator[_Traces]:
        """Traces for the records at ``rows``, in groups that needed equally many probes."""
        squares = torch.zeros(0, len(rows), dtype=torch.float64)
        while len(rows):
            probes = probe_clipped_gradients(
                self.model,
                self.loss_fn,
                inputs[rows],
                labels[rows],
                clip=self.clip,
                probes=max(_FIRST, len(squares)),
                rng=self.rng,
                parameters=self.parameters,
            )
            squares = torch.cat([squares, probes.squares.double()])
            group, errors = self._group(rows, squares, probes)
            done = ~(errors > self.relative_error * group.values)
            yield group.chosen(done)
            rows, squares = rows[~done], squares[:, ~done]

    def _group(self, rows: Tensor, squares: Tensor, probes: ClippedProbes) -> tuple[_Traces, Tensor]:
        """Everything about records with the same number of probes, and the standard errors of their traces."""
        radial, norms, count = probes.radial.double(), probes.norms.double(), len(squares)
        known = squares.isfinite().all(0) & radial.isfinite() & norms.isfinite()
        squares, radial, norms = (torch.where(known, each, 0.0) for each in (squares, radial, norms))
        factors = subsampled_information((norms / self.noise_std).numpy(), self.sampling_probability)
        scale = self.sampling_probability / self.noise_std**2
        across, along = (scale * torch.from_numpy(factor) for factor in factors)

        def trace(total: Tensor) -> Tensor:
            # the part along the gradient is exact, so the whole is not below it
            return torch.where(known, across * (total - radial).clamp_min(0) + along * radial, math.inf)

        errors = squares.std(0) / math.sqrt(count)
        totals = FisherTrace(torch.maximum(squares.mean(0), radial), errors, count, 1)
        proved = totals.upper_limit(self.confidence)
        low, high = (trace(each) for each in totals.interval(self.confidence))
        used = torch.full_like(rows, count)
        return _Traces(rows, trace(totals.values), low, high, trace(proved), used), across * errors


def leakage(
    model: nn.Module,
    dataset: Dataset,
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
    r"""How much each record leaks through one noisy DP-SGD step at the weights of ``model``.

    .. math:: \mathrm{dFIL}_i = \frac{\mathrm{tr}\,I_i}d, \qquad I_i = \frac q{s^2}
              \bigl[h_\perp J_i^TJ_i + (h_\parallel - h_\perp) J_i^Tuu^TJ_i\bigr], \quad s = \sigma C

    Assumes: Gaussian noise of standard deviation s on the sum of clipped gradients; labels and other records known.
    Notation: ``noise_multiplier`` is sigma, ``clip_norm`` C, ``sampling_probability`` q; h as in
    :func:`reconrisk.accounting.subsampled_fisher.subsampled_information`. ``records`` draws so many at random.
    Without ``loss_fn`` the loss is that of :func:`reconrisk.studies.common.subjects.model_updates.training_loss`.
    ``parameters`` names what is released, as in :class:`reconrisk.releases.updates.gradient.GradientMap`.
    Guarantee: the estimated standard error of each record is at most ``relative_error`` of its dFIL. Bounds on the
    error of unbiased estimates use proved upper limits, each with ``confidence`` by itself.
    Edge cases: a record with a derivative that is not finite leaks without limit, and its bound is 0. Ctrl-C returns
    what is done, a random sample of the records; before anything is done it passes.
    Reference: equations 1 and 5 and Algorithm 1, guo2022. The values are private (its footnote 2).

    >>> data = Dataset("toy", torch.rand(3, 2), torch.zeros(3))
    >>> report = leakage(nn.Linear(2, 1, bias=False), data, noise_multiplier=0.1, clip_norm=10.0,
    ...                  loss_fn=lambda output, label: output.sum(), rng=torch.Generator().manual_seed(0))
    >>> [round(value) for value in report.dfil]  # the gradient is the record, the noise one, so the information is too
    [1, 1, 1]
    """
    check_positive("clip_norm", clip_norm, "Pass the norm used in training.")
    clip = SmoothClip(clip_norm) if smooth_clipping else HardClip(clip_norm)
    overshoot = clip.largest_norm / clip.norm  # a longer gradient is as good as less noise
    mechanism = dp_sgd(
        noise_multiplier=check_positive("noise_multiplier", noise_multiplier, "Without noise nothing is bounded.")
        / overshoot,
        clip_norm=clip_norm * overshoot,
        sampling_probability=sampling_probability,
    )
    loss = _checked_loss(model, dataset, loss_fn, parameters)
    if not _SMALLEST_ERROR <= check_positive("relative_error", relative_error, "0.05 is usual.") < 1:
        remedy = "For exact traces use rr.sensitivity.fisher_trace without relative_error."
        raise invalid_input("relative_error", relative_error, f"in [{_SMALLEST_ERROR}, 1)", remedy)
    if not 0.5 <= check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in [0.5, 1)", "0.95 is usual.")
    step = _Step(
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
        raise invalid_input("records", count, f"<= {len(dataset)}, the number of records", "Leave it out to use all.")
    # in random order, so that what an interrupted run has done is a random sample
    rows = torch.randperm(len(dataset), generator=rng)[:count]
    found = _measured(step, dataset, rows)
    return _report(found, dataset, step, mechanism, requested=len(rows), model_name=model_name)


def _checked_loss(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction | None, parameters: Sequence[str] | None
) -> LossFunction:
    model_state(model, dataset.inputs.dtype, parameters=parameters)
    if loss_fn is None:
        return training_loss(model, dataset)
    given_labels(dataset)
    first_outputs(model, dataset)
    return loss_fn


def _measured(step: _Step, dataset: Dataset, rows: Tensor) -> _Traces:
    """The traces in the order of the records; those that are done, if interrupted."""
    labels, parts = given_labels(dataset), []
    try:
        for chunk in track(rows.split(_CHUNK), f"Leakage, {_CHUNK} records a turn"):
            # a whole chunk or nothing of it: records that are done early are no random sample
            parts.append(list(step.traces(dataset.inputs, labels, chunk)))
    except KeyboardInterrupt:
        if not parts:
            raise
    columns = zip(*(vars(group).values() for part in parts for group in part), strict=True)
    found = _Traces(*(torch.cat(column) for column in columns))
    return found.chosen(found.rows.argsort())


def _report(
    found: _Traces, dataset: Dataset, step: _Step, mechanism: Mechanism, *, requested: int, model_name: str | None
) -> LeakageReport:
    dimension, (low, high) = math.prod(dataset.shape), dataset.data_range
    guess = constant_guess_mse(low=low, high=high)
    units = f"mean squared errors are those of values in [{low:g}, {high:g}]"
    if any(isinstance(column, NumericColumn) for column in dataset.columns or ()):
        units = SCALED
    resolution = torch.finfo(dataset.inputs.dtype).eps
    # derivatives that are not told from zero count as large as they may be: rounding is no infinite safety
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
        labels=_label_words(dataset, found.rows),
        dfil=tuple((found.values / dimension).tolist()),
        low=tuple((found.low / dimension).tolist()),
        high=tuple((found.high / dimension).tolist()),
        mse_lower_bounds=tuple((dimension / upper * (1 - _ROUNDING)).tolist()),
        probes=tuple(found.probes.tolist()),
        relative_error=step.relative_error,
        confidence=step.confidence,
        seed=step.rng.initial_seed(),
        guarantee=_worst_case(float(upper.max()), dimension, guess, mechanism, step),
        constant_guess_mse=guess,
        units=units,
    )


def _worst_case(upper: float, dimension: int, guess: float, mechanism: Mechanism, step: _Step) -> Guarantee:
    guarantee = mse_lower_bound_from_fisher(
        trace=min(upper, sys.float_info.max), dimension=dimension, constant_guess_mse=guess, mechanism=mechanism
    )
    sampling = (_POISSON,) if step.sampling_probability < 1 else ()
    chance = f"the upper limit of the information holds with probability {step.confidence:g} for each record by itself"
    assumptions = (*guarantee.assumptions, *_ASSUMPTIONS, *sampling, chance)
    return replace(guarantee, value=0.0 if math.isinf(upper) else guarantee.value, assumptions=assumptions)


def _label_words(dataset: Dataset, rows: Tensor) -> tuple[str, ...]:
    labels = given_labels(dataset)[rows]
    if dataset.classes is not None:
        return tuple(dataset.classes[label] for label in labels.tolist())
    return tuple(" ".join(f"{number:g}" for number in label) for label in labels.reshape(len(labels), -1).tolist())
