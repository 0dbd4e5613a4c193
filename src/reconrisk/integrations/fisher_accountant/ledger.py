"""Running information per record when each step evaluates only some of the records, unbiased at any time.

The information of a step is an expectation over the sampled batch. So the ledger evaluates records in an order of its
own, independent of the batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from reconrisk.core.validation import check_whole, invalid_input

_LEAST_CYCLES = 3  # two differences; a single one of skewed sums is too often too small


@dataclass(eq=False)
class InformationLedger:
    r"""Sums over steps of a number per record, from evaluations of a random block of records at each step.

    A cycle is a random order of all records, cut into K blocks of nearly equal size; each cycle draws a new order. At
    the step of block B, a record i of B contributes :math:`n/|B| \, (x_i - p_i)`, and every record contributes
    :math:`p_i`. Here n is the number of records, :math:`x_i` the evaluation, and :math:`p_i` the mean contribution of
    record i to a step of the previous cycle (0 in the first).

    Unbiased at any time: the order is independent of the training, so a record is in block B with probability |B|/n at
    each step of a cycle, given everything before the cycle, and p is fixed then. Hence the expectation of a step's
    contribution is :math:`p_i + (x_i - p_i)`, also in an unfinished cycle. A record that was not evaluated in the last,
    unfinished cycle keeps its prediction instead of falling behind.

    Variance: cycles are independent. For the sums Y of two of them, with means :math:`\mu` and variances V,
    :math:`E(Y_1-Y_2)^2 = V_1 + V_2 + (\mu_1-\mu_2)^2`, which is at least the variance of the total. Pairs add up; an
    odd last cycle adds its difference to the one before. The variance of the probes is included. An unfinished cycle of
    k steps adds k/K of the mean squared difference of cycles, which is enough if it differs from the last one as they
    do. Before three cycles are complete the standard error counts as unknown and is infinite: a single difference of
    skewed sums is too often too small. If every record is evaluated at every step, only the probes vary, and their own
    variance counts.

    Attributes:
        records: Number n of records.
        block: Number of records per step.
        cycles: Finished cycles.
        position: Steps of the current cycle so far.
        degrees: Degrees of freedom of the standard errors.
        order: Order of the records in the current cycle.
        finished: Sums over finished cycles.
        correction: Contributions of evaluations in the current cycle, without predictions.
        prediction: Mean contribution of a step in the previous cycle, p.
        previous: Sum of the previous cycle.
        paired: Squared differences of pairs of cycles; variances of probes if every record is evaluated at every step.
        unpaired: Squared difference of an odd last cycle to the one before.
        jumps: Squared differences of all consecutive cycles.
        broken: True for records with an evaluation that was not finite; their totals are infinite.
    """

    records: int
    block: int
    cycles: int = 0
    position: int = 0
    degrees: int = 0
    order: Tensor = field(init=False)
    finished: Tensor = field(init=False)
    correction: Tensor = field(init=False)
    prediction: Tensor = field(init=False)
    previous: Tensor = field(init=False)
    paired: Tensor = field(init=False)
    unpaired: Tensor = field(init=False)
    jumps: Tensor = field(init=False)
    broken: Tensor = field(init=False)

    def __post_init__(self) -> None:
        check_whole("records", self.records)
        self.block = min(check_whole("records_per_step", self.block), self.records)
        self.order = torch.arange(self.records)
        self.broken = torch.zeros(self.records, dtype=torch.bool)
        for each in fields(self):
            if not hasattr(self, each.name):
                setattr(self, each.name, torch.zeros(self.records, dtype=torch.float64))

    @property
    def blocks(self) -> int:
        """Number K of steps in a cycle."""
        return math.ceil(self.records / self.block)

    @property
    def evaluates_all(self) -> bool:
        """True if each step evaluates every record."""
        return self.blocks == 1

    def next_block(self, rng: torch.Generator) -> Tensor:
        """Return the indices of the records that the next step evaluates."""
        if self.position == 0 and not self.evaluates_all:  # a new cycle
            self.order = torch.randperm(self.records, generator=rng, device=rng.device).cpu()
        return torch.tensor_split(self.order, self.blocks)[self.position]

    def add(self, samples: Tensor) -> None:
        """Add the evaluations of the last block: one row per probe, one column per record of the block."""
        block = torch.tensor_split(self.order, self.blocks)[self.position]
        values = samples.detach().to("cpu", torch.float64)
        finite = values.isfinite().all(0)
        self.broken[block[~finite]] = True
        values = torch.where(finite, values, 0.0)  # kept out of the sums; totals() reports infinity
        if self.evaluates_all:
            self.finished[block] += values.mean(0)
            self.paired[block] += values.var(0) / len(values)  # squared standard error of the mean of the probes
            self.degrees += len(values) - 1
            self.cycles += 1
            return
        # every record is in this block with probability |B|/n, hence the weight n/|B|
        self.correction[block] = self.records / len(block) * (values.mean(0) - self.prediction[block])
        self.position += 1
        if self.position == self.blocks:
            self._close_cycle()

    def _close_cycle(self) -> None:
        """Add the finished cycle to the sums and make it the prediction of the next one."""
        whole = self.blocks * self.prediction + self.correction
        self.finished += whole
        self.cycles += 1
        if self.cycles > 1:
            jump = (whole - self.previous).square()
            self.jumps += jump
            even = self.cycles % 2 == 0  # this cycle completes a pair
            self.paired += jump if even else 0.0
            self.unpaired = torch.zeros_like(jump) if even else jump
            self.degrees = self.cycles // 2
        self.previous, self.prediction = whole, whole / self.blocks
        self.correction = torch.zeros_like(whole)
        self.position = 0

    def totals(self) -> Tensor:
        """Return the estimated sums; infinite for records with an evaluation that is not finite."""
        totals = self.finished + self.position * self.prediction + self.correction
        return torch.where(self.broken, torch.inf, totals)

    def standard_errors(self) -> Tensor:
        """Return the standard errors of :meth:`totals`; infinite before three cycles are complete."""
        if self.evaluates_all:
            variances = self.paired
        elif self.cycles < _LEAST_CYCLES:
            variances = torch.full_like(self.paired, torch.inf)
        else:
            # k/K of the mean squared difference, see the class docstring
            unfinished = self.position / self.blocks * self.jumps / (self.cycles - 1)
            variances = self.paired + self.unpaired + unfinished
        return torch.where(self.broken, torch.inf, variances.sqrt())

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields as tensors that share no memory with the ledger."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: torch.as_tensor(value).clone() for name, value in values.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Set all fields from :meth:`tensors`; raise InvalidInput, unchanged, if they do not fit."""
        mine = self.tensors()
        for name, wanted in mine.items():
            if name not in tensors or tensors[name].shape != wanted.shape:
                shape = tuple(tensors[name].shape) if name in tensors else None
                raise invalid_input(
                    f"state[{name!r}].shape",
                    shape,
                    f"to be {tuple(wanted.shape)}",
                    "Pass the state of an accountant of the same records.",
                )
        for each in fields(self):
            value = tensors[each.name].clone().to(mine[each.name].dtype)
            setattr(self, each.name, int(value) if value.ndim == 0 else value)
