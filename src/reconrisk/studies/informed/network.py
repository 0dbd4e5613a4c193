"""Reconstruct a training record from a trained network, knowing every other training record."""

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
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.releases.float_safe_noise import add_noise
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import rows_among
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import UpdateRule, sgd
from reconrisk.studies.common.subjects.model_updates import binary_cross_entropy, squared_error, training_loss
from reconrisk.studies.informed.result import AttackDescription, Finding, RebuiltInformed, informed_result
from reconrisk.studies.informed.split import LARGEST, InformedSplit, informed_split, least_unbiased_mse


@dataclass(frozen=True, kw_only=True)
class InformedOptions:
    """Settings of an informed attack on a network that most calls leave at their defaults.

    Attributes:
        seconds: Time limit of ``invert_training`` for each model or batch of models; by default none.
        shadows: Number of shadow models that a ``reconstructor`` learns from; by default one for every record that is
            neither fixed nor a target.
        store: Folder that keeps the shadow models; the same call resumes there. By default nothing is kept.
        name: Name of the model in the report; by default its class.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> InformedOptions(seconds=10.0).shadows is None
    True
    """

    seconds: float | None = None
    shadows: int | None = None
    store: str | Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.shadows is not None:
            check_whole("shadows", self.shadows)
        if self.store is not None and not isinstance(self.store, (str, Path)):
            raise invalid_input("store", self.store, "to be a folder", "Pass store='shadows', for instance.")
        if self.name is not None and not isinstance(self.name, str):
            raise invalid_input("name", self.name, "to be a text", "Pass name='my model', for instance.")


DEFAULT_OPTIONS = InformedOptions()


def check_informed_options(options: object) -> None:
    """Raise unless the argument is an ``InformedOptions``.

    Args:
        options: Value of the argument ``options``.

    Raises:
        InvalidInput: If it is anything else, such as a mapping.

    >>> check_informed_options({"seconds": 10})
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected options={'seconds': 10} to be InformedOptions. Pass ...
    """
    if not isinstance(options, InformedOptions):
        remedy = "Pass rr.InformedOptions(seconds=10), for instance."
        raise invalid_input("options", options, "to be InformedOptions", remedy)


AttackName = Literal["invert_training", "reconstructor"]

# Among weighted sums of independent squared normals with a given mean, a single square has the heaviest far tail
# (Theorem 1, Szekely and Bakirov (2003), Extremal probabilities for Gaussian quadratic forms). It exceeds _TAIL times
# its mean with probability 1/1000.
_TAIL = float(chi2.isf(1e-3, 1))
_EXACT = 1e-4  # of the data range: largest error of an inversion with the status "exact"


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
    known_labels: bool = False,
    noise_std: float | None = None,
    membership: bool = False,
    options: InformedOptions = DEFAULT_OPTIONS,
    rng: torch.Generator,
) -> RebuiltInformed:
    r"""Reconstruct target records from trained networks, knowing the training and all other records.

    .. math:: \theta = \mathrm{train}(\theta_0, D_- \cup \{z\}) + N(0, \sigma^2), \qquad (\theta, \theta_0, D_-) \to z

    Here :math:`\theta_0` and :math:`\theta` are the parameters before and after training, :math:`D_-` the known
    records, z the target and :math:`\sigma` the standard deviation of the noise.

    Args:
        model: Network before training.
        dataset: Records with labels.
        targets: Indices of the records to reconstruct.
        optimizer: Optimizer of the training; by default gradient descent with learning rate 0.2 and momentum 0.9.
        steps: Training steps, each on all training records.
        loss_fn: Training loss; by default the result of
            :func:`reconrisk.studies.common.subjects.model_updates.training_loss`.
        fixed: Number of known training records: the first ones that are not targets. By default all of them.
        released: Parameters by name of one network that was trained on the fixed records and all targets. Each target
            is then attacked by an adversary who knows the others. By default a network is trained here in float32 for
            each target, on the fixed records and that target.
        attack: ``"invert_training"``, or ``"reconstructor"``, which learns from shadow models of the remaining records.
        known_labels: True if the adversary knows the labels of the targets.
        noise_std: Standard deviation of noise on every released value, known to the adversary. The noise is drawn here
            unless ``released`` contains it. By default none.
        membership: True to decide for each target if it was trained on.
        options: Time limit, number and folder of shadow models, and the name for the report.
        rng: Source of noise and of the reconstructor's training.

    Returns:
        The report, the estimates, the targets and their nearest known records.

    Raises:
        InvalidInput: If arguments do not fit together, training diverges, or ``released`` equals the initial weights.

    Assumes: the training is deterministic.
    Guarantee: the attack sees models, known records and, with ``known_labels``, labels only; targets are used for
    scores only.
    Edge cases: for a released model that this training cannot produce, the status states the mismatch. Ctrl-C returns
    the finished targets. With noise, the bound holds for unbiased estimates with known label; it is inf if the
    information is singular, None for records of more than 4096 values.
    Reference: Sections II to V, balle2022.

    >>> data = Dataset("toy", torch.rand(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2)
    >>> model = nn.Linear(3, 2)
    >>> _ = model.weight.data.copy_(torch.tensor([[0.1, -0.2, 0.3], [0.2, 0.1, -0.1]])), model.bias.data.zero_()
    >>> found = rebuild_informed(model, data, [7], steps=5, rng=torch.Generator().manual_seed(0))
    >>> found.report.targets[0].mse < 1e-8, found.report.targets[0].found
    (True, '1')
    """
    check_informed_options(options)
    split = informed_split(dataset, targets, fixed=fixed, together=released is not None)
    noise = None if noise_std is None else check_positive("noise_std", noise_std)
    loss, labels = _loss_and_labels(model, split, loss_fn, known_labels=known_labels)
    run = _NetworkRun(
        model=model,
        split=split,
        optimizer=sgd(0.2, 0.9) if optimizer is None else optimizer,
        steps=check_whole("steps", steps),
        loss_fn=loss,
        labels=labels,
        attack=attack,
        shadows=_choose_shadow_targets(split, attack, options.shadows, options.store),
        store=options.store,
        known_labels=known_labels,
        noise_std=noise,
        seconds=options.seconds,
        rng=rng,
    )
    findings, accounts = run.attack_trained_models() if released is None else run.attack_released_model(released)
    return informed_result(
        split if run.shadows is None else replace(split, prior=run.shadows),
        findings,
        accounts,
        description=run.describe(options.name or type(model).__name__, released is not None),
        threat=run.threat,
        membership=membership,
        seed=rng.initial_seed(),
    )


@dataclass(frozen=True, eq=False)
class _NetworkRun:
    """Attack on networks that are trained in the same way."""

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
        """Threat model of the informed adversary, with the stated knowledge."""
        more = {Knows.LABELS: self.known_labels, Knows.DEFENSE: self.noise_std is not None}
        more[Knows.PRIOR] = self.attack == "reconstructor"
        return NEEDS.with_knowledge(*(item for item, known in more.items() if known))

    def describe(self, model: str, released: bool) -> AttackDescription:
        """Return the texts of the report."""
        own = "one released model" if released else "a model trained in float32 for each target"
        noise = "none" if self.noise_std is None else f"{self.noise_std:g} on every value, known"
        learned = "" if self.shadows is None else f" with {len(self.shadows)} shadow models"
        training = f"{self.steps} steps of {self.optimizer!r}, all records in each"
        return AttackDescription(f"{self.attack}{learned}", model, training, noise, own)

    def attack_trained_models(self) -> tuple[list[Finding], list[AttackReport]]:
        """Train one model for each target and attack all models together."""
        training, rows = self._training(self.split.fixed), list(self.split.targets)
        victims = training.train(self.split.dataset.inputs[rows], self.labels[rows])
        if not bool(victims.isfinite().all()):
            raise InvalidInput("Expected training to end in finite weights, but it diverged. Lower the learning rate.")
        if self.noise_std is not None:
            victims = add_noise(victims.double(), self.noise_std, self.rng).to(victims)
        return self._attack_models(training, victims, range(len(rows)), 0)

    def attack_released_model(self, released: Mapping[str, Tensor]) -> tuple[list[Finding], list[AttackReport]]:
        """Attack one released model for each target in turn, each with its own known records."""
        findings: list[Finding] = []
        accounts: list[AttackReport] = []
        try:
            for place in range(len(self.split.targets)):
                training = self._training(self.split.known_rows(place))
                row = _flatten_released(training, released)
                found, reports = self._attack_models(training, row[None], range(place, place + 1), len(accounts))
                findings, accounts = findings + found, accounts + reports
                if reports[-1].status.ending is Ending.INTERRUPTED:
                    break
        except KeyboardInterrupt:
            if not findings:
                raise
        return findings, accounts

    def _training(self, known: Tensor) -> ShadowTraining:
        fixed = self.split.dataset.inputs[known], self.labels[known]
        return ShadowTraining(self.model, *fixed, self.optimizer, self.steps, self.loss_fn)

    def _attack_models(
        self, training: ShadowTraining, models: Tensor, places: range, number: int
    ) -> tuple[list[Finding], list[AttackReport]]:
        """Attack models of the targets at ``places``; ``number`` is that of the accounts so far."""
        run_attack = self._invert_training if self.attack == "invert_training" else self._apply_reconstructor
        findings, accounts = run_attack(training, models, places)
        bounds = [self._bound(training, place) for place in places]
        status = accounts[0].status
        # a converged maximum likelihood estimate without a warning errs about as much as the bound
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

    def _invert_training(
        self, training: ShadowTraining, models: Tensor, places: range
    ) -> tuple[list[Finding], list[AttackReport]]:
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

    def _apply_reconstructor(
        self, training: ShadowTraining, models: Tensor, places: range
    ) -> tuple[list[Finding], list[AttackReport]]:
        """Train a reconstructor on shadow models and apply it to each model."""
        begun, data = time.monotonic(), self.split.dataset
        shadows = torch.empty(0) if self.shadows is None else self.shadows
        knowledge = ShadowKnowledge(training, data.inputs[shadows], self.labels[shadows])
        # models that are attacked one by one have different known records, so each gets its own folder
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
            objective = found.account.objective[0]
            findings.append(Finding(found.estimates[0], label, objective, place, error=error, is_typical=True))
            accounts.append(found.account)
        cost = Cost(time.monotonic() - begun, len(shadows))  # training the reconstructor, once for all models
        return findings, [replace(accounts[0], cost=cost), *accounts[1:]]

    def _bound(self, training: ShadowTraining, place: int) -> float | None:
        """Return the Cramer-Rao bound for one target under known noise; None without noise or for large records."""
        row, size = self.split.targets[place], math.prod(self.split.dataset.shape)
        if self.noise_std is None or size > LARGEST:
            return None
        record = self.split.dataset.inputs[row : row + 1].double()
        # derivatives of training along every coordinate: the Fisher information is J J^T / sigma^2
        directions = torch.eye(size, dtype=torch.float64).unflatten(1, self.split.dataset.shape)
        moved = training.push(record, self.labels[row : row + 1], directions).double() / self.noise_std
        return least_unbiased_mse(moved @ moved.T)


def _loss_and_labels(
    model: nn.Module, split: InformedSplit, stated: LossFunction | None, *, known_labels: bool
) -> tuple[LossFunction, Tensor]:
    """Return the loss and its labels, in the form that trains many models at once if there is one."""
    loss = training_loss(model, split.dataset) if stated is None else stated
    labels = torch.empty(0) if split.dataset.labels is None else split.dataset.labels
    if loss is binary_cross_entropy:
        remedy = "Give the model two outputs, one for each class: the attack tries every label that has an output."
        raise invalid_input("number of outputs of model", 1, "to be the number of classes", remedy)
    if labels.is_floating_point() and not known_labels:
        remedy = "Pass known_labels=True: real numbers cannot be tried one by one."
        raise invalid_input("known_labels", False, "to be True for real-valued labels", remedy)
    if loss is squared_error:
        return nn.functional.mse_loss, labels.flatten(1) if labels.ndim > 1 else labels[:, None]
    return loss, labels


def _choose_shadow_targets(
    split: InformedSplit, attack: str, count: int | None, store: str | Path | None
) -> Tensor | None:
    """Return the rows of remaining records that serve as shadow targets; None for an attack without shadow models."""
    if attack not in get_args(AttackName):
        raise invalid_input("attack", attack, f"to be one of {', '.join(get_args(AttackName))}")
    if attack != "reconstructor":
        for name, value in (("shadows", count), ("store", store)):
            if value is not None:
                raise invalid_input(
                    name, value, "to be left out for invert_training", "Remove it: this attack trains no shadow models."
                )
        return None
    inputs = split.dataset.inputs
    known = torch.cat([split.fixed, torch.tensor(split.targets)])
    others = torch.ones(len(split.left), dtype=torch.bool)
    others[list(rows_among(inputs[split.left], inputs[known]))] = False  # a copy of a target would give it away
    free = split.left[others]
    left = len(free)
    if left < FEWEST:
        remedy = "Pass a smaller fixed, so that records are left over."
        raise invalid_input(
            "number of fixed records",
            len(split.fixed),
            f"to leave at least {FEWEST} records for shadow targets",
            remedy,
        )
    wanted = left if count is None else check_whole("shadows", count, minimum=FEWEST)
    if wanted > left:
        raise invalid_input("shadows", count, f"<= {left}, the records that are neither fixed nor targets")
    return free[:wanted]


def _flatten_released(training: ShadowTraining, released: Mapping[str, Tensor]) -> Tensor:
    """Return the released parameters as one row, after a check that this training can have produced them."""
    for name, shape in zip(training.names, training.shapes, strict=True):
        found = released.get(name)
        if found is None or tuple(found.shape) != shape:
            given = None if found is None else tuple(found.shape)
            raise invalid_input(f"released[{name!r}].shape", given, f"to be {shape}, as in the model")
    row = training.flatten(released)
    if torch.equal(row, training.start(row.dtype)):
        remedy = "Pass the weights after training as released, and a model with the weights before training."
        raise InvalidInput(f"Expected released weights after training, got the initial weights of the model. {remedy}")
    return row
