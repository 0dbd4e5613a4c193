"""Settings shared by the runs of a leakage-utility study, and one run: train, attack, measure."""

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
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.studies.common.defended_release import (
    PRIOR_DRAWS,
    PRIOR_ERROR,
    draw_from_box,
    information_trace,
    is_known_smooth,
    mse_bound_from_traces,
    one_step_utilities,
)
from reconrisk.studies.common.defended_training import TrainingRecipe, fresh_defense, train_defended
from reconrisk.studies.common.experiment import Experiment
from reconrisk.studies.common.plan import AttackChoice, Plan, PlannedAttack, plan_attacks
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.runs import Trial, current_environment
from reconrisk.studies.common.subjects.model_updates import ModelUpdates, require_labels
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reconrisk.studies.tradeoff.result import ATTACKERS, AttackScore, TradeoffCell

_SEEDS = 2**63  # keeps seeds within int64, which torch generators take
_MEASUREMENT_VERSION = "2"  # part of every cell's digest: increase it when a run measures something else than before
# TradeoffResult.is_smooth recognises this note by its first two words
_NOT_SMOOTH_NOTE = (
    "MSE bound? The bound assumes that the gradient is a continuous function of the record, which is not known for "
    "this model; with ReLU or max-pooling the gradient jumps."
)
_BOUND_NOTE = (
    "The MSE bound is an estimate, not a proof: the information is averaged over draws. It is for records drawn from "
    "the smoothest prior on the range of the data, not for the attacked ones. It is 0 without noise, if noise is added "
    "to values that jump, or if private records chose the defense."
)


@dataclass(frozen=True, eq=False)
class Variant:
    """A family of defenses at one strength.

    Attributes:
        family: Name of the family.
        strength: Strength within the family; None for the reference.
        defense: Configured defense; None for the reference without one.
    """

    family: str
    strength: float | None
    defense: Defense | None

    @property
    def label(self) -> str:
        """Family and strength as text."""
        return self.family if self.strength is None else f"{self.family} {self.strength!r}"

    def fresh(self) -> Defense | None:
        """Return the defense in its state at the start of training."""
        return fresh_defense(self.defense)


@dataclass(frozen=True, eq=False)
class Split:
    """Attacked, training and test records of one seed; no record of the data is in two of them."""

    attacked: Dataset
    training: Dataset
    test: Dataset


@dataclass(frozen=True, eq=False)
class TradeoffStudy:
    """Everything that a cell depends on except the defense and the seed.

    Attributes:
        model: Model at the start of training.
        dataset: Records to attack, train and, without ``test``, test on.
        test: Test records; None to split them off.
        test_share: Share of the records that is split off for testing.
        threat: Threat model, apart from knowledge of the defense.
        attacks: Attacks or the name of a portfolio.
        training: Recipe of the training runs.
        loss_fn: Training loss of outputs and labels.
        trials: Number of attacked gradients for each seed.
        attacked_batch_size: Records in an attacked gradient.
        attack_trained: True to attack gradients at the trained model, False at the initial one.
    """

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
        """Raise before any training if the split or an attack would fail after it."""
        split = self.split(seed)
        for attacker in ATTACKERS:
            self.plan_attacks(attacker, split)

    def split(self, seed: int) -> Split:
        """Split the records by the random order of a seed."""
        rows = torch.randperm(len(self.dataset), generator=_rng(seed, "split"))
        attacked, share = self.trials * self.attacked_batch_size, check_probability("test", self.test_share)
        held = 0 if self.test is not None else math.ceil(share * len(rows))
        least = self.training.clients * self.training.batch_size
        if self.test is None and held == 0:
            raise invalid_input(
                "test", self.test_share, "> 0", "Pass the share of records to test on, or test records."
            )
        if attacked + held + least > len(rows):
            condition = f">= {attacked + held + least}: {attacked} attacked, {held} to test on, {least} to train on"
            remedy = "Pass more records, fewer trials, or smaller batches."
            raise invalid_input("number of records", len(rows), condition, remedy)
        test = self.test if self.test is not None else self.dataset.subset(rows[attacked : attacked + held])
        return Split(self.dataset.subset(rows[:attacked]), self.dataset.subset(rows[attacked + held :]), test)

    def plan_attacks(self, attacker: str, split: Split, defense: Defense | None = None) -> tuple[PlannedAttack, ...]:
        """Plan the attacks and baselines of an attacker; the aware one knows the clip norm of the defense."""
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
        return plan_attacks(self.attacks, self.threat_for(attacker), knowledge, any_prior=any_prior)

    def threat_for(self, attacker: str) -> ThreatModel:
        """Return the threat model with or without knowledge of the defense."""
        others = ThreatModel(self.threat.sees, self.threat.knows - {Knows.DEFENSE}, self.threat.controls)
        return others.with_knowledge(Knows.DEFENSE) if attacker == "aware" else others

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
        """Run every attack as each attacker; without a defense both attackers know the same.

        An attacker who knows the defense may ignore it, so the scores of the unaware attacker count for both.
        """
        if variant.defense is None:
            known = self._attack_as("aware", model, variant, split, seed)
            return tuple(
                AttackScore(attacker, each.attack, each.is_guess, each.mse, each.psnr, each.failures)
                for attacker in ATTACKERS
                for each in known
            )
        unaware, aware = (self._attack_as(each, model, variant, split, seed) for each in ATTACKERS)
        ignoring = (
            replace(score, attacker="aware", attack=f"{score.attack}, defense ignored")
            for score in unaware
            if not score.is_guess
        )
        return (*unaware, *aware, *ignoring)

    def _attack_as(
        self, attacker: str, model: nn.Module, variant: Variant, split: Split, seed: int
    ) -> list[AttackScore]:
        updates, label = self._updates(split.attacked), variant.label
        defense = variant.fresh()
        # 0 seconds per evaluation: only audits show the expected time of a plan
        plan = Plan(self.plan_attacks(attacker, split, defense), {label: defense}, updates, 0.0)
        population = Population(split.attacked, tuple(range(len(split.attacked))))
        metrics = (mse(), psnr(data_range=self.dataset.data_range))
        subject = ModelUpdates(model, split.attacked, UpdateRecipe(self.attacked_batch_size, self.loss_fn))
        experiment = Experiment(plan, subject, population, self.threat_for(attacker), metrics, seed)
        found: dict[str, list[Trial]] = {planned.label: [] for planned in plan.attacks}
        for key in plan.trials():
            trial, _ = experiment.trial(key)
            if trial.account.status.ending is Ending.INTERRUPTED:  # end the whole run: a partial cell is useless
                raise KeyboardInterrupt
            found[key.attack].append(trial)
        guess = next(planned.label for planned in plan.attacks if planned.is_baseline)
        return [
            _mean_score(attacker, planned, found[planned.label], found[guess])
            for planned in plan.attacks
            if any(trial.account.status.ending is not Ending.NOT_APPLICABLE for trial in found[planned.label])
        ]

    def _utilities(self, model: nn.Module, variant: Variant, split: Split, seed: int) -> tuple[float, float]:
        """Return the one-step utilities U1 and U2, averaged over the attacked gradients."""
        defense, rng, found = variant.fresh(), _rng(seed, "utility"), list[tuple[float, float]]()
        for rows in self._updates(split.attacked):
            release = self._release(model, split.attacked, rows)
            chosen = None if defense is None else resolve_defense(defense, release)
            found.append(one_step_utilities(release.value(), chosen, rng=rng))
        return statistics.fmean(u1 for u1, _ in found), statistics.fmean(u2 for _, u2 in found)

    def _information(self, model: nn.Module, variant: Variant, split: Split, seed: int) -> tuple[float, float]:
        """Return the mean Fisher trace at the attacked records, and the bound from traces at draws of the prior."""
        if variant.defense is None:  # without noise the information is infinite and the bound trivial
            return math.inf, 0.0
        defense, rng = variant.fresh(), _rng(seed, "information")
        releases = [self._release(model, split.attacked, rows) for rows in self._updates(split.attacked)]
        traces = torch.cat([information_trace(each, defense, rng=rng) for each in releases])
        mean = float(traces.double().mean())
        if not math.isfinite(mean):
            return math.inf, 0.0
        data_range, drawn = self.dataset.data_range, []
        for place in range(PRIOR_DRAWS):  # draws take shape and labels from the attacked updates in turn
            like = releases[place % len(releases)]
            inputs = draw_from_box(like.inputs, data_range, rng=rng)
            release = GradientRelease(model, self.loss_fn, inputs, like.labels)
            traces = information_trace(release, defense, relative_error=PRIOR_ERROR, rng=rng)
            drawn.append(traces.mean())  # one value per update: records of one update are not independent
        dimension = releases[0].inputs[0].numel()
        return mean, mse_bound_from_traces(torch.stack(drawn), dimension=dimension, data_range=data_range).low

    def _release(self, model: nn.Module, records: Dataset, rows: Sequence[int]) -> GradientRelease:
        batch = records.subset(list(rows))
        if batch.labels is None:
            raise invalid_input("data", records.name, "to have labels", "Pass records with labels.")
        return GradientRelease(model, self.loss_fn, batch.inputs, batch.labels)

    def notes(self) -> tuple[str, ...]:
        """Return the notes under the table."""
        where = "trained" if self.attack_trained else "initial"
        size = self.attacked_batch_size
        attacked = (
            f"Attacked: {_count_noun(self.trials, 'gradient')} of {_count_noun(size, 'record')} at the {where} model "
            "for each seed. Baselines and priors use the training records."
        )
        first = self.dataset.subset(range(min(len(self.dataset), max(2, size))))
        is_smooth = is_known_smooth(self.model, self.loss_fn, first.inputs, require_labels(first))
        return (attacked, _BOUND_NOTE, *(() if is_smooth else (_NOT_SMOOTH_NOTE,)))

    def signature(self, variants: Sequence[Variant], seeds: range, *, name: str | None = None) -> str:
        """Return the call in one line; families list strengths in place of defenses, ``name`` is that of the model."""
        recipe = ", ".join(f"{field}={value!r}" for field, value in vars(self.training).items() if value is not None)
        attacks = self.attacks if isinstance(self.attacks, str) else [str(each) for each in self.attacks]
        written = f"training=rr.TrainingRecipe({recipe}), "
        size = self.attacked_batch_size
        written += f"update=rr.UpdateRecipe(batch_size={size}), " if size > 1 else ""
        options = f"seed={seeds[0]!r}, repeat={len(seeds)!r}, attack_trained={self.attack_trained!r}"
        written += f"trials={self.trials!r}, options=rr.TradeoffOptions({options})"
        families: dict[str, list[float | None]] = {}
        for variant in variants[1:]:
            families.setdefault(variant.family, []).append(variant.strength)
        model = f"{name or type(self.model).__name__} {self._digests['model']}"
        subject = f"{model}, {self.dataset.name} {self._digests['data']}"
        return f"rr.tradeoff(model, data, {families}, {attacks!r}, {written})  # {subject}"

    def cell_digest(self, variant: Variant, seed: int) -> str:
        """Return the digest of everything that a cell depends on."""
        own = {"label": variant.label, "defense": variant.fresh(), "seed": seed}
        return short_digest(sorted({**self._shared_settings, **own}.items()))

    @cached_property
    def _digests(self) -> dict[str, str]:
        """Digests of model and data."""
        return {"model": network_digest(self.model), "data": self.dataset.fingerprint}

    @cached_property
    def _shared_settings(self) -> dict[str, str]:
        """Settings that all cells of this study share, as text."""
        return {
            **self._digests,
            "test": "" if self.test is None else self.test.fingerprint,
            "test_share": repr(self.test_share),
            "threat": repr(self.threat),
            "attacks": identify_settings(self.attacks),
            "training": repr(self.training),
            "loss": content_digest(self.loss_fn),
            "attacked": repr((self.trials, self.attacked_batch_size, self.attack_trained)),
            "columns": repr(self.dataset.columns),
            "measured": _MEASUREMENT_VERSION,
            "versions": repr(current_environment().versions),
        }


def _count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _mean_score(
    attacker: str, planned: PlannedAttack, trials: Sequence[Trial], guesses: Sequence[Trial]
) -> AttackScore:
    """Return mean scores over records; a baseline replaces the estimates of failed attacks."""
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
    """Return a generator for one purpose: independent streams, so that a change in one part shifts no other."""
    digest = hashlib.sha256(repr((seed, purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") % _SEEDS)
