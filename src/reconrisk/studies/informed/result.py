"""Results of attacks by an informed adversary, scored against the targets and against what was known before.

:class:`InformedReport` is printed, stored and read back; :class:`RebuiltInformed` adds the records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from reconrisk.core.reconstruction import Account, Ending
from reconrisk.core.storage.result import ReportedResult, Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse, psnr
from reconrisk.studies.informed.split import InformedSplit

_LISTED = 40


@serializable("informed-target")
@dataclass(frozen=True)
class InformedTarget:
    """One target: how near the estimate came, beside what somebody reaches who never looks at the model.

    ``neighbour`` is the record nearest to the target among those that the adversary knows, which only an oracle can
    choose; ``class_mean_mse`` is the error of the mean of known records of the target's class. ``found`` is the label
    that the attack found, empty where none was sought. ``account`` says which of the report's accounts is of this
    target. ``cramer_rao_mse`` is the least mean squared error of unbiased estimates under known noise. ``membership``
    is "in", "not in" or "undecided", empty where nobody asked.
    """

    record: int
    label: str
    found: str
    mse: float
    psnr: float
    neighbour: int
    neighbour_mse: float
    class_mean_mse: float
    objective: float
    account: int
    cramer_rao_mse: float | None = None
    membership: str = ""

    @property
    def beats_neighbour(self) -> bool:
        """Whether the estimate is nearer than every record that the adversary knew before."""
        return self.mse < self.neighbour_mse


@serializable("informed-report")
@dataclass(frozen=True)
class InformedReport(Result):
    """How an informed adversary did on each target, with everything it depends on.

    ``known`` is the number of other training records, ``requested`` that of targets: larger than ``targets`` if the
    attack was interrupted. ``training`` and ``noise`` say in words how the model came about and what was added to it;
    ``victims`` whether the models were trained for this report or one released model was given.
    """

    attack: str
    model: str
    data: str
    training: str
    noise: str
    victims: str
    threat: ThreatModel
    shape: tuple[int, ...]
    data_range: tuple[float, ...]
    known: int
    requested: int
    targets: tuple[InformedTarget, ...]
    accounts: tuple[Account, ...]
    seed: int

    def __post_init__(self) -> None:
        check_not_empty("targets", self.targets)
        check_not_empty("accounts", self.accounts)
        check_whole("requested", self.requested, minimum=len(self.targets))
        for target in self.targets:
            if not 0 <= target.account < len(self.accounts):
                raise invalid_input("account", target.account, f"to be from 0 to {len(self.accounts) - 1}")

    @property
    def is_complete(self) -> bool:
        """Whether every target was attacked, without interruption."""
        interrupted = any(account.status.ending is Ending.INTERRUPTED for account in self.accounts)
        return len(self.targets) == self.requested and not interrupted

    @property
    def failed(self) -> tuple[Account, ...]:
        """Accounts of the attacks whose estimates say nothing about their strength."""
        return tuple(account for account in self.accounts if account.status.is_failure)

    @property
    def is_image(self) -> bool:
        """True if records are drawn: 1 or 3 channels x height x width."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def sentence(self) -> str:
        """To how many targets the attack came nearer than anything known before, and how near."""
        own, neighbour = (median(getattr(each, name) for each in self.targets) for name in ("mse", "neighbour_mse"))
        nearer = sum(target.beats_neighbour for target in self.targets)
        failed = f" {len(self.failed)} of {len(self.accounts)} attacks failed." if self.failed else ""
        return (
            f"{self.attack} came nearer to {nearer} of {len(self.targets)} targets of {self.data} than every known "
            f"record: median mean squared error {own:.3g}, of the nearest known record {neighbour:.3g}.{failed}"
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each target."""
        return tuple(asdict(target) for target in self.targets)

    def table(self) -> str:
        """Return what was attacked, a line per target, all together, and how the attacks ended."""
        parts = (self._heading(), self._table(), self._summary())
        return "\n\n".join("\n".join(part) for part in parts)

    def _heading(self) -> Iterator[str]:
        values = " x ".join(str(side) for side in self.shape)
        yield f"attack    {self.attack}"
        yield f"records   {self.data}, {values} in [{self.data_range[0]:g}, {self.data_range[1]:g}]"
        yield f"model     {self.model}, {self.victims}"
        yield f"training  {self.training}"
        yield f"noise     {self.noise}"
        knows = ", ".join(sorted(item.value for item in self.threat.knows))
        yield f"adversary sees {self.threat.sees.value}, knows {knows}: {self.known} records and not the target"
        if not self.is_complete:
            reached = f"{len(self.targets)} of {self.requested} targets were reached"
            whole = "the estimates are as near as the search had come"
            yield f"INTERRUPTED: {reached if len(self.targets) < self.requested else whole}."

    def _table(self) -> Iterator[str]:
        bound, asked = self._has_bound, any(target.membership for target in self.targets)
        scores = f"{'mse':>11}{'psnr':>8}{'neighbour':>11}{'(record)':>10}{'class mean':>12}"
        more = f"{'Cramer-Rao':>11}" * bound + f"{'objective':>11}" + f"  {'membership':<10}" * asked
        yield f"{'target':>8}  {'label':<10} {'found':<10}{scores}{more}".rstrip()
        for target in self.targets[:_LISTED]:
            place = f"({target.neighbour})"
            scores = f"{target.mse:>11.3g}{target.psnr:>8.1f}{target.neighbour_mse:>11.3g}{place:>10}"
            scores += f"{target.class_mean_mse:>12.3g}"
            least = "none" if target.cramer_rao_mse is None else f"{target.cramer_rao_mse:.3g}"
            more = f"{least:>11}" * bound + f"{target.objective:>11.3g}" + f"  {target.membership:<10}" * asked
            labels = f"{target.label[:10]:<10} {target.found[:10] or '-':<10}"
            yield f"{target.record:>8}  {labels}{scores}{more}".rstrip()
        if len(self.targets) > _LISTED:
            yield f"{'...':>8} and {len(self.targets) - _LISTED} more in the report"

    @property
    def _has_bound(self) -> bool:
        return any(target.cramer_rao_mse is not None for target in self.targets)

    def _summary(self) -> Iterator[str]:
        """All targets together, then the first of each ending, and how many there are of it."""
        names = ("mse", "neighbour_mse", "class_mean_mse")
        own, neighbour, mean = (median(getattr(target, name) for target in self.targets) for name in names)
        nearer = sum(target.beats_neighbour for target in self.targets)
        yield (
            f"mse       median {own:.3g}, of the nearest known record {neighbour:.3g}, of the class mean {mean:.3g}; "
            f"{nearer} of {len(self.targets)} nearer than any known record"
        )
        sought = [target for target in self.targets if target.found]
        if sought:
            right = sum(target.found == target.label for target in sought)
            yield f"label     {right} of {len(sought)} found"
        if self._has_bound:
            yield "Cramer-Rao is the least mse of unbiased estimates; a biased one, such as a clipped one, may be below"
        endings = [account.status.ending for account in self.accounts]
        for ending in dict.fromkeys(endings):
            several = f" ({endings.count(ending)} of {len(endings)} models)" if len(endings) > 1 else ""
            yield f"status    {self.accounts[endings.index(ending)].status}{several}"
        seconds = sum(account.cost.seconds for account in self.accounts)
        yield f"cost      {seconds:.1f} s, {sum(account.cost.evaluations for account in self.accounts)} evaluations"


@dataclass(frozen=True, eq=False)
class RebuiltInformed(ReportedResult):
    """The report of an informed adversary; estimates, targets and the nearest known records in its order."""

    report: InformedReport
    estimates: Tensor
    targets: Tensor
    neighbours: Tensor

    @property
    def kind(self) -> str:
        """Tag of this kind of result; its JSON is that of the report."""
        return "rebuilt-informed"

    def to_report(self) -> InformedReport:
        """Return everything but the tensors."""
        return self.report

    def __repr__(self) -> str:
        """The report as text."""
        return str(self.report)


@dataclass(frozen=True, eq=False)
class Finding:
    """What the attack on one target gave.

    ``label`` is the one it found, None where it was known. ``account`` is the place of its account. ``error`` is the
    root mean square error that the estimate has at most, None where nothing is known of it; if it ``is_typical``, some
    estimates err more. ``membership`` is an answer that does not rest on the estimate.
    """

    estimate: Tensor
    label: float | None
    objective: float
    account: int
    cramer_rao_mse: float | None = None
    error: float | None = None
    is_typical: bool = False
    membership: str | None = None


@dataclass(frozen=True)
class Words:
    """What a report says about attack, model and training."""

    attack: str
    model: str
    training: str
    noise: str
    victims: str


def informed_result(
    split: InformedSplit,
    findings: Sequence[Finding],
    accounts: Sequence[Account],
    *,
    words: Words,
    threat: ThreatModel,
    membership: bool,
    seed: int,
    sought: Tensor | None = None,
) -> RebuiltInformed:
    """The findings on the first targets, scored on the coordinates that were ``sought``, by default all."""
    rows = list(split.targets[: len(findings)])
    targets, data = split.dataset.inputs[rows], split.dataset
    guesses = [split.guess(place) for place in range(len(rows))]
    estimates = torch.stack([finding.estimate.reshape(data.shape) for finding in findings])
    neighbours = torch.stack([guess.nearest for guess in guesses])
    means = torch.stack([guess.class_mean for guess in guesses])
    every = slice(None) if sought is None else sought
    truth, *others = (one.double().flatten(1)[:, every] for one in (targets, estimates, neighbours, means))
    errors = [mse()(one, truth).tolist() for one in others]
    ratios = psnr(data_range=data.data_range)(others[0], truth).tolist()
    told = [
        InformedTarget(
            record=rows[place],
            label=_label(data, rows[place]),
            found="" if finding.label is None else _label_word(data, finding.label),
            mse=errors[0][place],
            psnr=ratios[place],
            neighbour=guesses[place].neighbour,
            neighbour_mse=errors[1][place],
            class_mean_mse=errors[2][place],
            objective=finding.objective,
            account=finding.account,
            cramer_rao_mse=finding.cramer_rao_mse,
            membership=_membership(split, place, finding) if membership else "",
        )
        for place, finding in enumerate(findings)
    ]
    report = InformedReport(
        attack=words.attack,
        model=words.model,
        data=data.name,
        training=words.training,
        noise=words.noise,
        victims=words.victims,
        threat=threat,
        shape=data.shape,
        data_range=data.data_range,
        known=split.known_count,
        requested=len(split.targets),
        targets=tuple(told),
        accounts=tuple(accounts),
        seed=seed,
    )
    return RebuiltInformed(report, estimates, targets, neighbours)


def _label_word(dataset: Dataset, label: float) -> str:
    """A label as people read it: the name of its class, or the number.

    >>> _label_word(Dataset("toy", torch.zeros(2, 1), torch.tensor([0, 1]), classes=("cat", "dog")), 1)
    'dog'
    """
    names = dataset.classes
    if names is not None and float(label).is_integer() and 0 <= label < len(names):
        return names[int(label)]
    return f"{label:.5g}"


def _label(dataset: Dataset, record: int) -> str:
    labels = dataset.labels
    if labels is None or labels[record].numel() > 1:
        return "none" if labels is None else "several"
    return _label_word(dataset, float(labels[record]))


def _membership(split: InformedSplit, place: int, finding: Finding) -> str:
    if finding.membership is not None:
        return finding.membership
    answer = split.membership(place, finding.estimate.reshape(split.dataset.shape), finding.error)
    # an estimate farther off than is typical may still be of the target
    return "undecided" if finding.is_typical and answer == "not in" else answer
