"""Accountant of the Fisher information of a DP-SGD run about each of its records."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reconrisk.accounting.subsampled_fisher import guo2022_factor, subsampled_information
from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import ProgressBar
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input
from reconrisk.integrations.fisher_accountant.account import FisherAccount, TrainingPhase
from reconrisk.integrations.fisher_accountant.checks import (
    AccountingCost,
    check_accuracy,
    check_indices,
    check_model,
    check_subsampling,
    check_training_mode,
    clip_by_name,
    detect_reduction,
    measure_cost,
    pick_few_records,
)
from reconrisk.integrations.fisher_accountant.ledger import InformationLedger
from reconrisk.integrations.fisher_accountant.state import (
    AccountSettings,
    merge_state,
    read_state,
    split_state,
    write_state,
)
from reconrisk.integrations.fisher_accountant.summary import LeakageSummary
from reconrisk.integrations.opacus import step as opacus
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import check_records, directions_rng
from reconrisk.releases.updates.clipped_gradient import probe_clipped_gradients
from reconrisk.releases.updates.clipping import HardClip

_PILOT_PROBES = 32  # the variance of 32 normal samples has a relative error of 1/4, their spread of 1/8
_PILOT_RECORDS = 50  # at most, for the quantile over records
_COVERED = 0.95  # share of records for which relative_error is to hold
_CYCLES = 3  # evaluations of each record within 1/q steps; fewer give no standard error (ledger.py)


class FisherAccountant:
    r"""Accountant of the information that DP-SGD updates release about each tracked record, kept during training.

    .. math:: \mathrm{tr}\,I(z) = \sum_t \frac q{(\sigma C)^2}
              \bigl[h_\perp |J_c|_F^2 + (h_\parallel - h_\perp)|J_c^Tu|^2\bigr]

    Here :math:`J_c` is the Jacobian of the clipped gradient of record z with respect to z, at the parameters before
    step t, and u the direction of that gradient. q is the sampling probability, :math:`\sigma` the noise multiplier and
    C the clip norm. The factors h are those of :func:`subsampled_information`.
    The information is an expectation over the sampled batch, so the membership of the record in the actual batch is
    irrelevant: records are evaluated in a random order of their own (:class:`InformationLedger`). Evaluating the batch,
    as guo2022 does, leaves records that were never drawn with zero information and an infinite bound. Records chosen by
    ``records`` are evaluated at every step. Otherwise each step evaluates only some of the records. Standard errors
    include the variance of the random directions and of the choice of steps.

    In a plain loop call :meth:`step` before each update; with Opacus, ``accountant.attach(optimizer, data_loader)``.

    Args:
        model: Model that is trained, wrapped by Opacus or not.
        inputs: Training records.
        labels: Their labels.
        loss_fn: Loss of the training.
        relative_error: Target of the relative standard error due to probes, for 95 % of the records after three
            evaluations of each. A trial evaluation chooses the number of probes, to about an eighth; later cycles use
            fewer, never below 2. Default 0.1 without ``probes``.
        probes: Number of random directions per evaluation, instead of ``relative_error``.
        records: Indices of the tracked records; None for all.
        records_per_step: Records to evaluate at each step. By default each record is evaluated three times in 1/q
            steps.
        subsampling: Factor for amplification by sampling: ``"exact"``, ``"none"``, or ``"guo2022"``, which is not a
            bound.
        delta: Delta of ``subsampling="guo2022"``; None for the others.
        clip: ``"hard"`` or ``"smooth"`` clipping.
        rng: Source of random directions and of the order of records; None for a fixed seed.

    Assumes: Poisson sampling (shuffled epochs: no amplification); the loss of a record is a function of that record
    alone.
    Guarantee: the estimates are unbiased at any time; random numbers, gradients and parameters of the training are not
    touched; a resumed account equals an uninterrupted one.
    Edge cases: an evaluation that is not finite makes the information of the record infinite and its bound 0. A model,
    loss and labels that do not fit each other are refused at once.
    Reference: Algorithm 1, guo2022, with the exact subsampling factors of :func:`subsampled_information`.

    >>> model = nn.Linear(3, 2)
    >>> accountant = FisherAccountant(model, torch.ones(4, 3), torch.tensor([0, 1, 0, 1]), probes=2, records=[0, 3])
    >>> for _ in range(5):
    ...     accountant.step(noise_multiplier=1.0, clip_norm=1.0, sampling_probability=0.5)
    >>> accountant.traces().shape, accountant.steps
    (torch.Size([2]), 5)
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        loss_fn: LossFunction = cross_entropy,
        relative_error: float | None = None,
        probes: int | None = None,
        records: Sequence[int] | Tensor | None = None,
        records_per_step: int | None = None,
        subsampling: str = "exact",
        delta: float | None = None,
        clip: str = "hard",
        rng: torch.Generator | None = None,
    ) -> None:
        check_records(inputs, labels)
        self._live = opacus.unwrap(model)
        self._model = check_model(opacus.plain_copy(model))
        self._loss_fn = loss_fn
        self._records = check_indices(records, len(inputs))
        self._inputs, self._labels = inputs, labels
        if records is not None:
            self._inputs, self._labels = (each[self._records.to(each.device)] for each in (inputs, labels))
        self._relative_error, self._probes = check_accuracy(relative_error, probes)
        self._all_at_once = records is not None
        self._block = None if records_per_step is None else check_whole("records_per_step", records_per_step)
        self._subsampling, self._delta = check_subsampling(subsampling, delta)
        self._clip = clip_by_name(clip)
        self._settings = AccountSettings(self._subsampling, self._delta, clip, self._block, self._records)
        device = next(self._live.parameters()).device
        self._rng = torch.Generator(device).manual_seed(0) if rng is None else directions_rng(rng)
        few, targets = pick_few_records(inputs, labels, device)
        self._reduction = detect_reduction(self._model, loss_fn, few, targets)
        check_training_mode(self._model, self._live, few)
        self._ledger: InformationLedger | None = None
        self._phases: list[TrainingPhase] = []
        self._undo: Callable[[], None] | None = None
        self._sampling: opacus.LoaderSampling | None = None
        self._bar: ProgressBar | None = None

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return sum(phase.steps for phase in self._phases)

    def step(
        self,
        state: nn.Module | Mapping[str, Tensor] | None = None,
        *,
        noise_multiplier: float,
        clip_norm: float,
        sampling_probability: float,
        poisson: bool = True,
    ) -> None:
        """Account for one step, **before** the parameters are updated.

        Args:
            state: The trained model or its tensors by name; None to use the model that was passed to the accountant.
            noise_multiplier: Standard deviation of the noise divided by the clip norm.
            clip_norm: Largest norm of the gradient of a record.
            sampling_probability: Probability that a record is in the batch.
            poisson: True if batches are Poisson samples. False for shuffled batches, for which no amplification by
                sampling is counted.

        Raises:
            InvalidInput: If a number is out of range, or ``state`` lacks a parameter.
        """
        check_positive("sampling_probability", check_probability("sampling_probability", sampling_probability))
        phase = TrainingPhase(
            check_positive("noise_multiplier", noise_multiplier, "Without noise the update reveals the gradient."),
            check_positive("clip_norm", clip_norm, "Pass the norm used in training."),
            sampling_probability,
            poisson,
            1,
        )
        ledger = self._ledger or self._new_ledger(sampling_probability)
        tensors = self._tensors(self._live if state is None else state)
        if self._ledger is None:  # first step: the mode may have changed since the constructor
            few = self._inputs[:2].to(next(iter(tensors.values())).device)
            check_training_mode(self._model, self._live, few, tensors)
        block = ledger.next_block(self._rng)
        if self._probes is None:
            self._probes = self._choose_probes(block, phase, tensors, self._rng)
        ledger.add(self._evaluate(block, phase, tensors, self._current_probes(ledger, self._probes), self._rng))
        self._ledger = ledger
        last = self._phases[-1] if self._phases else None
        if last is not None and replace(last, steps=1) == phase:
            self._phases[-1] = replace(last, steps=last.steps + 1)
        else:
            self._phases.append(phase)
        if self._bar is not None:
            self._bar.advance()

    def attach(self, optimizer: Any, data_loader: Any, *, total_steps: int | None = None) -> None:
        """Account for every real step of an Opacus optimizer; noise and clip norm are read at each step.

        Args:
            optimizer: Optimizer that ``make_private`` returned.
            data_loader: Data loader of the training, from which the sampling is read.
            total_steps: Number of steps of the training. A terminal then shows the expected cost and a progress bar.

        Raises:
            InvalidInput: If the accountant is already attached, or optimizer, loader or clipping are not supported.

        Edge cases: virtual steps of ``BatchMemoryManager`` do not count.
        """
        if self._undo is not None:
            raise InvalidInput("attach() was already called. Call detach() first.")
        if self._clip is not HardClip:
            raise invalid_input(
                "clip", "smooth", "to be 'hard' with Opacus", 'Pass clip="hard" to the accountant: Opacus clips hard.'
            )
        opacus.check_optimizer(optimizer, self._live)
        opacus.check_reduction(optimizer, self._reduction)
        sampling = opacus.read_sampling(data_loader)

        def hook(stepping: Any) -> None:
            now = opacus.read_step(stepping, sampling)
            self.step(
                noise_multiplier=now.noise_multiplier,
                clip_norm=now.clip_norm,
                sampling_probability=now.sampling_probability,
                poisson=now.poisson,
            )

        self._sampling = sampling
        if total_steps is not None and sys.stderr.isatty():
            sys.stderr.write(f"Fisher account: {self.cost(steps=total_steps)}\n")
        self._bar = None if total_steps is None else ProgressBar("Training with account", total=total_steps)
        self._undo = opacus.chain_step_hook(optimizer, hook)

    def detach(self) -> None:
        """Stop following the optimizer and keep the account."""
        if self._undo is not None:
            self._undo()
        if self._bar is not None:
            self._bar.close()
        self._undo = self._bar = None

    def account(self) -> FisherAccount:
        """Return the account so far, as an independent value."""
        return self._settings.make_account(self._ledger, self._phases, self._inputs)

    def traces(self) -> Tensor:
        """Return the estimated trace of the information about each tracked record."""
        return self.account().traces

    def standard_errors(self) -> Tensor:
        """Return the standard errors of :meth:`traces`; infinite while unknown."""
        return self.account().standard_errors

    def dfil(self) -> Tensor:
        """Return the leakage tr(I)/d of each tracked record."""
        return self.account().dfil()

    def mse_lower_bounds(self, *, confidence: float = 0.95, data_range: tuple[float, float] | None = None) -> Tensor:
        """Return :meth:`FisherAccount.mse_lower_bounds` of the account so far.

        Args:
            confidence: Confidence of each bound by itself.
            data_range: Smallest and largest possible value, for an upper limit of the bounds; None for no limit.

        Returns:
            Lower bounds on the mean squared error per coordinate, one per tracked record.
        """
        return self.account().mse_lower_bounds(confidence=confidence, data_range=data_range)

    def summary(self, *, data_range: tuple[float, float] | None = None, confidence: float = 0.95) -> LeakageSummary:
        """Return :meth:`FisherAccount.summary` of the account so far. It depends on private records: keep it secret.

        Args:
            data_range: Smallest and largest possible value; None to leave out the bound from Renyi DP.
            confidence: Confidence of each bound by itself.

        Returns:
            The summary of all steps so far.
        """
        return self.account().summary(data_range=data_range, confidence=confidence)

    def cost(self, *, steps: int, sampling_probability: float | None = None) -> AccountingCost:
        """Measure time and memory of the account on the records of one step; the account is not changed.

        Args:
            steps: Number of training steps.
            sampling_probability: Probability that a record is in a batch; None to read it from the attached loader.

        Returns:
            Time of one step and of all steps, and the growth of the peak memory.
        """
        rate = self._sampling.sampling_probability if sampling_probability is None and self._sampling else None
        rate = sampling_probability if rate is None else rate
        if rate is None and self._ledger is None and self._block is None and not self._all_at_once:
            raise invalid_input(
                "sampling_probability",
                None,
                "to be given",
                "Pass sampling_probability=..., or attach the accountant first.",
            )
        ledger = self._ledger or self._new_ledger(1.0 if rate is None else rate)
        rng = torch.Generator(self._rng.device)  # a copy: measuring must not change the account
        rng.set_state(self._rng.get_state())
        phase = TrainingPhase(1.0, 1.0, rate or 1.0, True, 1)
        tensors = self._tensors(self._live)
        block = torch.arange(len(self._inputs))[: ledger.block]
        most = self._probes or self._choose_probes(block, phase, tensors, rng)
        probes = self._current_probes(ledger, most)
        return measure_cost(
            lambda: self._evaluate(block, phase, tensors, probes, rng),
            steps=check_whole("steps", steps),
            records_per_step=ledger.block,
            cycle_steps=ledger.blocks,
            probes=probes,
            fewer_later=self._relative_error is not None,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the full state as tensors; it fits ``checkpoint_dict`` of Opacus and safetensors."""
        return merge_state(
            self._ledger, self._phases, self._probes, self._rng, self._state_fingerprint(), self._settings
        )

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state; raise InvalidInput, unchanged, if it is of other records or settings."""
        self._ledger, self._phases, self._probes = split_state(state, len(self._inputs), self._state_fingerprint())
        self._rng.set_state(state["rng"].cpu())

    def save(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to a safetensors file, atomically. Keep the file as secret as the records."""
        write_state(path, self.state_dict())

    def load(self, path: str | Path) -> None:
        """Continue from a file that :meth:`save` wrote."""
        self.load_state_dict(read_state(path))

    def _new_ledger(self, rate: float) -> InformationLedger:
        """Return an empty ledger whose number of records per step fits the sampling rate."""
        count = len(self._inputs)
        # 1e-9 undoes rounding: 1 / (3 * rate) may fall just below a whole number
        blocks = 1 if self._all_at_once else max(1, math.floor(1 / (_CYCLES * rate) + 1e-9))
        default = math.ceil(count / blocks)
        return InformationLedger(count, min(count, self._block or default))

    def _tensors(self, state: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return parameters and buffers by name, sharing memory with the module."""
        if isinstance(state, nn.Module):
            module = opacus.unwrap(state)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, _ in self._model.named_parameters():
            if name not in state:  # the copy would silently use its initial values
                raise invalid_input(
                    "names in state", sorted(state)[:5], f"to include {name!r}", "Pass the model that is trained."
                )
        return state

    def _current_probes(self, ledger: InformationLedger, most: int) -> int:
        """Return the probes of this cycle: a third of ``most`` in the first three cycles, fewer later."""
        # relative variance of the sum of c cycles: (3 + 3 + 3 + 4 + ... + c) / (k c^2) <= 1/k with k = most probes
        return most if self._relative_error is None else max(2, math.ceil(most / max(_CYCLES, ledger.cycles + 1)))

    def _evaluate(
        self, block: Tensor, phase: TrainingPhase, state: Mapping[str, Tensor], probes: int, rng: torch.Generator
    ) -> Tensor:
        """Return samples of the trace of this step's information: one row per probe, one column per record."""
        device = next(iter(state.values())).device
        clip = self._clip(phase.clip_norm)
        found = probe_clipped_gradients(
            self._model,
            self._loss_fn,
            self._inputs[block.to(self._inputs.device)].to(device),
            self._labels[block.to(self._labels.device)].to(device),
            clip=clip,
            probes=probes,
            rng=rng,
            state=state,
        )
        noise_std, rate = phase.noise_multiplier * phase.clip_norm, phase.sampling_probability
        squares, radial = found.squares.double().cpu(), found.radial.double().cpu()
        scale = rate / noise_std**2  # of the sum over the batch: q / (sigma C)^2
        if self._subsampling == "none" or not phase.poisson:
            return scale * squares
        if self._delta is not None:
            factor = guo2022_factor(
                noise_multiplier=phase.noise_multiplier, sampling_probability=rate, delta=self._delta
            )
            return scale * factor * squares
        shift = found.norms.double().cpu().nan_to_num(torch.inf, torch.inf) / noise_std
        across, along = (torch.from_numpy(factor) for factor in subsampled_information(shift.numpy(), rate))
        return scale * (across * squares + (along - across) * radial)

    def _choose_probes(
        self, block: Tensor, phase: TrainingPhase, state: Mapping[str, Tensor], rng: torch.Generator
    ) -> int:
        """Estimate the number of probes that meets the target relative error for most records."""
        samples = self._evaluate(block[:_PILOT_RECORDS], phase, state, _PILOT_PROBES, rng)
        relative = samples.var(0) / samples.mean(0).square().clamp_min(torch.finfo(samples.dtype).tiny)
        # variance of a mean of k probes is 1/k of that of one: k = (relative variance) / (relative error)^2
        wanted = float(relative.nan_to_num(0.0, 0.0).quantile(_COVERED)) / (self._relative_error or 1.0) ** 2
        return max(2, math.ceil(wanted))

    def _state_fingerprint(self) -> Tensor:
        return self._settings.compute_fingerprint(self._inputs, self._labels)
