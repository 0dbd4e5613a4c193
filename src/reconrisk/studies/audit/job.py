"""From a spec to an audit: load the model, the records, the defenses and the attacks that it names."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reconrisk.attacks.prior_choice import is_prior_name
from reconrisk.attacks.registry import PORTFOLIOS
from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.registry import Choice
from reconrisk.core.validation import invalid_input
from reconrisk.data.bundled_sets import SHIPPED
from reconrisk.data.data_folders import FULL_SETS
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.models.registry import model_by_name
from reconrisk.models.weights import load_weights
from reconrisk.studies.audit.result import AuditResult
from reconrisk.studies.audit.run import AuditOptions, TrainingRun, audit
from reconrisk.studies.audit.spec import AuditSpec
from reconrisk.studies.common.arguments import check_goals, defense_from_choice, seconds_from_budget
from reconrisk.studies.common.plan import AttackChoice, read_attack_settings
from reconrisk.studies.common.subjects.model_updates import training_loss
from reconrisk.studies.common.subjects.subject import UpdateRecipe


@dataclass(frozen=True, eq=False)
class Job:
    """An audit whose objects are loaded and checked, ready to run.

    Attributes:
        spec: The spec of the audit.
        model: The audited network.
        dataset: Records that targets are drawn from.
        public: Public records; None if the spec names none.
        defenses: Configured defenses; None for the default.
        attacks: Name of a portfolio, or attacks.
    """

    spec: AuditSpec
    model: nn.Module
    dataset: Dataset
    public: Dataset | None
    defenses: tuple[Defense | None, ...] | None
    attacks: str | tuple[AttackChoice, ...]

    @property
    def update(self) -> UpdateRecipe:
        """Training of a client that the spec states."""
        spec = self.spec
        return UpdateRecipe(spec.batch_size, None, spec.local_steps, spec.local_learning_rate)

    def run(
        self,
        *,
        training: Mechanism | None = None,
        account: object | None = None,
        show_plan: Callable[[str], None] | None = None,
    ) -> AuditResult:
        """Run the audit.

        Args:
            training: Mechanism of the training run according to ``account``.
            account: Fisher account of the training run.
            show_plan: Function that receives the plan as text before the first trial.

        Returns:
            The result of the audit.

        Raises:
            InvalidInput: If the spec states another mechanism than the account, or an argument does not fit.
        """
        spec = self.spec
        if spec.training is not None and training not in (None, spec.training.mechanism):
            condition = f"to be the mechanism of the account, {training!r}"
            remedy = "Leave training out: the account states it."
            raise invalid_input("training", spec.training.mechanism, condition, remedy)
        return audit(
            self.model,
            self.dataset,
            threat=spec.threat,
            defenses=self.defenses,
            attacks=self.attacks,
            goals=spec.goals or None,
            max_risk=spec.max_risk,
            budget=spec.budget,
            trials=spec.trials,
            update=self.update,
            training=TrainingRun(training if spec.training is None else spec.training.mechanism, account),
            store=None if spec.store is None else spec.path(spec.store),
            options=AuditOptions(
                seed=spec.seed,
                confidence=spec.confidence,
                public=self.public,
                name=spec.model,
                show_plan=show_plan,
                records=spec.records,
                signature=f"reconrisk audit {shlex.quote(spec.line())}",
            ),
        )


def job_from_spec(spec: AuditSpec) -> Job:
    """Load the objects that a spec names.

    Args:
        spec: The spec of an audit.

    Returns:
        The audit, ready to run.

    Raises:
        InvalidInput: If something is missing, unknown or does not fit; the message begins with the key.

    Edge cases: if the test split is audited, the training split is public.
    """
    with _prefix_errors("budget"):
        seconds_from_budget(spec.budget)
    with _prefix_errors("defenses"):
        defenses = tuple(defense_from_choice(choice) for choice in spec.defenses)
    with _prefix_errors("attacks"):
        attacks = _read_attacks(spec)
    with _prefix_errors("data"):
        dataset = _load_split(spec, spec.split)
        public = _load_split(spec, "train") if spec.split == "test" else None
    with _prefix_errors("goals"):
        check_goals(spec.goals or None, spec.max_risk, dataset)
    with _prefix_errors("model"):
        folder = str(spec.path(".").resolve())  # first place where Python looks for the module of the model
        if folder not in sys.path:
            sys.path.insert(0, folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            model = model_by_name(spec.model, shape=dataset.shape, classes=dataset.class_count)
    if spec.weights is not None:
        with _prefix_errors("weights"):
            model = load_weights(model, spec.path(spec.weights))
    with _prefix_errors("model, data"):  # one forward pass shows if they fit each other
        training_loss(model.eval(), dataset)
    return Job(spec, model.train(spec.train_mode), dataset, public, defenses or None, attacks)


@contextmanager
def _prefix_errors(key: str) -> Iterator[None]:
    """Begin the message of an error with the key of the spec that it is about."""
    try:
        yield
    except (InvalidInput, InvalidFile) as error:
        raise InvalidInput(f"{key}: {error}") from error


def _read_attacks(spec: AuditSpec) -> str | tuple[AttackChoice, ...]:
    choices = spec.attacks
    if len(choices) == 1 and choices[0].name in PORTFOLIOS and not choices[0].settings:
        return choices[0].name
    found = []
    for choice in choices:
        settings = dict(choice.settings)
        word = settings.get("prior")
        if isinstance(word, str) and not is_prior_name(word) and spec.path(word).is_dir():
            settings["prior"] = str(spec.path(word))  # relative to the working directory, not to the spec
        found.append(read_attack_settings(Choice(choice.name, tuple(settings.items()))))
    return tuple(found)


def _load_split(spec: AuditSpec, split: str | None) -> Dataset:
    named = spec.data in SHIPPED or spec.data in FULL_SETS
    options: dict[str, Any] = {"label": spec.label, "data_range": spec.data_range}
    stated = {name: value for name, value in options.items() if value is not None}
    path = spec.path(spec.data)
    # A name of the package wins over a file of the same name; load_dataset reports a name that is neither.
    return load_dataset(spec.data if named or not path.exists() else path, split=split, **stated)
