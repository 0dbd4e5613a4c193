"""What the runs of a frontier have in common, and one of them: train, attack, measure."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from reconrisk.attacks.knowledge import PublicKnowledge
from reconrisk.core.defense import Defense
from reconrisk.core.digest import content_digest, identify_settings, network_digest, short_digest
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_probability, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse, psnr
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.observe import chosen_for
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.studies.common.defended_release import (
    PRIOR_DRAWS,
    PRIOR_ERROR,
    drawn_from_box,
    is_known_smooth,
    mse_bound_from_traces,
    one_step_utilities,
    trace_of_information,
)
from reconrisk.studies.common.defended_training import TrainingRecipe, fresh_defense, train_defended
from reconrisk.studies.common.experiment import Experiment
from reconrisk.studies.common.plan import AttackChoice, Plan, PlannedAttack, planned_attacks
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.runs import Trial, environment
from reconrisk.studies.common.subjects.model_updates import ModelUpdates, given_labels
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reconrisk.studies.tradeoff.result import ATTACKERS, AttackScore, TradeoffCell

_SEEDS = 2**63
_MEASURED = "2"  # raised where a run of the same settings measures something else than before
_KINKED = (
    "MSE bound? It is not known that the gradient moves without jumps as the record moves, which the bound assumes; "
    "with ReLU or max-pooling it jumps."
)
_PRIOR = (
    "The MSE bound is an estimate, no proof: the information is averaged over draws. It is for records drawn from the "
    "smoothest prior on the range of the data, not for the attacked ones; 0 where there is no noise, the noise is on "
    "values that jump, or private records chose the defense."
)


@dataclass(frozen=True, eq=False)
class Variant:
    """A defense at a strength; None is the undefended reference."""

    family: str
    strength: float | None
    defense: Defense | None

    @property
    def label(self) -> str:
        """Family and strength."""
        return self.family if self.strength is None else f"{self.family} {self.strength!r}"

    def fresh(self) -> Defense | None:
        """The defense in the state in which training begins."""
        return fresh_defense(self.defense)


@dataclass(frozen=True, eq=False)
class Split:
    """Records of one seed: attacked, trained on, tested on; no record of the data is in two of them."""

    attacked: Dataset
    training: Dataset
    test: Dataset


@dataclass(frozen=True, eq=False)
class Study:
    """The settings of a frontier: all that a cell depends on but the defense and the seed."""

    model: nn.Module
    dataset: Dataset
    test: Dataset | None
    test_share: float
    threat: ThreatModel
    attacks: str | tuple[AttackChoice, ...]
    training: TrainingRecipe
    loss_fn: LossFunction
    trials: int
    attacked_batch_size: int
    attack_trained: bool

    def check(self, seed: int) -> None:
        """Refuse before any training what would fail after it."""
        split = self.split(seed)
        for attacker in ATTACKERS:
            self.planned(attacker, split)

    def split(self, seed: int) -> Split:
        """The records of a seed."""
        rows = torch.randperm(len(self.dataset), generator=_rng(seed, "split"))
        attacked, share = self.trials * self.attacked_batch_size, check_probability("test_share", self.test_share)
        held = 0 if self.test is not None else math.ceil(share * len(rows))
        least = self.training.clients * self.training.batch_size
        if self.test is None and held == 0:
            raise invalid_input("test_share", self.test_share, "> 0 without test records", "Pass test= or a share.")
        if attacked + held + least > len(rows):
            words = f">= {attacked + held + least}: {attacked} attacked, {held} to test on, {least} to train on"
            remedy = "Pass more records, fewer trials, or smaller batches."
            raise invalid_input("records", len(rows), words, remedy)
        test = self.test if self.test is not None else self.dataset.subset(rows[attacked : attacked + held])
        return Split(self.dataset.subset(rows[:attacked]), self.dataset.subset(rows[attacked + held :]), test)

    def planned(self, attacker: str, split: Split, defense: Defense | None = None) -> tuple[PlannedAttack, ...]:
        """The attacks of an attacker, guesses included; who knows the defense knows at which norm it clips."""
        knowledge = PublicKnowledge(
            self.dataset.shape,
            self.attacked_batch_size,
            split.training,
            split.attacked,
            self.dataset.columns,
            getattr(defense, "clip_norm", None) if attacker == "aware" else None,
            data_range=self.dataset.data_range,
        )
        any_prior = self.threat == HONEST_BUT_CURIOUS
        return planned_attacks(self.attacks, self.threat_of(attacker), knowledge, any_prior=any_prior)

    def threat_of(self, attacker: str) -> ThreatModel:
        """The threat with or without knowledge of the defense."""
        others = ThreatModel(self.threat.sees, self.threat.knows - {Knows.DEFENSE}, self.threat.controls)
        return others.knowing(Knows.DEFENSE) if attacker == "aware" else others

    def cell(self, variant: Variant, seed: int) -> TradeoffCell:
        """Train, attack and measure under one defense with one seed."""
        begun, split = time.monotonic(), self.split(seed)
        trained = train_defended(
            self.model,
            split.training,
            variant.fresh(),
            test=split.test,
            steps=self.training.steps,
            epochs=self.training.epochs,
            clients=self.training.clients,
            update=UpdateRecipe(self.training.batch_size, self.loss_fn),
            optimizer=self.training.optimizer,
            learning_rate=self.training.learning_rate,
            rng=_rng(seed, "training"),
        )
        model = trained.model if self.attack_trained else self.model
        utilities = self._utilities(model, variant, split, seed)
        trace, bound = self._information(model, variant, split, seed)
        return TradeoffCell(
            family=variant.family,
            strength=variant.strength,
            seed=seed,
            training_loss=trained.training_loss,
            test_loss=math.inf if trained.test_loss is None else trained.test_loss,
            test_accuracy=trained.test_accuracy,
            diverged=trained.diverged,
            utility_1=utilities[0],
            utility_2=utilities[1],
            fisher_trace=trace,
            mse_bound=bound,
            scores=self._scores(model, variant, split, seed),
            seconds=time.monotonic() - begun,
            defense_gradients=trained.defense_gradients,
        )

    def _updates(self, attacked: Dataset) -> tuple[tuple[int, ...], ...]:
        size = self.attacked_batch_size
        return tuple(tuple(range(start, start + size)) for start in range(0, len(attacked), size))

    def _scores(self, model: nn.Module, variant: Variant, split: Split, seed: int) -> tuple[AttackScore, ...]:
        """Every attack by every attacker; without a defense both attackers know the same.

        Who knows the defense may ignore it: what that came to is among what the aware attacker chooses from.
        """
        if variant.defense is None:
            known = self._scores_of("aware", model, variant, split, seed)
            return tuple(
                AttackScore(attacker, each.attack, each.is_guess, each.mse, each.psnr, each.failures)
                for attacker in ATTACKERS
                for each in known
            )
        unaware, aware = (self._scores_of(each, model, variant, split, seed) for each in ATTACKERS)
        ignoring = (
            replace(score, attacker="aware", attack=f"{score.attack}, defense ignored")
            for score in unaware
            if not score.is_guess
        )
        return (*unaware, *aware, *ignoring)

    def _scores_of(
        self, attacker: str, model: nn.Module, variant: Variant, split: Split, seed: int
    ) -> list[AttackScore]:
        updates, label = self._updates(split.attacked), variant.label
        defense = variant.fresh()
        plan = Plan(self.planned(attacker, split, defense), {label: defense}, updates, 0.0)
        population = Population(split.attacked, tuple(range(len(split.attacked))))
        metrics = (mse(), psnr(data_range=self.dataset.data_range))
        subject = ModelUpdates(model, split.attacked, UpdateRecipe(self.attacked_batch_size, self.loss_fn))
        experiment = Experiment(plan, subject, population, self.threat_of(attacker), metrics, seed)
        found: dict[str, list[Trial]] = {planned.label: [] for planned in plan.attacks}
        for key in plan.trials():
            trial, _ = experiment.trial(key)
            if trial.account.status.ending is Ending.INTERRUPTED:  # ends the whole run: half of it says nothing
                raise KeyboardInterrupt
            found[key.attack].append(trial)
        guess = next(planned.label for planned in plan.attacks if planned.is_baseline)
        return [
            _score(attacker, planned, found[planned.label], found[guess])
            for planned in plan.attacks
            if any(trial.account.status.ending is not Ending.NOT_APPLICABLE for trial in found[planned.label])
        ]

    def _utilities(self, model: nn.Module, variant: Variant, split: Split, seed: int) -> tuple[float, float]:
        """Means of the one-step utilities over the attacked gradients."""
        defense, rng, found = variant.fresh(), _rng(seed, "utility"), list[tuple[float, float]]()
        for rows in self._updates(split.attacked):
            release = self._release(model, split.attacked, rows)
            chosen = None if defense is None else chosen_for(defense, release)
            found.append(one_step_utilities(release.value(), chosen, rng=rng))
        return statistics.fmean(u1 for u1, _ in found), statistics.fmean(u2 for _, u2 in found)

    def _information(self, model: nn.Module, variant: Variant, split: Split, seed: int) -> tuple[float, float]:
        """The mean trace at the attacked records, and the bound from traces at records of the prior."""
        if variant.defense is None:
            return math.inf, 0.0
        defense, rng = variant.fresh(), _rng(seed, "information")
        releases = [self._release(model, split.attacked, rows) for rows in self._updates(split.attacked)]
        traces = torch.cat([trace_of_information(each, defense, rng=rng) for each in releases])
        mean = float(traces.double().mean())
        if not math.isfinite(mean):
            return math.inf, 0.0
        data_range, drawn = self.dataset.data_range, []
        for place in range(PRIOR_DRAWS):
            like = releases[place % len(releases)]
            inputs = drawn_from_box(like.inputs, data_range, rng=rng)
            release = GradientRelease(model, self.loss_fn, inputs, like.labels)
            traces = trace_of_information(release, defense, relative_error=PRIOR_ERROR, rng=rng)
            drawn.append(traces.mean())  # of one update: its records share it
        dimension = releases[0].inputs[0].numel()
        return mean, mse_bound_from_traces(torch.stack(drawn), dimension=dimension, data_range=data_range).low

    def _release(self, model: nn.Module, records: Dataset, rows: Sequence[int]) -> GradientRelease:
        batch = records.subset(list(rows))
        if batch.labels is None:
            raise invalid_input("data", records.name, "to have labels")
        return GradientRelease(model, self.loss_fn, batch.inputs, batch.labels)

    def notes(self) -> tuple[str, ...]:
        """What a reader of the table must know."""
        where = "trained" if self.attack_trained else "initial"
        size = self.attacked_batch_size
        attacked = (
            f"Attacked: {_counted(self.trials, 'gradient')} of {_counted(size, 'record')} at the {where} model for "
            "each seed. What records are like, guesses take from the training records."
        )
        first = self.dataset.subset(range(min(len(self.dataset), max(2, size))))
        is_smooth = is_known_smooth(self.model, self.loss_fn, first.inputs, given_labels(first))
        return (attacked, _PRIOR, *(() if is_smooth else (_KINKED,)))

    def signature(self, variants: Sequence[Variant], seeds: range) -> str:
        """The call in one line, with hashes of model and data."""
        recipe = ", ".join(f"{name}={value!r}" for name, value in vars(self.training).items() if value is not None)
        stated: dict[str, object] = {"trials": self.trials, "attack_trained": self.attack_trained}
        stated |= {"repeat": len(seeds), "seed": seeds[0]}
        attacks = self.attacks if isinstance(self.attacks, str) else [str(each) for each in self.attacks]
        written = f"training=rr.TrainingRecipe({recipe}), "
        size = self.attacked_batch_size
        written += f"update=rr.UpdateRecipe(batch_size={size}), " if size > 1 else ""
        written += ", ".join(f"{name}={value!r}" for name, value in stated.items())
        labels = [variant.label for variant in variants[1:]]
        subject = f"{type(self.model).__name__} {self._subject['model']}, {self.dataset.name} {self._subject['data']}"
        return f"rr.tradeoff(model, data, {labels}, {attacks!r}, {written})  # {subject}"

    def fingerprint(self, variant: Variant, seed: int) -> str:
        """The hash of all that a cell depends on."""
        own = {"label": variant.label, "defense": variant.fresh(), "seed": seed}
        return short_digest(sorted({**self._hashes, **own}.items()))

    @cached_property
    def _subject(self) -> dict[str, str]:
        """Digests of model and data."""
        return {"model": network_digest(self.model), "data": self.dataset.fingerprint}

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """What the cells of this study share, as text."""
        return {
            **self._subject,
            "test": "" if self.test is None else self.test.fingerprint,
            "test_share": repr(self.test_share),
            "threat": repr(self.threat),
            "attacks": identify_settings(self.attacks),
            "training": repr(self.training),
            "loss": content_digest(self.loss_fn),
            "attacked": repr((self.trials, self.attacked_batch_size, self.attack_trained)),
            "columns": repr(self.dataset.columns),
            "measured": _MEASURED,
            "versions": repr(environment().versions),
        }


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _score(attacker: str, planned: PlannedAttack, trials: Sequence[Trial], guesses: Sequence[Trial]) -> AttackScore:
    """Means over records; where an attack gives nothing its adversary still has the guess."""
    scores: dict[str, list[float]] = {"mse": [], "psnr": []}
    failures = 0
    for trial, guess in zip(trials, guesses, strict=True):
        lost = [not math.isfinite(value) for value in trial.values("mse")]
        failures += sum(lost)
        for name, values in scores.items():
            pairs = zip(trial.values(name), guess.values(name), lost, strict=True)
            values += [other if is_lost else own for own, other, is_lost in pairs]
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    return AttackScore(attacker, planned.label, planned.is_baseline, means["mse"], means["psnr"], failures)


def _rng(seed: int, purpose: str) -> torch.Generator:
    digest = hashlib.sha256(repr((seed, purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") % _SEEDS)
