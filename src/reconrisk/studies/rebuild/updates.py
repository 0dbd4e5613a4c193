"""Attack the updates of chosen records, and score the estimates against the records and against a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.baselines import constant_guess
from reconrisk.attacks.knowledge import PublicKnowledge, attack_name, configure_attack, find_attack_info
from reconrisk.attacks.prior_choice import ResolvedPrior
from reconrisk.core.defense import Defense
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Attack
from reconrisk.core.storage.result import ReportedResult
from reconrisk.core.threat import Knows
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics.columns import score_columns
from reconrisk.metrics.registry import fitting_metrics
from reconrisk.studies.common.attacked_updates import (
    AttackedUpdate,
    AttackOnUpdates,
    Progress,
    choose_records,
    labels_or_zeros,
)
from reconrisk.studies.common.plan import alone
from reconrisk.studies.common.subjects.model_updates import client_for
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, UpdateRecipe
from reconrisk.studies.rebuild.report import MetricScores, RebuildReport, RebuiltColumn

PRIOR_ALONE = "the prior alone"
"""Name of the baseline for attacks with a generative prior."""


@dataclass(frozen=True, eq=False)
class Rebuilt(ReportedResult):
    """Report of an attack with its estimates and targets as tensors.

    Attributes:
        report: Everything except the tensors.
        estimates: Estimates in the order of ``report.records``.
        targets: The records themselves; None for a captured update.
        guesses: Baseline estimates for a captured update, which has no targets to compare with; otherwise None.
    """

    report: RebuildReport
    estimates: Tensor
    targets: Tensor | None
    guesses: Tensor | None = None

    @property
    def kind(self) -> str:
        """Tag of this kind of result; its JSON form is that of the report."""
        return "rebuilt"

    def to_report(self) -> RebuildReport:
        """Return everything except the tensors."""
        return self.report

    def __repr__(self) -> str:
        """Return the report as text."""
        return str(self.report)


def rebuild(
    attack: str | Attack,
    model: nn.Module | None,
    dataset: Dataset,
    *,
    records: Sequence[int] = (0,),
    update: UpdateRecipe = ONE_GRADIENT,
    settings: Mapping[str, object] | None = None,
    knows: Iterable[Knows] = (),
    defense: Defense | None = None,
    public: Dataset | None = None,
    metrics: Metric | Sequence[Metric] | None = None,
    model_name: str | None = None,
    progress: Progress | None = None,
    rng: torch.Generator,
) -> Rebuilt:
    """Reconstruct records of a data set from the updates that a client computes from them.

    The adversary is the weakest one that can run the attack, plus the knowledge in ``knows``. A server that chooses
    the model plants its layer before the update is computed.

    Args:
        attack: Configured attack, plain function, or name of an attack
            (:func:`reconrisk.attacks.registry.attack_by_name`).
        model: Model of the client; None only for ``optimal_analytic``.
        dataset: Records of the client.
        records: Indices of the attacked records.
        update: Batch size, loss and local training of the client.
        settings: Settings of an attack that is passed by name.
        knows: Further knowledge of the adversary.
        defense: Defense of the updates; None for none.
        public: Public records that an attack by name may use; None for all other records of ``dataset``.
        metrics: Metrics of the scores; None for PSNR, SSIM for images, and mean squared error.
        model_name: Name of the model in the report; None for its class.
        progress: Function that is called after each update with the numbers of finished and of all updates.
        rng: Source of all randomness.

    Returns:
        The report, the estimates and the attacked records.

    Raises:
        InvalidInput: If records, attack, model or public records do not fit together.

    Assumes: the loss of ``update`` is the training loss, by default the result of
    :func:`reconrisk.studies.common.subjects.model_updates.training_loss`; the model is in the mode that the client
    trains in.
    Guarantee: the attack sees the observation only. The seeds of noise and attack are drawn first for each update, so
    two attacks with equal ``rng`` see the same noise. The baseline is matched and scored like the attack. It is the
    prior alone for an attack with a generative prior, otherwise a constant guess.
    Edge cases: the last update has fewer records if the batch size does not divide their number. Ctrl-C returns the
    finished updates; before the first one it passes through.

    >>> data = Dataset("toy", torch.tensor([[0.25, 0.5], [0.75, 1.0]]), torch.tensor([0, 1]))
    >>> rebuilt = rebuild("analytic", nn.Linear(2, 2), data, records=[0, 1], rng=torch.Generator().manual_seed(0))
    >>> rebuilt.estimates.round(decimals=4)
    tensor([[0.2500, 0.5000],
            [0.7500, 1.0000]])
    """
    check_reads_updates(attack)
    chosen = choose_records(dataset, records)
    size = min(update.batch_size, len(chosen))
    others, clip_norm = _public_records(dataset, records, public), getattr(defense, "clip_norm", None)
    knowledge = PublicKnowledge(
        dataset.shape, size, others, dataset, dataset.columns, clip_norm, data_range=dataset.data_range
    )
    configured, derived = configure_attack(attack, settings, knowledge)
    client = client_for(configured, model, chosen, update)
    prior = prior_to_beat(configured, knowledge)
    guess: Attack = constant_guess() if prior is None else alone(prior.value)
    threat = configured.needs.with_knowledge(*knows, *derived)
    judged = fitting_metrics(("psnr", "ssim", "mse"), dataset.shape, dataset.data_range)
    if metrics is not None:
        judged = (metrics,) if isinstance(metrics, Metric) else tuple(metrics)
    run = AttackOnUpdates(configured, client, defense, threat, judged, guess)
    updates = run.run(chosen, size, rng=rng, progress=progress)
    done = sum(len(each.estimates) for each in updates)
    report = _build_report(
        updates,
        run,
        chosen,
        attack=attack if isinstance(attack, str) else attack_name(configured),
        model=model_name or ("none" if model is None else type(model).__name__),
        records=tuple(int(record) for record in records)[:done],
        batch_size=size,
        seed=rng.initial_seed(),
    )
    estimates, targets = torch.cat([each.estimates for each in updates]), chosen.inputs[:done]
    columns = _score_columns(estimates, targets, dataset, others)
    report = replace(report, columns=columns)
    if prior is not None:
        report = replace(report, guesser=PRIOR_ALONE, prior=prior.said)
    return Rebuilt(report, estimates, targets)


def prior_to_beat(attack: Attack, knowledge: PublicKnowledge) -> ResolvedPrior | None:
    """Return the generative prior that is the baseline of an attack.

    Args:
        attack: Configured attack.
        knowledge: Knowledge that priors are chosen from.

    Returns:
        The prior; None for an attack without one and for baselines.
    """
    info = find_attack_info(attack)
    return None if info is not None and info.is_baseline else knowledge.prior_used_by(attack)


def check_reads_updates(attack: str | Attack) -> None:
    """Raise if an attack reads trained models instead of updates.

    Args:
        attack: Attack or name of an attack.

    Raises:
        InvalidInput: If the attack reads a trained model or an estimator.
    """
    info = find_attack_info(attack)
    if info is not None and info.reads:
        remedy = "Use reconrisk rebuild-informed, or rr.audit of the trained model: this attack reads a trained model."
        raise invalid_input("attack", info.name, "to be an attack on updates", remedy)


def _public_records(dataset: Dataset, records: Sequence[int], public: Dataset | None) -> Dataset | None:
    """Return the public records: the stated ones, or all records of the data set that are not attacked."""
    if public is not None:
        if public.shape != dataset.shape or public.data_range != dataset.data_range:
            raise invalid_input("public", public, f"to hold records of shape {dataset.shape} in {dataset.data_range}")
        return public
    others = torch.ones(len(dataset), dtype=torch.bool)
    others[list(records)] = False
    return dataset.subset(others.nonzero().squeeze(1)) if bool(others.any()) else None


def _build_report(
    updates: Sequence[AttackedUpdate],
    run: AttackOnUpdates,
    dataset: Dataset,
    *,
    attack: str,
    model: str,
    records: tuple[int, ...],
    batch_size: int,
    seed: int,
) -> RebuildReport:
    labels = [label for update in updates for label in update.labels]
    return RebuildReport(
        attack=attack,
        settings=updates[0].account.attack,
        model=model,
        data=dataset.name,
        release=str(run.client),
        defense="none" if run.defense is None else repr(run.defense),
        threat=run.threat,
        shape=dataset.shape,
        data_range=dataset.data_range,
        batch_size=batch_size,
        requested=len(dataset),
        records=records,
        updates=tuple(number for number, update in enumerate(updates) for _ in update.estimates),
        labels=_label_names(dataset, labels_or_zeros(dataset)[: len(records)].tolist()),
        inferred=_label_names(dataset, labels) if len(labels) == len(records) else (),
        objective=tuple(value for update in updates for value in update.objective),
        scores=tuple(_collect_scores(metric, updates) for metric in run.metrics),
        accounts=tuple(update.account for update in updates),
        seed=seed,
    )


def _score_columns(
    estimates: Tensor, targets: Tensor, dataset: Dataset, public: Dataset | None
) -> tuple[RebuiltColumn, ...]:
    """Score each column of a table, and a guess of the typical value of other records."""
    if dataset.columns is None:
        return ()
    reference = None if public is None else public.inputs
    scores = score_columns(estimates, targets, dataset.columns, reference=reference, in_order=True)
    return tuple(
        RebuiltColumn(
            name=name,
            right=tuple(column.right.tolist()),
            error=() if column.error is None else tuple(column.error.tolist()),
            typical_right=None if column.guess is None else column.guess.accuracy,
            typical_error=None if column.guess is None else column.guess.mean_error,
        )
        for name, column in scores.items()
    )


def _collect_scores(metric: Metric, updates: Sequence[AttackedUpdate]) -> MetricScores:
    def collect(side: str) -> tuple[float, ...]:
        """Return the scores of all records; empty if there are no such scores."""
        found = [getattr(update, side) for update in updates]
        return tuple(value for each in found if each for value in each[metric.name].tolist())

    values, guess, oracle = (collect(side) for side in ("values", "guess", "oracle"))
    return MetricScores(repr(metric), metric.name, metric.higher_is_better, values, guess, oracle)


def _label_names(dataset: Dataset, labels: Sequence[float]) -> tuple[str, ...]:
    if dataset.labels is None:
        return tuple("none" for _ in labels)
    classes = dataset.classes
    if classes is not None:
        return tuple(classes[int(label)] if label < len(classes) else f"{label:g}" for label in labels)
    return tuple(" ".join(f"{number:g}" for number in torch.tensor(label).flatten().tolist()) for label in labels)
