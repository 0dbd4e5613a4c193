"""An adversary who knows every training record but one meets the trained network: what it rebuilds of that record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from scipy.stats import chi2
from torch import Tensor, nn

from reconrisk.attacks.informed.invert_training.attack import NEEDS, invert_training
from reconrisk.attacks.informed.reconstructor.attack import reconstructor
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import FEWEST, ShadowKnowledge
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import rows_among
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import UpdateRule, sgd
from reconrisk.studies.common.subjects.model_updates import binary_cross_entropy, squared_error, training_loss
from reconrisk.studies.informed.result import Finding, RebuiltInformed, Words, informed_result
from reconrisk.studies.informed.split import LARGEST, InformedSplit, informed_split, least_unbiased_mse

AttackName = Literal["invert_training", "reconstructor"]

# Of a sum of independent squares with a given mean, far tails are heaviest if there is but one: Theorem 1, Szekely and
# Bakirov (2003), Extremal probabilities for Gaussian quadratic forms. Times its mean, one exceeds this once in 1000.
_TAIL = float(chi2.isf(1e-3, 1))
_EXACT = 1e-4  # of the data range: what an exact inversion leaves at most, by its own words


def rebuild_informed(
    model: nn.Module,
    dataset: Dataset,
    targets: Sequence[int],
    *,
    optimizer: UpdateRule | None = None,
    steps: int = 100,
    loss_fn: LossFunction | None = None,
    fixed: int | None = None,
    released: Mapping[str, Tensor] | None = None,
    attack: AttackName = "invert_training",
    shadows: int | None = None,
    store: str | Path | None = None,
    known_labels: bool = False,
    noise_std: float | None = None,
    membership: bool = False,
    seconds: float | None = None,
    model_name: str | None = None,
    rng: torch.Generator,
) -> RebuiltInformed:
    r"""Rebuild ``targets`` of a data set from networks trained on them, knowing all other records and the training.

    .. math:: \theta = \mathrm{train}(\theta_0, D_- \cup \{z\}) + N(0, \sigma^2), \qquad (\theta, \theta_0, D_-) \to z

    ``model`` is the network at its start; ``steps`` of ``optimizer`` (by default gradient descent at 0.2 with momentum
    0.9) take all records each. Without ``released`` a network is trained in float32 for each target, on the ``fixed``
    first records that are no target (by default all) and on it: the audit of one's own recipe. ``released``, parameters
    by name, is one network trained on the fixed records and all targets, each of which is rebuilt by who knows the
    others. The attack inverts training, or is a ``reconstructor`` that learns from ``shadows`` shadow models, whose
    targets are records left over (kept in the folder ``store``). ``noise_std`` is output perturbation of every value,
    known to the adversary, drawn here unless ``released`` has it. ``membership`` asks whether each target was trained
    on.

    Assumes: ``loss_fn`` is the loss in training, by default that of
    :func:`reconrisk.studies.common.subjects.model_updates.training_loss`; training draws nothing.
    Guarantee: the attack sees models, known records and, with ``known_labels``, labels alone; targets are for scores.
    Edge cases: a released model that this training cannot have led to has a status that says so; one that equals the
    start is refused. Ctrl-C gives what is done. Under noise, the bound is that of unbiased estimates with known label,
    inf where the information is singular, None for records of more than 4096 values.
    Reference: Sections II to V, balle2022.

    >>> data = Dataset("toy", torch.rand(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2)
    >>> model = nn.Linear(3, 2)
    >>> _ = model.weight.data.copy_(torch.tensor([[0.1, -0.2, 0.3], [0.2, 0.1, -0.1]])), model.bias.data.zero_()
    >>> found = rebuild_informed(model, data, [7], steps=5, rng=torch.Generator().manual_seed(0))
    >>> found.report.targets[0].mse < 1e-8, found.report.targets[0].found
    (True, '1')
    """
    split = informed_split(dataset, targets, fixed=fixed, together=released is not None)
    noise = None if noise_std is None else check_positive("noise_std", noise_std)
    loss, labels = _loss_and_labels(model, split, loss_fn, known_labels=known_labels)
    run = _Run(
        model=model,
        split=split,
        optimizer=sgd(0.2, 0.9) if optimizer is None else optimizer,
        steps=check_whole("steps", steps),
        loss_fn=loss,
        labels=labels,
        attack=attack,
        shadows=_shadows(split, attack, shadows, store),
        store=store,
        known_labels=known_labels,
        noise_std=noise,
        seconds=seconds,
        rng=rng,
    )
    findings, accounts = run.trained() if released is None else run.on_released(released)
    return informed_result(
        split if run.shadows is None else replace(split, prior=run.shadows),
        findings,
        accounts,
        words=run.words(model_name or type(model).__name__, released is not None),
        threat=run.threat,
        membership=membership,
        seed=rng.initial_seed(),
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """An attack on networks of one recipe."""

    model: nn.Module
    split: InformedSplit
    optimizer: UpdateRule
    steps: int
    loss_fn: LossFunction
    labels: Tensor
    attack: AttackName
    shadows: Tensor | None
    store: str | Path | None
    known_labels: bool
    noise_std: float | None
    seconds: float | None
    rng: torch.Generator

    @property
    def threat(self) -> ThreatModel:
        more = {Knows.LABELS: self.known_labels, Knows.DEFENSE: self.noise_std is not None}
        more[Knows.PRIOR] = self.attack == "reconstructor"
        return NEEDS.knowing(*(item for item, known in more.items() if known))

    def words(self, model: str, released: bool) -> Words:
        own = "one released model" if released else "a model trained in float32 for each target"
        noise = "none" if self.noise_std is None else f"{self.noise_std:g} on every value, known"
        learned = "" if self.shadows is None else f" with {len(self.shadows)} shadow models"
        training = f"{self.steps} steps of {self.optimizer!r}, all records in each"
        return Words(f"{self.attack}{learned}", model, training, noise, own)

    def trained(self) -> tuple[list[Finding], list[Account]]:
        """The attack on a model for each target, all together."""
        training, rows = self._training(self.split.fixed), list(self.split.targets)
        victims = training.train(self.split.dataset.inputs[rows], self.labels[rows])
        if not bool(victims.isfinite().all()):
            raise invalid_input("training", "diverged", "to end in finite weights", "Lower the learning rate.")
        if self.noise_std is not None:
            victims = victims + self.noise_std * torch.randn(victims.shape, generator=self.rng)
        return self._attacked(training, victims, range(len(rows)), 0)

    def on_released(self, released: Mapping[str, Tensor]) -> tuple[list[Finding], list[Account]]:
        """The attack on one model, one target after the other, each with its own known records."""
        findings: list[Finding] = []
        accounts: list[Account] = []
        try:
            for place in range(len(self.split.targets)):
                training = self._training(self.split.known(place))
                row = _row(training, released)
                some, told = self._attacked(training, row[None], range(place, place + 1), len(accounts))
                findings, accounts = findings + some, accounts + told
                if told[-1].status.ending is Ending.INTERRUPTED:
                    break
        except KeyboardInterrupt:
            if not findings:
                raise
        return findings, accounts

    def _training(self, known: Tensor) -> ShadowTraining:
        fixed = self.split.dataset.inputs[known], self.labels[known]
        return ShadowTraining(self.model, *fixed, self.optimizer, self.steps, self.loss_fn)

    def _attacked(
        self, training: ShadowTraining, models: Tensor, places: range, number: int
    ) -> tuple[list[Finding], list[Account]]:
        by = self._inverted if self.attack == "invert_training" else self._learned
        findings, accounts = by(training, models, places)
        bounds = [self._bound(training, place) for place in places]
        status = accounts[0].status
        likely = self.attack == "invert_training" and status.ending is Ending.CONVERGED and not status.remedy
        bounded = [
            replace(
                finding,
                account=number + finding.account,
                cramer_rao_mse=bound,
                error=math.sqrt(_TAIL * bound) if likely and bound is not None else finding.error,
            )
            for finding, bound in zip(findings, bounds, strict=True)
        ]
        return bounded, accounts

    def _inverted(self, training: ShadowTraining, models: Tensor, places: range) -> tuple[list[Finding], list[Account]]:
        rows, data_range = [self.split.targets[place] for place in places], self.split.dataset.data_range
        known = self.labels[rows] if self.known_labels else None
        attack = invert_training(training, seconds=self.seconds)
        found = attack.rebuild(models, labels=known, noise_std=self.noise_std, data_range=data_range)
        account = found.account
        exact = _EXACT * (data_range[1] - data_range[0]) if account.status.ending is Ending.EXACT else None
        findings = [
            Finding(
                estimate=estimate,
                label=None if self.known_labels or account.labels is None else account.labels[place],
                objective=account.objective[place],
                account=0,
                error=exact,
            )
            for place, estimate in enumerate(found.estimates)
        ]
        return findings, [account]

    def _learned(self, training: ShadowTraining, models: Tensor, places: range) -> tuple[list[Finding], list[Account]]:
        begun, data = time.monotonic(), self.split.dataset
        shadows = torch.empty(0) if self.shadows is None else self.shadows
        knowledge = ShadowKnowledge(training, data.inputs[shadows], self.labels[shadows])
        alone = self.store is not None and len(places) < len(self.split.targets)
        store = Path(self.store or "") / str(self.split.targets[places[0]]) if alone else self.store
        rows = knowledge.shadow_models(store=store, rng=self.rng)
        if self.noise_std is not None:
            rows = rows + self.noise_std * torch.randn(rows.shape, generator=self.rng)
        attack = reconstructor(knowledge, data_range=data.data_range, shadow_models=rows, rng=self.rng)

        def forward(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return training.unflatten(training.train(inputs, labels)[0])

        findings, accounts = [], []
        for place, model in enumerate(models):
            seen = Observation(training.unflatten(model), forward, attack.needs, data.shape, data.data_range)
            found = attack(seen, rng=self.rng)
            label = None if found.labels is None or self.known_labels else found.labels[0]
            error = None if found.status.is_failure else math.sqrt(attack.error)
            told = Finding(found.estimates[0], label, found.account.objective[0], place, error=error, is_typical=True)
            findings.append(told)
            accounts.append(found.account)
        cost = Cost(time.monotonic() - begun, len(shadows))  # learning is what takes time, once for all models
        return findings, [replace(accounts[0], cost=cost), *accounts[1:]]

    def _bound(self, training: ShadowTraining, place: int) -> float | None:
        """The least mean squared error of unbiased estimates of one target under known noise."""
        row, size = self.split.targets[place], math.prod(self.split.dataset.shape)
        if self.noise_std is None or size > LARGEST:
            return None
        record = self.split.dataset.inputs[row : row + 1].double()
        directions = torch.eye(size, dtype=torch.float64).unflatten(1, self.split.dataset.shape)
        moved = training.push(record, self.labels[row : row + 1], directions).double() / self.noise_std
        return least_unbiased_mse(moved @ moved.T)


def _loss_and_labels(
    model: nn.Module, split: InformedSplit, stated: LossFunction | None, *, known_labels: bool
) -> tuple[LossFunction, Tensor]:
    """The loss and its labels, in the form that trains many models at once where there is one."""
    loss = training_loss(model, split.dataset) if stated is None else stated
    labels = torch.empty(0) if split.dataset.labels is None else split.dataset.labels
    if loss is binary_cross_entropy:
        remedy = "Give it two outputs, one for each class: labels are tried by the outputs."
        raise invalid_input("model", "of one output", "to have an output per class", remedy)
    if labels.is_floating_point() and not known_labels:
        remedy = "Say that the adversary knows the label: real numbers cannot be tried one by one."
        raise invalid_input("known_labels", False, "to be True for labels that are no classes", remedy)
    if loss is squared_error:
        return nn.functional.mse_loss, labels.flatten(1) if labels.ndim > 1 else labels[:, None]
    return loss, labels


def _shadows(split: InformedSplit, attack: str, count: int | None, store: str | Path | None) -> Tensor | None:
    """The records left over that serve as shadow targets; None for an attack without any."""
    if attack not in get_args(AttackName):
        raise invalid_input("attack", attack, f"to be one of {', '.join(get_args(AttackName))}")
    if attack != "reconstructor":
        for name, value in (("shadows", count), ("store", store)):
            if value is not None:
                raise invalid_input(name, value, "to be left out for invert_training", "It trains no shadow models.")
        return None
    inputs = split.dataset.inputs
    known = torch.cat([split.fixed, torch.tensor(split.targets)])
    others = torch.ones(len(split.left), dtype=torch.bool)
    others[list(rows_among(inputs[split.left], inputs[known]))] = False  # who has a copy of a target has learned it
    free = split.left[others]
    left = len(free)
    if left < FEWEST:
        remedy = "State fixed, so that records are left over."
        raise invalid_input("fixed", len(split.fixed), f"to leave at least {FEWEST} records for shadow targets", remedy)
    wanted = left if count is None else check_whole("shadows", count, minimum=FEWEST)
    if wanted > left:
        raise invalid_input("shadows", count, f"<= {left}, the records that are neither fixed nor targets")
    return free[:wanted]


def _row(training: ShadowTraining, released: Mapping[str, Tensor]) -> Tensor:
    """What was released as one row, after a check that it can be a result of this training."""
    for name, shape in zip(training.names, training.shapes, strict=True):
        found = released.get(name)
        if found is None or tuple(found.shape) != shape:
            given = None if found is None else tuple(found.shape)
            raise invalid_input(f"released[{name!r}].shape", given, f"to be {shape}, as in the model")
    row = training.flatten(released)
    if torch.equal(row, training.start(row.dtype)):
        remedy = "State the weights after training as released and those before it as the start."
        raise invalid_input("released", "equal to the start", "to have been trained", remedy)
    return row
