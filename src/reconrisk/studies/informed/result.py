"""Results of attacks by an informed adversary, scored against the targets and against prior knowledge.

:class:`InformedReport` is printed, stored and read back; :class:`RebuiltInformed` adds the records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from reconrisk.core.reconstruction import AttackReport, Ending
from reconrisk.core.storage.result import ReportedResult, Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse, psnr
from reconrisk.studies.informed.split import InformedSplit

_LISTED = 40  # targets in the printed table


@serializable("informed-target")
@dataclass(frozen=True)
class InformedTarget:
    """Scores of one target, and of baselines that ignore the model.

    Attributes:
        record: Index of the target.
        label: Label of the target.
        found: Label of the target that the attack inferred; empty if the label was known.
        mse: Mean squared error of the estimate.
        psnr: Peak signal-to-noise ratio of the estimate in dB.
        neighbour: Index of the known record nearest to the target, which only an oracle can choose.
        neighbour_mse: Mean squared error of the nearest known record.
        class_mean_mse: Mean squared error of the mean of known records of the target's class.
        objective: Value of the attack's own objective.
        account: Index of this target's account in the report.
        cramer_rao_mse: Smallest mean squared error of unbiased estimates under known noise; None without one.
        membership: "in", "not in" or "undecided"; empty if it was not requested.
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
        """True if the estimate is closer to the target than every known record."""
        return self.mse < self.neighbour_mse


@serializable("informed-report")
@dataclass(frozen=True)
class InformedReport(Result):
    """Outcome of an informed attack on each target, with everything it depends on.

    Attributes:
        attack: Name of the attack.
        model: Name of the model.
        data: Name of the data set.
        training: Description of the training.
        noise: Description of the noise on the released model.
        victims: Description of the attacked models: trained for this report, or one released model.
        threat: Threat model of the adversary.
        shape: Shape of one record.
        data_range: Smallest and largest value of a record.
        known: Number of known training records.
        requested: Number of targets to attack; larger than ``len(targets)`` if the attack was interrupted.
        targets: Scores of each target.
        accounts: Settings, status and cost of the attacks.
        seed: Seed of the random generator.
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
    accounts: tuple[AttackReport, ...]
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
        """True if every target was attacked without interruption."""
        interrupted = any(account.status.ending is Ending.INTERRUPTED for account in self.accounts)
        return len(self.targets) == self.requested and not interrupted

    @property
    def failed_reports(self) -> tuple[AttackReport, ...]:
        """Accounts of failed attacks; their estimates do not measure the strength of the attack."""
        return tuple(account for account in self.accounts if account.status.is_failure)

    @property
    def is_image(self) -> bool:
        """True if records are images of shape (1 or 3) x height x width."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def sentence(self) -> str:
        """Number of targets with an estimate closer than every known record, and median errors."""
        own, neighbour = (median(getattr(each, name) for each in self.targets) for name in ("mse", "neighbour_mse"))
        nearer = sum(target.beats_neighbour for target in self.targets)
        failed = f" {len(self.failed_reports)} of {len(self.accounts)} attacks failed." if self.failed_reports else ""
        return (
            f"{self.attack} came closer to {nearer} of {len(self.targets)} targets of {self.data} than every known "
            f"record: median mean squared error {own:.3g}, of the nearest known record {neighbour:.3g}.{failed}"
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each target."""
        return tuple(asdict(target) for target in self.targets)

    def table(self) -> str:
        """Return the setting, a line per target, a summary, and the status of the attacks."""
        parts = (self._heading_lines(), self._target_lines(), self._summary_lines())
        return "\n\n".join("\n".join(part) for part in parts)

    def _heading_lines(self) -> Iterator[str]:
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
            whole = "the estimates are the best so far"
            yield f"INTERRUPTED: {reached if len(self.targets) < self.requested else whole}."

    def _target_lines(self) -> Iterator[str]:
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

    def _summary_lines(self) -> Iterator[str]:
        """Yield medians over all targets, then the first account of each ending with the number of such accounts."""
        names = ("mse", "neighbour_mse", "class_mean_mse")
        own, neighbour, mean = (median(getattr(target, name) for target in self.targets) for name in names)
        nearer = sum(target.beats_neighbour for target in self.targets)
        yield (
            f"mse       median {own:.3g}, of the nearest known record {neighbour:.3g}, of the class mean {mean:.3g}; "
            f"{nearer} of {len(self.targets)} closer than any known record"
        )
        sought = [target for target in self.targets if target.found]
        if sought:
            right = sum(target.found == target.label for target in sought)
            yield f"label     {right} of {len(sought)} found"
        if self._has_bound:
            yield "Cramer-Rao is the smallest mse of unbiased estimates; biased ones, such as clipped, may be below"
        endings = [account.status.ending for account in self.accounts]
        for ending in dict.fromkeys(endings):
            several = f" ({endings.count(ending)} of {len(endings)} models)" if len(endings) > 1 else ""
            yield f"status    {self.accounts[endings.index(ending)].status}{several}"
        seconds = sum(account.cost.seconds for account in self.accounts)
        yield f"cost      {seconds:.1f} s, {sum(account.cost.evaluations for account in self.accounts)} evaluations"


@dataclass(frozen=True, eq=False)
class RebuiltInformed(ReportedResult):
    """Report of an informed attack with its records as tensors, in the order of ``report.targets``.

    Attributes:
        report: Everything except the tensors.
        estimates: Estimates of the targets.
        targets: The targets themselves.
        neighbours: Known records nearest to the targets.
    """

    report: InformedReport
    estimates: Tensor
    targets: Tensor
    neighbours: Tensor

    @property
    def kind(self) -> str:
        """Tag of this kind of result; its JSON form is that of the report."""
        return "rebuilt-informed"

    def to_report(self) -> InformedReport:
        """Return everything except the tensors."""
        return self.report

    def __repr__(self) -> str:
        """Return the report as text."""
        return str(self.report)


@dataclass(frozen=True, eq=False)
class Finding:
    """Outcome of the attack on one target.

    Attributes:
        estimate: Estimated record.
        label: Inferred label; None if it was known.
        objective: Value of the attack's own objective.
        account: Index of its account.
        cramer_rao_mse: Smallest mean squared error of unbiased estimates; None without known noise.
        error: Upper limit on the root mean square error of the estimate; None if unknown.
        is_typical: True if ``error`` is a typical value that some estimates exceed.
        membership: Decision that does not depend on the estimate; None to decide by the estimate.
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
class AttackDescription:
    """Texts of a report about attack, model and training; see :class:`InformedReport` for the fields."""

    attack: str
    model: str
    training: str
    noise: str
    victims: str


def informed_result(
    split: InformedSplit,
    findings: Sequence[Finding],
    accounts: Sequence[AttackReport],
    *,
    description: AttackDescription,
    threat: ThreatModel,
    membership: bool,
    seed: int,
    sought: Tensor | None = None,
) -> RebuiltInformed:
    """Score the findings on the first targets and build the result.

    Args:
        split: Targets and known records.
        findings: Outcomes of the attacks, one per finished target.
        accounts: Settings, status and cost of the attacks.
        description: Texts of the report.
        threat: Threat model of the adversary.
        membership: True to decide membership of each target.
        seed: Seed of the random generator.
        sought: Mask of the coordinates that are scored; None for all.

    Returns:
        The report with the records.
    """
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
    scored = [
        InformedTarget(
            record=rows[place],
            label=_target_label(data, rows[place]),
            found="" if finding.label is None else _format_label(data, finding.label),
            mse=errors[0][place],
            psnr=ratios[place],
            neighbour=guesses[place].neighbour,
            neighbour_mse=errors[1][place],
            class_mean_mse=errors[2][place],
            objective=finding.objective,
            account=finding.account,
            cramer_rao_mse=finding.cramer_rao_mse,
            membership=_decide_membership(split, place, finding) if membership else "",
        )
        for place, finding in enumerate(findings)
    ]
    report = InformedReport(
        attack=description.attack,
        model=description.model,
        data=data.name,
        training=description.training,
        noise=description.noise,
        victims=description.victims,
        threat=threat,
        shape=data.shape,
        data_range=data.data_range,
        known=split.known_count,
        requested=len(split.targets),
        targets=tuple(scored),
        accounts=tuple(accounts),
        seed=seed,
    )
    return RebuiltInformed(report, estimates, targets, neighbours)


def _format_label(dataset: Dataset, label: float) -> str:
    """Return the name of a label's class, or the number.

    >>> _format_label(Dataset("toy", torch.zeros(2, 1), torch.tensor([0, 1]), classes=("cat", "dog")), 1)
    'dog'
    """
    names = dataset.classes
    if names is not None and float(label).is_integer() and 0 <= label < len(names):
        return names[int(label)]
    return f"{label:.5g}"


def _target_label(dataset: Dataset, record: int) -> str:
    labels = dataset.labels
    if labels is None or labels[record].numel() > 1:
        return "none" if labels is None else "several"
    return _format_label(dataset, float(labels[record]))


def _decide_membership(split: InformedSplit, place: int, finding: Finding) -> str:
    if finding.membership is not None:
        return finding.membership
    answer = split.membership(place, finding.estimate.reshape(split.dataset.shape), finding.error)
    # an estimate with more than the typical error may still be one of the target
    return "undecided" if finding.is_typical and answer == "not in" else answer
