"""From a spec to an audit: the model, the records, the defenses and attacks that it names."""

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
from reconrisk.studies.audit.options import AuditOptions, TrainingRun
from reconrisk.studies.audit.result import AuditResult
from reconrisk.studies.audit.run import audit
from reconrisk.studies.audit.spec import AuditSpec
from reconrisk.studies.common.arguments import checked_goals, defense_from_choice, seconds_from_budget
from reconrisk.studies.common.plan import AttackChoice, attack_in_words
from reconrisk.studies.common.subjects.model_updates import training_loss
from reconrisk.studies.common.subjects.subject import UpdateRecipe


@dataclass(frozen=True, eq=False)
class Job:
    """What a spec names, loaded and found to fit: nothing has been computed yet."""

    spec: AuditSpec
    model: nn.Module
    dataset: Dataset
    public: Dataset | None
    defenses: tuple[Defense | None, ...] | None
    attacks: str | tuple[AttackChoice, ...]

    @property
    def update(self) -> UpdateRecipe:
        """The recipe of clients that the spec states."""
        spec = self.spec
        return UpdateRecipe(spec.batch_size, None, spec.local_steps, spec.local_learning_rate)

    def run(
        self,
        *,
        training: Mechanism | None = None,
        account: object | None = None,
        show_plan: Callable[[str], None] | None = None,
    ) -> AuditResult:
        """The audit; ``training`` is what an ``account`` says of it, refused if the spec states another."""
        spec = self.spec
        if spec.training is not None and training not in (None, spec.training.mechanism):
            condition = f"to be that of the account, {training!r}"
            raise invalid_input(
                "training", spec.training.mechanism, condition, "Leave training out: the account has it."
            )
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
    """Load what a spec names.

    Guarantee: what is missing, unknown or does not fit is refused, naming the key.
    Edge cases: the training split beside a test split is public.
    """
    with _about("budget"):
        seconds_from_budget(spec.budget)
    with _about("defenses"):
        defenses = tuple(defense_from_choice(choice) for choice in spec.defenses)
    with _about("attacks"):
        attacks = _attacks(spec)
    with _about("data"):
        dataset = _loaded(spec, spec.split)
        public = _loaded(spec, "train") if spec.split == "test" else None
    with _about("goals"):
        checked_goals(spec.goals or None, spec.max_risk, dataset)
    with _about("model"):
        folder = str(spec.path(".").resolve())  # modules are searched in the folder of the spec first
        if folder not in sys.path:
            sys.path.insert(0, folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            model = model_by_name(spec.model, shape=dataset.shape, classes=dataset.class_count)
    if spec.weights is not None:
        with _about("weights"):
            model = load_weights(model, spec.path(spec.weights))
    with _about("model, data"):
        training_loss(model.eval(), dataset)
    return Job(spec, model.train(spec.train_mode), dataset, public, defenses or None, attacks)


@contextmanager
def _about(key: str) -> Iterator[None]:
    """Say which key of the spec an error is about."""
    try:
        yield
    except (InvalidInput, InvalidFile) as error:
        raise InvalidInput(f"{key}: {error}") from error


def _attacks(spec: AuditSpec) -> str | tuple[AttackChoice, ...]:
    choices = spec.attacks
    if len(choices) == 1 and choices[0].name in PORTFOLIOS and not choices[0].settings:
        return choices[0].name
    found = []
    for choice in choices:
        settings = dict(choice.settings)
        word = settings.get("prior")
        if isinstance(word, str) and not is_prior_name(word) and spec.path(word).is_dir():
            settings["prior"] = str(spec.path(word))  # the folder of a prior as seen from where the process is
        found.append(attack_in_words(Choice(choice.name, tuple(settings.items()))))
    return tuple(found)


def _loaded(spec: AuditSpec, split: str | None) -> Dataset:
    named = spec.data in SHIPPED or spec.data in FULL_SETS
    options: dict[str, Any] = {"label": spec.label, "data_range": spec.data_range}
    stated = {name: value for name, value in options.items() if value is not None}
    path = spec.path(spec.data)
    return load_dataset(spec.data if named or not path.exists() else path, split=split, **stated)
