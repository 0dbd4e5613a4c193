"""The audit: attacks on releases under defenses, compared with baselines, guarantees and limits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from reconrisk.attacks.knowledge import PublicKnowledge
from reconrisk.attacks.registry import ATTACKS
from reconrisk.core.defense import Defense
from reconrisk.core.digest import identify_settings, short_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.executor import IN_PROCESS, Executor, check_executor
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.progress import CancelToken, ProgressBar
from reconrisk.core.reconstruction import Ending
from reconrisk.core.registry import Choice
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_callable, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.registry import DEFENSES
from reconrisk.studies.audit.conclusion import ContradictedBound, ResultBuilder
from reconrisk.studies.audit.noise_checks import CHECKS_PER_DEFENSE, check_noise, defenses_to_check
from reconrisk.studies.audit.result import AuditResult, NoiseChecks
from reconrisk.studies.audit.store import Store
from reconrisk.studies.common.arguments import (
    Defenses,
    StudyOptions,
    check_goals,
    check_limits,
    check_options,
    label_defenses,
    metrics_for,
    public_records,
    resolve_deferred_defenses,
    seconds_from_budget,
)
from reconrisk.studies.common.experiment import Experiment, report_user_errors
from reconrisk.studies.common.guarantees import GuaranteeFinder, StatedGuarantee
from reconrisk.studies.common.plan import AttackChoice, Plan, omitted_attacks, plan_attacks, time_evaluation
from reconrisk.studies.common.population import draw_population
from reconrisk.studies.common.runs import RunInfo, Trial, TrialKey, current_environment
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, Records, Subject, UpdateRecipe, subject_of


@dataclass(frozen=True, kw_only=True)
class AuditOptions(StudyOptions):
    """Settings of an audit that most calls leave at their defaults.

    Attributes:
        records: Rows of ``data`` that targets are drawn from; by default all of them, or a sample of large data.
        signature: Command or call that repeats the audit, for the report; by default the call of ``rr.audit``.

        seed: Seed of every random choice. The same seed repeats the same trials.
        confidence: Joint confidence of all intervals of the result, in (0, 1).
        public: Public records, none of them a target; by default the records of ``data`` that are not attacked.
        name: Name of the audited model in reports; by default its class.
        show_plan: Function that receives the plan before the first trial; by default it is printed at a terminal.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> AuditOptions(seed=3, records=range(4)).records
    (0, 1, 2, 3)
    """

    records: Sequence[int] | None = None
    signature: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        stated: Any = self.records
        if stated is not None:
            if isinstance(stated, str) or not isinstance(stated, Iterable):
                raise invalid_input("records", stated, "to be rows of data", "Pass [0, 3, 8], for instance.")
            rows = tuple(check_whole("records", row, minimum=0) for row in stated)
            object.__setattr__(self, "records", rows)
        if self.signature is not None and not isinstance(self.signature, str):
            raise invalid_input("signature", self.signature, "to be a text")


DEFAULT_OPTIONS = AuditOptions()


@dataclass(frozen=True)
class TrainingRun:
    """A finished training run of the audited model.

    Attributes:
        mechanism: Privacy mechanism of the whole run, such as ``rr.mechanisms.dp_sgd(...)``. By default the
            mechanism of ``account``.
        account: Fisher account of the run, an ``rr.integrations.FisherAccount``.
        guarantees: Guarantees that the caller states. Each is a function of a goal and the name of a defense in
            reports, which returns a ``Guarantee`` or None.

    Raises:
        InvalidInput: If a value is of the wrong kind.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> TrainingRun(dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=100)).mechanism.steps
    100
    """

    mechanism: Mechanism | None = None
    account: Any = None
    guarantees: Sequence[StatedGuarantee] = ()

    def __post_init__(self) -> None:
        if self.mechanism is not None and not isinstance(self.mechanism, get_args(Mechanism)):
            remedy = "Pass rr.mechanisms.dp_sgd(...) or another mechanism, or rr.TrainingRun(account=...)."
            raise invalid_input("mechanism", self.mechanism, "to be the mechanism of a training run", remedy)
        if self.account is not None and not (hasattr(self.account, "mechanism") and hasattr(self.account, "summary")):
            remedy = "Pass accountant.account() of an rr.integrations.FisherAccountant."
            raise invalid_input("type(account)", type(self.account).__name__, "to be a Fisher account", remedy)
        guarantees: Any = self.guarantees
        if not isinstance(guarantees, Sequence):
            remedy = "Pass a list of functions of a goal and the label of a defense."
            raise invalid_input("guarantees", guarantees, "to be a list of functions", remedy)
        for each in self.guarantees:
            check_callable("guarantees", each, "Pass functions of a goal and the label of a defense.")
        object.__setattr__(self, "guarantees", tuple(self.guarantees))

    @property
    def stated_mechanism(self) -> Mechanism | None:
        """Mechanism of the run as stated, or as recorded by its account."""
        if self.mechanism is None and self.account is not None:
            found: Mechanism = self.account.mechanism()
            return found
        return self.mechanism


def training_run(training: Mechanism | TrainingRun | None) -> TrainingRun:
    """Return the argument ``training`` of an audit as a training run.

    Args:
        training: A run, the mechanism of one, or None if nothing is known about the training.

    Returns:
        The run; an empty one for None.

    Raises:
        InvalidInput: If ``training`` is neither.
    """
    return training if isinstance(training, TrainingRun) else TrainingRun(training)


DEFAULT_TRIALS = {"quick": 16, "thorough": 64}
"""Default number of attacked releases, by portfolio."""


def audit(
    subject: Any,
    data: Records | None = None,
    *,
    threat: ThreatModel | None = None,
    defenses: Defenses = None,
    attacks: str | Sequence[AttackChoice] = "quick",
    goals: Sequence[Goal | str] | Goal | str | None = None,
    max_risk: Sequence[Limit | str] | Limit | str = (),
    budget: float | str | None = "2min",
    trials: int | None = None,
    update: UpdateRecipe = ONE_GRADIENT,
    training: Mechanism | TrainingRun | None = None,
    store: str | Path | None = None,
    executor: Executor = IN_PROCESS,
    options: AuditOptions = DEFAULT_OPTIONS,
) -> AuditResult:
    """Attack the releases of a model under every defense and compare the success with baselines, bounds and limits.

    Each trial draws a target record, makes the release, applies a defense, attacks the result, and scores the
    reconstruction. Every attack meets every defense on the same releases.

    Args:
        subject: A model that clients train, a release, a ``TrainedModelRelease`` or ``ShadowTraining``, or a fitted
            scikit-learn estimator. A trained model has fixed records, known to the adversary, and one unknown record.
        data: Records that targets are drawn from, each equally likely; fixed records are left out. An estimator needs
            all records of its fit: ``(features, labels)`` or ``(features, labels, sample_weight)``. By default the
            records of the release.
        threat: Abilities of the adversary. By default, the adversary sees one update, knows the defense, and may have
            a public generative prior; for a trained model, the adversary sees the model and knows all other records.
        defenses: One defense, a list, or a mapping from names for reports to defenses; None in the list stands for the
            undefended release. By
            default the defense of one step of ``training``, or none.
        attacks: A portfolio, ``"quick"`` or ``"thorough"``, of which the attacks that ``threat`` allows are run, or a
            list of names, pairs of a name and settings, and configured attacks.
        goals: Success criteria such as ``"psnr>=20"``; by default a PSNR of 20 dB, and a mean squared error of 0.05 of
            the squared range. For estimators the default is a PSNR of 20 dB and of 40 dB.
        max_risk: Limits on the success such as ``"psnr>=20: 5%"``; their goals are added to ``goals``.
        budget: Time for the trials: seconds, a text such as ``"2min"``, or None for no limit. Trials that do not fit
            are left out, balanced over attacks and defenses.
        trials: Number of releases that are attacked; by default 16 for ``"quick"`` and 64 for ``"thorough"``.
        update: Training of a client before it sends an update; by default one gradient of one record.
        training: Mechanism of the finished training run, or a ``TrainingRun`` with its Fisher account and guarantees.
        store: SQLite file that keeps the trials. The same call resumes, and more trials add to the stored ones.
        executor: Engine that runs the trials; by default this process.
        options: Seed, confidence, public records, target rows, and names for the report.

    Returns:
        One line per goal and defense, with the estimates, bounds, exposed records and everything a report needs.

    Raises:
        InvalidInput: If an argument is invalid or does not fit the others.
        ContradictedBound: If an attack beats a bound that covers it, or a check contradicts the noise of a defense. It
            carries the result.

    Assumes: the model is in the mode that clients train in. Defenses act on the whole release. An estimator was fitted
    to these records and no others, which is checked as far as its solver's rule allows.
    Guarantee: the same trials for the same seed. Success has intervals that hold for all attacks together. A bound is
    compared with attacks only if it covers ``threat`` and these records. The noise of every defense with a mechanism is
    checked, also by an adversary with a list of candidates, whose bound is compared separately. For a sound mechanism
    and sound code, ContradictedBound is raised with a probability of at most one in a thousand.
    Edge cases: Ctrl-C returns the finished trials. Attacks that do not apply are listed with the reason.
    Reference: empirical success against reconstruction robustness, Section VII, balle2022.

    >>> data = Dataset("toy", torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    >>> result = audit(torch.nn.Linear(4, 2), data, trials=4)
    >>> line = result.lines[0]
    >>> line.best_attack, line.success.value, line.baseline.value
    ('analytic', 1.0, 0.0)
    >>> from sklearn.linear_model import Ridge
    >>> rows, labels = data.inputs.double().numpy(), data.inputs.double().square().sum(1).numpy()
    >>> line = audit(Ridge().fit(rows, labels), (rows, labels), trials=4).lines[0]
    >>> line.best_attack, line.success.value, line.baseline.value
    ('glm', 1.0, 0.0)
    """
    audited, executor = subject_of(subject, data, update), check_executor(executor)
    options, run = check_options(options, AuditOptions), training_run(training)
    public = options.public_dataset()
    limits, stated_threat = check_limits(max_risk), audited.threat(threat)
    audited = audited.seen_by(stated_threat)
    checked = check_goals(audited.default_goals if goals is None else goals, limits, audited.dataset)
    token = CancelToken(seconds_from_budget(budget))  # the budget starts now: planning and proofs count
    mechanism = _training_mechanism(run, audited)
    experiment = _plan_experiment(
        audited,
        stated_threat,
        label_defenses(defenses, mechanism, of_updates=audited.trained_model is None),
        goals=checked,
        attacks=attacks,
        trials=trials,
        records=options.records,
        public=public,
        any_prior=threat is None,
        seed=options.seed,
    )
    recipe = {**vars(update), "public": None if public is None else public.fingerprint}
    portfolio = attacks if isinstance(attacks, str) else None
    info = _run_info(experiment, options.name or audited.name, recipe, portfolio, options)
    finder = GuaranteeFinder.of(audited, experiment.population, stated_threat, tuple(run.guarantees), mechanism)
    claims_noise = any(defense and defense.mechanism for defense in experiment.plan.defenses.values())
    noisy = defenses_to_check(experiment) if claims_noise else ()
    checks = CHECKS_PER_DEFENSE * len(noisy)
    builder = ResultBuilder(
        experiment, info, checked, limits, options.confidence, finder, mechanism, run.account, checks
    )
    with Store.open(store) as opened:
        opened.begin(info)
        _show_plan(str(experiment.plan), options.show_plan)
        builder.find_guarantees()  # before the trials: an error in it must not cost their time
        noise_checks = check_noise(experiment, noisy, builder.alarm_level) if noisy else NoiseChecks()
        found, seconds = _run_trials(experiment, opened, info.run, token, executor)
        result = builder.build(found, seconds, lambda key: opened.estimates(info.run, key), noise_checks)
        opened.finish(info.run, result)
    if result.contradiction_sentences:
        raise ContradictedBound(result)
    return result


def _plan_experiment(
    subject: Subject,
    threat: ThreatModel,
    defenses: Mapping[str, Defense | None],
    *,
    goals: Sequence[Goal],
    attacks: str | Sequence[AttackChoice],
    trials: int | None,
    records: Sequence[int] | None,
    public: Dataset | None,
    any_prior: bool,
    seed: int,
) -> Experiment:
    """Draw the targets, plan the attacks that the threat allows, and time one evaluation."""
    rng, dataset = torch.Generator().manual_seed(seed), subject.dataset
    known = subject.known_records
    population = draw_population(dataset, records, rng, () if known is None else known.among(dataset))
    defenses = resolve_deferred_defenses(defenses, population, public)
    others = public_records(population, public, threat, known)
    # Attacks are configured once for all defenses: a planted layer is sized for the smallest clip norm.
    norms = (getattr(defense, "clip_norm", None) for defense in defenses.values())
    least_clip = min((norm for norm in norms if norm is not None), default=None)
    knowledge = PublicKnowledge(
        dataset.shape,
        subject.recipe.batch_size,
        others,
        dataset.subset(list(population.rows)) if subject.has_candidates else None,
        dataset.columns,
        least_clip if Knows.DEFENSE in threat.knows else None,
        subject.trained_model,
        dataset.data_range,
        others is dataset,
    )
    usual = DEFAULT_TRIALS[attacks if isinstance(attacks, str) and attacks in DEFAULT_TRIALS else "quick"]
    count = usual if trials is None else check_whole("trials", trials)
    updates = population.updates(count, subject.recipe.batch_size, rng)
    planned = plan_attacks(attacks, threat, knowledge, any_prior=any_prior)
    missing = omitted_attacks(attacks, threat, knowledge, any_prior=any_prior)
    plan = Plan(planned, defenses, updates, 0.0, subject.unit, missing)
    experiment = Experiment(plan, subject, population, threat, metrics_for(dataset, goals), seed)
    # The first evaluation also reveals a model that raises, before any trial runs.
    with report_user_errors("a model or release that can be differentiated with respect to the records"):
        first = subject.release(plan.updates[0], plan.attacks[0].attack)
        seconds = time_evaluation(subject, first)
        return replace(experiment, plan=replace(plan, seconds_per_evaluation=seconds))


def _show_plan(plan: str, show_plan: Callable[[str], None] | None) -> None:
    """Pass the plan to the caller's function, or print it if standard error is a terminal."""
    if show_plan is not None:
        show_plan(plan)
    elif sys.stderr.isatty():
        sys.stderr.write(f"{plan}\n")


def _training_mechanism(run: TrainingRun, subject: Subject) -> Mechanism | None:
    """Return the mechanism of the training run: stated, recorded by its account, or known from private training."""
    found = run.stated_mechanism
    subject.check_training(found)
    return subject.training_mechanism if run.mechanism is None and subject.training_mechanism is not None else found


def _run_trials(
    experiment: Experiment, store: Store, run: str, token: CancelToken, executor: Executor
) -> tuple[tuple[Trial, ...], float]:
    """Run the trials that the store lacks, within the budget; return all finished trials and the seconds."""
    wanted = set(experiment.plan.trials())
    # A stored trial counts only if its attack has the same settings and it has the scores of every goal.
    settings = {label: planned.settings for label, planned in experiment.attacks.items()}
    kept = (trial for trial in store.trials(run) if trial.key in wanted)
    done = {
        trial.key: trial
        for trial in kept
        if trial.settings == settings[trial.key.attack] and experiment.is_scored(trial)
    }
    longest: dict[str, float] = {}  # seconds of the longest trial of each attack so far
    bar = ProgressBar("audit", total=experiment.plan.size, at_once=True)

    def remaining() -> Iterator[TrialKey]:
        """Yield trials while the time left is longer than the longest trial of the same attack."""
        for key in experiment.plan.trials():
            if key in done:
                bar.advance()
            elif token.seconds_left <= longest.get(key.attack, 0.0):
                return
            else:
                yield key

    run_trial = partial(_time_trial, experiment)
    try:
        for key, (trial, estimates, seconds) in executor.run(run_trial, remaining(), token=token):
            if trial.account.status.ending is Ending.INTERRUPTED:
                break  # not stored: its estimates depend on the moment of the interruption
            longest[key.attack] = max(longest.get(key.attack, 0.0), seconds)
            store.add(run, trial, estimates)
            done[key] = trial
            bar.advance()
    except KeyboardInterrupt:  # from the user or the token; finished trials are in the store
        pass
    finally:
        bar.close()
    return tuple(done[key] for key in experiment.plan.trials() if key in done), time.monotonic() - token.begun


def _time_trial(experiment: Experiment, key: TrialKey) -> tuple[Trial, Tensor, float]:
    begun = time.monotonic()
    return *experiment.trial(key), time.monotonic() - begun


def _run_info(
    experiment: Experiment,
    subject: str,
    recipe: Mapping[str, object],
    portfolio: str | None,
    options: AuditOptions,
) -> RunInfo:
    """Return the identity of the run: everything that trials depend on except attacks, which each trial records."""
    plan, dataset = experiment.plan, experiment.population.dataset
    model, data = experiment.subject.fingerprint, dataset.fingerprint
    parts = {
        "model": model,
        "update": _first_update_norm(experiment),
        "data": data,
        "rows": short_digest(repr(experiment.population.rows)),  # short: the identity is stored with every run
        "recipe": {name: _describe_setting(value) for name, value in recipe.items() if value is not None},
        "threat": repr(experiment.threat),
        "defenses": {label: identify_settings(defense) for label, defense in plan.defenses.items()},
        "seed": experiment.seed,
        "versions": dict(current_environment().versions),
    }
    call = _repeating_call(experiment, recipe, portfolio, options)
    known = [f"{subject} {model}", f"{dataset.name} {data}"]
    known += [f"{name} {_describe_setting(recipe[name])}" for name in ("public", "loss_fn") if recipe[name] is not None]
    known += [f"{name} as configured in Python" for name in _configured_in_python(experiment, portfolio)]
    signature = options.signature or f"{call}  # {', '.join(known)}"
    return RunInfo.of(parts, subject=subject, data=data, signature=signature)


def _repeating_call(
    experiment: Experiment, recipe: Mapping[str, object], portfolio: str | None, options: AuditOptions
) -> str:
    """Return a call that repeats the trials; model, data, public and loss_fn appear as variables of these names."""
    plan, threat = experiment.plan, experiment.threat
    powers: dict[str, object] = {"sees": threat.sees.value}
    powers["knows"] = sorted(str(power.value) for power in threat.knows)
    powers["controls"] = sorted(str(power.value) for power in threat.controls)
    stated: dict[str, object] = {
        "defenses": list(plan.defenses),
        "attacks": portfolio or [planned.label for planned in plan.attacks if not planned.is_baseline],
        "trials": len(plan.updates),
    }
    rest = "" if recipe["public"] is None else ", public=public"
    rest += "" if options.records is None else f", records={list(options.records)}"
    stated_recipe = {name: value for name, value in recipe.items() if name != "public" and value is not None}
    settings = ", ".join(f"{name}={name if callable(value) else value}" for name, value in stated_recipe.items())
    written = ", ".join(f"{name}={value!r}" for name, value in stated.items())
    # The default recipe is left out.
    written += "" if stated_recipe == {"batch_size": 1} else f", update=rr.UpdateRecipe({settings})"
    written += f", options=rr.AuditOptions(seed={experiment.seed}{rest})"
    adversary = ", ".join(f"{name}={value!r}" for name, value in powers.items())
    if any(experiment.threat_of(each) != threat for each in plan.attacks if not each.is_baseline):
        return f"rr.audit(model, data, {written})"  # a stated threat would leave out the attacks with a public prior
    return f"rr.audit(model, data, threat=rr.ThreatModel({adversary}), {written})"


def _configured_in_python(experiment: Experiment, portfolio: str | None) -> list[str]:
    """Return the attacks and defenses whose labels cannot be passed as texts: the caller must configure them again."""
    plan, found = experiment.plan, list[str]()
    attacks = [] if portfolio else [each.label for each in plan.attacks if not each.is_baseline]
    for labels, registry in ((attacks, ATTACKS), ([each for each in plan.defenses if each != "none"], DEFENSES)):
        for label in labels:
            try:
                is_text = ">>" not in label and Choice.read("label", label).name in registry
            except InvalidInput:
                is_text = False
            found += [] if is_text else [label]
    return found


def _first_update_norm(experiment: Experiment) -> str:
    """Return the norm of the first update, which differs between models whose layers and weights look alike.

    It has four digits, because the last ones depend on the number of threads.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout draws from the global generator
        plan = experiment.plan
        # Baselines come last and plant no layer, so this is the update of the caller's own model.
        update = experiment.subject.release(plan.updates[0], plan.attacks[-1].attack).value()
    return f"{sum(float(value.double().square().sum()) for value in update.values()) ** 0.5:.4g}"


def _describe_setting(value: object) -> str:
    """Return a setting as text that is the same in every process: functions by name and content, not by address."""
    if not callable(value):
        return str(value)
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {short_digest(value)}"
