"""The audit: attacks on updates under defenses, beside guesses, guarantees and limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from reconrisk.audit.audit_result import AuditResult
from reconrisk.audit.beliefs import Beliefs
from reconrisk.audit.conclusion import Conclusion, ContradictedBound
from reconrisk.audit.deadline import Deadline, seconds_from_budget
from reconrisk.audit.experiment import Experiment
from reconrisk.audit.fingerprint import environment, hash_of_data
from reconrisk.audit.goals import checked_goals, checked_limits, metrics_for
from reconrisk.audit.guarantees import StatedGuarantee
from reconrisk.audit.plan import UNDEFENDED, AttackChoice, Plan, Sender, planned_attacks, seconds_of_an_evaluation
from reconrisk.audit.population import Population, population_of
from reconrisk.audit.run_info import RunInfo, hash_of_text
from reconrisk.audit.store import Store
from reconrisk.audit.trial import Trial, TrialKey
from reconrisk.core.defense import Defense
from reconrisk.core.goal import Goal, Limit
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import check_probability, check_whole, refuse
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.defenses.by_name import defense_of_one_step
from reconrisk.releases.release import Release
from reconrisk.releases.state import LossFunction

DEFAULT_THREAT = ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.DEFENSE}))
"""Whoever reads one update and knows how it was defended: secrecy of the defense protects nobody for long."""

DEFAULT_TRIALS = {"quick": 16, "thorough": 64}

Records = Dataset | str | Path | tuple[Tensor, Tensor]
Defenses = Defense | Sequence[Defense | None] | Mapping[str, Defense | None] | None


def audit(
    subject: nn.Module | Release,
    data: Records | None = None,
    *,
    threat: ThreatModel = DEFAULT_THREAT,
    defenses: Defenses = None,
    attacks: str | Sequence[AttackChoice] = "quick",
    goals: Sequence[Goal | str] | None = None,
    max_risk: Sequence[Limit | str] | Limit | str = (),
    budget: float | str | None = "2min",
    trials: int | None = None,
    records: Sequence[int] | None = None,
    batch_size: int = 1,
    local_steps: int | None = None,
    local_learning_rate: float | None = None,
    loss_fn: LossFunction | None = None,
    public: Dataset | None = None,
    guarantees: Sequence[StatedGuarantee] = (),
    training: Mechanism | None = None,
    account: object | None = None,
    confidence: float = 0.95,
    store: str | Path | None = None,
    seed: int = 0,
    name: str | None = None,
    signature: str | None = None,
    show_plan: Callable[[str], None] | None = None,
) -> AuditResult:
    """Attack the updates of a model under every defense, and put what came back beside what can be proved.

    ``subject`` is a model that clients train on ``data`` (its gradient is released, or the change by ``local_steps`` of
    SGD), or a release, which is made again for other records. Targets are drawn from ``data``, or from the rows
    ``records`` of it, each equally likely. ``attacks`` are a portfolio, ``"quick"`` or ``"thorough"``, from which those
    are taken that ``threat`` allows, or a list of names, pairs of a name and settings, and configured attacks.
    ``trials`` is the number of updates, each attacked by every attack under every defense; what the ``budget`` of time
    does not allow is left out, balanced over attacks and defenses. With a ``store``, the same call goes on where an
    earlier one ended, and more trials add to those that are there. ``training`` is the mechanism of a finished run,
    ``account`` its Fisher account; without ``defenses``, the update is then that of one step of it. ``name`` is what
    the report calls the subject. ``show_plan`` is called with the plan before anything starts.

    Assumes: the model is in the mode that clients train in. Defenses act on the whole update.
    Guarantee: the same trials for the same seed. Success has intervals that hold for all attacks together. A bound is
    compared with attacks only if it covers ``threat`` and these records; an attack that beats such a bound raises
    ContradictedBound with both numbers, except with a probability of one in a thousand.
    Edge cases: Ctrl-C returns what is done. Attacks that do not apply are listed with the reason.
    Reference: empirical success against reconstruction robustness, Section VII, balle2022.

    >>> data = Dataset("toy", torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    >>> result = audit(nn.Linear(4, 2), data, trials=4)
    >>> line = result.lines[0]
    >>> line.best_attack, line.success.value, line.baseline.value
    ('analytic', 1.0, 0.0)
    """
    limits, dataset = checked_limits(max_risk), _dataset(subject, data)
    stated = checked_goals(goals, limits, dataset)
    if not 0 < check_probability("confidence", confidence) < 1:
        raise refuse("confidence", confidence, "in (0, 1)", "0.95 is usual.")
    deadline = Deadline(seconds_from_budget(budget))
    rng = torch.Generator().manual_seed(check_whole("seed", seed, minimum=0))
    population = population_of(dataset, records, rng)
    options = {"loss_fn": loss_fn, "steps": local_steps, "learning_rate": local_learning_rate}
    sender = Sender(subject, None) if isinstance(subject, Release) else Sender(None, subject, options)
    defended = _labelled(defenses, training)
    clips = [norm for norm in (getattr(each, "clip_norm", None) for each in defended.values()) if norm is not None]
    beliefs = Beliefs(
        dataset.shape,
        check_whole("batch_size", batch_size),
        _public(population, public),
        dataset.subset(list(population.rows)),
        dataset.columns,
        min(clips, default=None),
    )
    count = check_whole("trials", trials) if trials is not None else DEFAULT_TRIALS.get(str(attacks), 16)
    plan = Plan(planned_attacks(attacks, threat, beliefs), defended, population.updates(count, batch_size, rng), 0.0)
    experiment = Experiment(plan, sender, population, threat, metrics_for(dataset), seed)
    first = experiment.release_of(plan.attacks[0], plan.updates[0])
    experiment = replace(experiment, plan=replace(plan, seconds_per_evaluation=seconds_of_an_evaluation(first)))
    if show_plan is not None:
        show_plan(str(experiment.plan))
    stated_too = {**options, "public": None if public is None else hash_of_data(public)}
    info = _info(experiment, name or type(subject).__name__, batch_size, stated_too, signature)
    with Store.open(store) as opened:
        opened.begin(info)
        found, seconds = _run(experiment, opened, info.run, deadline)
        conclusion = Conclusion(experiment, info, stated, limits, confidence, tuple(guarantees), training, account)
        result = conclusion.result(found, seconds, lambda key: opened.estimates(info.run, key))
        opened.finish(info.run, result)
    if result.contradictions:
        raise ContradictedBound(result)
    return result


def _run(experiment: Experiment, store: Store, run: str, deadline: Deadline) -> tuple[tuple[Trial, ...], float]:
    """All trials: those in the store, and those that time allows."""
    wanted = set(experiment.plan.trials())
    settings = {label: planned.settings for label, planned in experiment.attacks.items()}
    kept = (trial for trial in store.trials(run) if trial.key in wanted)
    done = {trial.key: trial for trial in kept if trial.settings == settings[trial.key.attack]}
    longest: dict[str, float] = {}
    bar = ProgressBar("audit", total=experiment.plan.size, at_once=True)
    try:
        for key in experiment.plan.trials():
            if key in done or _is_hopeless(key, done):
                bar.advance()
                continue
            if deadline.left <= longest.get(key.attack, 0.0):
                break
            begun = time.monotonic()
            with deadline.watching():
                trial, estimates = experiment.trial(key)
            if trial.account.status.ending is Ending.INTERRUPTED:
                break
            longest[key.attack] = max(longest.get(key.attack, 0.0), time.monotonic() - begun)
            store.add(run, trial, estimates)
            done[key] = trial
            bar.advance()
    except KeyboardInterrupt:  # of the user or the deadline: what is done is in the store
        pass
    finally:
        bar.close()
    return tuple(done[key] for key in experiment.plan.trials() if key in done), time.monotonic() - deadline.begun


def _is_hopeless(key: TrialKey, done: Mapping[TrialKey, Trial]) -> bool:
    """Whether the attack did not apply to the first two updates: it will not to others."""
    first = [done.get(replace(key, draw=draw)) for draw in (0, 1)]
    return key.draw > 1 and all(
        trial is not None and trial.account.status.ending is Ending.NOT_APPLICABLE for trial in first
    )


def _dataset(subject: object, data: Records | None) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (str, Path)):
        return load_dataset(data)
    if data is None:
        if not isinstance(subject, Release):
            raise refuse("data", None, "to hold the records that are attacked", "Pass a Dataset, or a name.")
        labels = subject.labels if subject.labels.dtype == torch.int64 else subject.labels.float()
        return Dataset("records of the release", subject.inputs.detach().float(), labels)
    inputs, labels = data
    return Dataset("records", inputs.detach().float(), labels)


def _labelled(defenses: Defenses, training: Mechanism | None) -> dict[str, Defense | None]:
    """Defenses by label; where none was stated, that of one step of the training, else the update as it is."""
    if defenses is None:
        step = None if training is None else defense_of_one_step(training)
        return {UNDEFENDED if step is None else str(step): step}
    if isinstance(defenses, Mapping):
        found = dict(defenses)
    else:
        several = defenses if isinstance(defenses, Sequence) else (defenses,)
        found = {UNDEFENDED if defense is None else str(defense): defense for defense in several}
        if len(found) < len(several):
            raise refuse("defenses", [str(each) for each in several], "to differ")
    if not found:
        raise refuse("defenses", defenses, "to hold at least one", "Leave them out for the update as it is.")
    return found


def _public(population: Population, public: Dataset | None) -> Dataset | None:
    """Records that no target is drawn from, else the population: what people are like is no secret."""
    if public is not None:
        return public
    dataset = population.dataset
    others = sorted(set(range(len(dataset))) - set(population.rows))
    return dataset.subset(others) if others else dataset


def _info(
    experiment: Experiment, subject: str, batch_size: int, options: Mapping[str, object], signature: str | None
) -> RunInfo:
    """What a run is told from others by: all that its trials depend on but attacks, which trials name themselves."""
    plan, dataset = experiment.plan, experiment.population.dataset
    model, data = experiment.sender.fingerprint, hash_of_data(dataset)
    parts = {
        "model": model,
        "data": data,
        "rows": hash_of_text(repr(experiment.population.rows)),
        "batch_size": batch_size,
        "client": {name: _in_words(value) for name, value in options.items() if value is not None},
        "threat": repr(experiment.threat),
        "defenses": {label: repr(defense) for label, defense in plan.defenses.items()},
        "seed": experiment.seed,
        "versions": dict(environment().versions),
    }
    stated = {"attacks": [planned.label for planned in plan.attacks if not planned.is_baseline]}
    settings: dict[str, object] = {**stated, "trials": len(plan.updates), **parts}
    written = ", ".join(f"{name}={value!r}" for name, value in settings.items() if name not in ("model", "data"))
    said = signature or f"rr.audit({subject} {model}, {dataset.name} {data}, {written})"
    return RunInfo.of(parts, subject=subject, data=data, signature=said)


def _in_words(value: object) -> str:
    """A setting as text that is the same in every process: functions by name and code, not by address."""
    code = getattr(value, "__code__", None)
    if code is None:
        return str(value)
    constants = [each for each in code.co_consts if not isinstance(each, type(code))]
    return f"{getattr(value, '__qualname__', '')} {hash_of_text(repr((code.co_code, code.co_names, constants)))}"
