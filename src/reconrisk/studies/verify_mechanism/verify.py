"""Verify that a training adds the noise that it claims."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reconrisk.attacks.informed.match_candidates import DpSgdSettings
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, Mechanism, Neighbouring
from reconrisk.core.progress import track
from reconrisk.core.validation import check_all_finite, check_probability, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.deferred import needs_public_records, set_public_records
from reconrisk.integrations.opacus.repeated_steps import RepeatedSteps, is_private_optimizer
from reconrisk.integrations.opacus.step import plain_copy
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.studies.common.subjects.model_updates import training_loss
from reconrisk.studies.common.subjects.subject import as_dataset
from reconrisk.studies.verify_mechanism import evidence as tests
from reconrisk.studies.verify_mechanism.claims import gaussian_of_one_release
from reconrisk.studies.verify_mechanism.conclusion import Rules, conclude, conclude_trainings, missing_evidence
from reconrisk.studies.verify_mechanism.evidence import Evidence, Plan
from reconrisk.studies.verify_mechanism.iterates import FinishedRun
from reconrisk.studies.verify_mechanism.result import MechanismVerdict
from reconrisk.studies.verify_mechanism.sources import UNTESTED_BITS, DefenseSource, RecordSource, ReleaseSource, Step
from reconrisk.studies.verify_mechanism.trainings import TrainingAudit

Array = NDArray[np.float64]

_DEFAULT_VALUES = 10_000  # of the update of a defense if none is given
_GROWTH = 1.2  # between two looks at the intervals, which take longer than the evidence
_STOPPINGS = ("anytime", "fixed")
_RELEASES = 2000
_TRAININGS = 100


def verify_mechanism(
    subject: Any,
    data: Any = None,
    *,
    claimed: Mechanism | DpSgdSettings | None = None,
    model: nn.Module | None = None,
    loss_fn: LossFunction | None = None,
    canary: tuple[Tensor, Tensor] | None = None,
    releases: int | None = None,
    level: float = 0.001,
    smallest_ratio: float = 0.9,
    stopping: str = "anytime",
    delta: float = 1e-5,
    rng: torch.Generator,
) -> MechanismVerdict:
    r"""Verify that a training adds the noise that it claims.

    The subject is one of these:

    ====================================  ==========================================================================
    defense                               ``data`` is an update by name, or records for ``model``; by default random
    optimizer of Opacus                   ``model`` as ``make_private`` returned it, ``data`` are records
    ``step(records, labels)``             returns a new noisy sum of clipped gradients by name, always from the same
                                          weights; multiply a mean by its divisor
    iterates of a finished DP-SGD run     parameters before the first and after each step; ``data`` are all its records,
                                          ``claimed`` are its ``rr.attacks.DpSgdSettings``
    ``train(records, labels)``            returns a trained model; one canary takes part in each of many trainings by a
                                          fair coin, or many canaries in one training
    ====================================  ==========================================================================

    Each test gives evidence against the claim (an e-value): noise scale, noise of each parameter and along the
    gradient, re-used noise, contribution of a canary in units of the noise, accuracy of guesses about the canary,
    identification among candidates. Their weighted mean contradicts the claim when it reaches 1 / ``level``.

    Args:
        subject: The mechanism under test.
        data: Records and labels, a data set, a data loader, or the update of a defense.
        claimed: The claimed mechanism; None for that of the defense or of the optimizer.
        model: Model at the weights of the step. For a step function it is optional: with it, means are computed.
        loss_fn: Training loss of a batch; None for the usual loss of the labels.
        canary: Record and label, each with a batch dimension. For ``train`` also many. None to choose one.
        releases: Largest number of releases, or trainings; the exact number if ``stopping`` is "fixed". None for 2000
            releases, 100 trainings with one canary, or one training with many.
        level: Largest probability of contradicting a true claim.
        smallest_ratio: Share of the claimed noise that the interval must exclude before the verdict is "consistent".
        stopping: "anytime" to stop as soon as the verdict is known, "fixed" for a number of releases that was fixed
            before the first one.
        delta: Delta at which epsilons are reported.
        rng: Source of the audit's coins. Only a defense takes its noise from it too.

    Returns:
        The verdict with every test, the noise ratio, and bounds on epsilon.

    Raises:
        InvalidInput: If nothing is claimed, the subject is of another kind, or a release is not finite.

    Assumes: new releases of the same records have the same mean. The noise is Gaussian and has equal scale on all
    values, in units of the claim.
    Guarantee: a true claim is contradicted with probability at most ``level``, at any stopping time. More noise than
    claimed, on all values alike, is never a contradiction. Noise that is not Gaussian, that depends on the records, or
    whose values depend on each other, is not called consistent if these releases show it.
    Edge cases: final models can only contradict a claim, since a weak attack proves nothing. Ctrl-C returns the verdict
    on the releases so far; before the first one it passes through. An Opacus optimizer and its model are restored.
    Reference: Ville's inequality for e-processes; Mahloujifar, Melis and Chaudhuri (2024) for many canaries.

    >>> from reconrisk.defenses.noise import clip_and_noise
    >>> sound = clip_and_noise(noise_multiplier=2.0, clip_norm=1.0)
    >>> verify_mechanism(sound, rng=torch.Generator().manual_seed(0)).verdict.value
    'consistent'
    >>> claim = Gaussian(noise_multiplier=4.0, clip_norm=1.0)
    >>> found = verify_mechanism(sound, claimed=claim, releases=1, rng=torch.Generator().manual_seed(0))
    >>> found.verdict.value, round(found.noise_ratio, 1)
    ('contradicted', 0.5)
    """
    rules = _check_rules(_RELEASES if releases is None else releases, level, smallest_ratio, stopping, delta, rng)
    if is_private_optimizer(subject):
        return _verify_optimizer(subject, data, claimed, model, loss_fn, canary, rules)
    if hasattr(subject, "mechanism") and callable(subject):
        source = DefenseSource(*_defense_and_update(subject, data, model, loss_fn, rng), _mechanism(claimed), rng)
        return _verify_source(source, rules)
    if isinstance(subject, Sequence) and not isinstance(subject, str):
        return _verify_iterates(subject, data, claimed, model, loss_fn, rules)
    if callable(subject):
        return _verify_function(subject, data, claimed, model, loss_fn, canary, rules, is_default=releases is None)
    remedy = "Pass a defense, an Opacus optimizer, a step function, iterates of a run, or a training function."
    raise invalid_input("type(subject)", type(subject).__name__, "to be a mechanism under test", remedy)


def _check_rules(releases: int, level: float, smallest_ratio: float, stopping: str, delta: float, rng: object) -> Rules:
    check_whole("releases", releases)
    for name, value in (("level", level), ("smallest_ratio", smallest_ratio), ("delta", delta)):
        if not 0 < check_probability(name, value) < 1:
            raise invalid_input(name, value, "in (0, 1)")
    if stopping not in _STOPPINGS:
        raise invalid_input("stopping", stopping, "to be 'anytime' or 'fixed'")
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    return Rules(releases, level, smallest_ratio, stopping, delta, rng)


def _mechanism(claimed: object) -> Mechanism | None:
    if isinstance(claimed, DpSgdSettings):
        remedy = "Pass rr.mechanisms.dp_sgd(...). DpSgdSettings describe a finished run with its iterates."
        raise invalid_input("type(claimed)", "DpSgdSettings", "to be a mechanism", remedy)
    return cast("Mechanism | None", claimed)


def _required_mechanism(claimed: object) -> Mechanism:
    found = _mechanism(claimed)
    if found is None:
        remedy = "Pass claimed=rr.mechanisms.dp_sgd(noise_multiplier=..., clip_norm=...)."
        raise invalid_input("claimed", None, "to be a mechanism", remedy)
    if getattr(found, "neighbouring", Neighbouring.ADD_OR_REMOVE) is not Neighbouring.ADD_OR_REMOVE:
        remedy = "Canaries are added or removed; a claim about a replaced record does not cover that."
        raise invalid_input("claimed", found, "to hold for a record that is added or removed", remedy)
    return found


def _read_records(data: Any) -> tuple[Tensor, Tensor]:
    """Return records and labels of a pair, a data set, or the first batch of a loader."""
    if isinstance(data, torch.utils.data.DataLoader):
        data = next((tuple(batch) for batch in data if len(batch[0]) > 1), None)
    if not (isinstance(data, tuple) and len(data) == 2 and all(isinstance(each, Tensor) for each in data)):
        dataset = as_dataset(data)
        if dataset.labels is None:
            raise InvalidInput("Expected records with labels. Pass (inputs, labels).")
        data = (dataset.inputs, dataset.labels)
    inputs, labels = data
    if len(inputs) != len(labels):
        raise invalid_input("len(labels)", len(labels), f"to be {len(inputs)}, the number of records")
    check_all_finite("records", inputs)
    return inputs, labels


def _loss(loss_fn: LossFunction | None, model: nn.Module, records: tuple[Tensor, Tensor]) -> LossFunction:
    if loss_fn is not None:
        return loss_fn
    inputs, labels = records
    low, high = float(inputs.min()), float(inputs.max())
    return training_loss(model, Dataset("records", inputs, labels, data_range=(low, max(high, low + 1))))


def _defense_and_update(
    defense: Any, data: Any, model: nn.Module | None, loss_fn: LossFunction | None, rng: torch.Generator
) -> tuple[Any, Mapping[str, Tensor]]:
    if model is not None:
        inputs, labels = _read_records(data)
        quiet = copy.deepcopy(model).eval()
        release = GradientRelease(quiet, _loss(loss_fn, quiet, (inputs, labels)), inputs[:1], labels[:1])
        if needs_public_records(defense):
            defense = set_public_records(defense, inputs[1:], labels[1:])
        return resolve_defense(defense, release), release.value()
    if data is None:
        return defense, {"update": torch.randn(_DEFAULT_VALUES, generator=rng)}
    if not isinstance(data, Mapping):
        remedy = "Pass an update {name: tensor}, or records together with model=."
        raise invalid_input("type(data)", type(data).__name__, "to be the update of the defense", remedy)
    return defense, data


def _verify_optimizer(
    optimizer: Any,
    data: Any,
    claimed: Mechanism | DpSgdSettings | None,
    model: nn.Module | None,
    loss_fn: LossFunction | None,
    canary: tuple[Tensor, Tensor] | None,
    rules: Rules,
) -> MechanismVerdict:
    if model is None:
        raise invalid_input("model", None, "to be the trained model", "Pass the model that make_private returned.")
    records, plain = _read_records(data), plain_copy(model).eval()
    loss = _loss(loss_fn, plain, records)
    mechanism = _mechanism(claimed) or Gaussian(float(optimizer.noise_multiplier), float(optimizer.max_grad_norm))
    # noise that differs between parameters, as with_optimal_noise adds it, in the size that is claimed
    stds = getattr(optimizer, "noise_std", None)
    if stds is not None:
        factor = gaussian_of_one_release(mechanism).noise_std / (optimizer.noise_multiplier * optimizer.max_grad_norm)
        stds = {name: factor * value for name, value in stds.items()}
    with RepeatedSteps(optimizer, model, loss) as steps:
        name = f"{type(optimizer).__name__} of Opacus"
        source = RecordSource(
            steps.noisy_sum, records, mechanism, name=name, model=plain, loss_fn=loss, canary=canary, stds=stds
        )
        return _verify_source(source, rules)


def _verify_function(
    function: Callable[[Tensor, Tensor], Any],
    data: Any,
    claimed: Mechanism | DpSgdSettings | None,
    model: nn.Module | None,
    loss_fn: LossFunction | None,
    canary: tuple[Tensor, Tensor] | None,
    rules: Rules,
    *,
    is_default: bool,
) -> MechanismVerdict:
    """Verify a step function or a training function; the type of the first result tells them apart."""
    mechanism, records = _required_mechanism(claimed), _read_records(data)
    if len(records[0]) < 2:
        raise invalid_input("number of records", len(records[0]), ">= 2", "One is the canary, the others surround it.")
    others, chosen = records, canary
    if chosen is None:
        others, chosen = (records[0][:-1], records[1][:-1]), (records[0][-1:], records[1][-1:])
    coins = torch.rand(len(chosen[0]), generator=rules.rng) < 0.5
    batch = tuple(torch.cat([some, more[coins]]) for some, more in zip(others, chosen, strict=True))
    first = function(batch[0], batch[1])
    if isinstance(first, nn.Module):
        loss = _loss(loss_fn, copy.deepcopy(first).eval(), records)
        if is_default:
            rules = replace(rules, releases=_TRAININGS if len(coins) == 1 else 1)
        audit = TrainingAudit(others, chosen, mechanism, loss, rules.rng, fixed=rules.fixed, alpha=rules.alpha)
        return _verify_trainings(audit, function, (coins, first), rules)
    plain = None if model is None else copy.deepcopy(model).eval()
    step: Step = function
    source = RecordSource(
        step,
        records,
        mechanism,
        name=getattr(function, "__name__", type(function).__name__),
        model=plain,
        loss_fn=None if plain is None else _loss(loss_fn, plain, records),
        canary=canary,
    )
    return _verify_source(source, rules)


def _verify_source(source: ReleaseSource, rules: Rules) -> MechanismVerdict:
    """Verify a mechanism that can be run again and again."""
    plan = Plan(
        blocks=source.blocks,
        size=source.size,
        shift=source.shift,
        multiple=source.multiple,
        candidates=source.candidates,
        has_mean=source.has_mean,
        repeats=True,
        fixed=rules.fixed,
        alpha=rules.alpha,
    )
    found = Evidence(plan, _mean_difference(source, (0,), ()), _mean_difference(source, source.far, source.near))
    was_interrupted = _collect(found, _take_rounds(source, found, rules.rng), rules)
    return conclude(found, source.name, source.claimed, source.assumptions, rules, was_interrupted)


def _collect(found: Evidence, turns: Iterator[None], rules: Rules) -> bool:
    """Take releases until the verdict is known or their number is reached; return True after Ctrl-C."""
    look = 2.0
    try:
        for _ in track(turns, "Verify mechanism", total=rules.releases):
            if found.releases >= rules.releases:
                break
            if rules.fixed:
                continue
            if found.combined() >= rules.needed:
                break
            # a finished run has no more releases to save, so all of them narrow its interval
            if found.plan.repeats and found.releases >= look and found.is_round_complete:
                look = found.releases * _GROWTH
                if not missing_evidence(found, rules):
                    break
    except KeyboardInterrupt:
        if found.releases == 0:
            raise
        return True
    return False


def _mean_difference(source: ReleaseSource, more: tuple[int, ...], less: tuple[int, ...]) -> Array | None:
    first, second = source.mean(more), source.mean(less)
    return None if first is None or second is None else first - second


def _take_rounds(source: ReleaseSource, found: Evidence, rng: torch.Generator) -> Iterator[None]:
    """Take releases in rounds: with and without the canary in random order, one far from them, one of a candidate."""
    identifies = tests.IDENTIFICATION in found.plan.tests()
    means = {added: source.mean(added) for added in ((), (0,), source.far)}
    without, present = means[()], means[(0,)]
    center = None if without is None or present is None else (without + present) / 2
    while True:
        first, coin = (torch.rand(2, generator=rng) < 0.5).tolist()
        taken: dict[tuple[int, ...], Array] = {}
        for added in ((0,), ()) if first else ((), (0,)):
            taken[added] = values = source.release(added)
            if len(taken) == 1:  # the second release of a round has no secret left
                found.guess_canary(values, center=center, is_present=first, coin=coin)
            found.add_release(values, arm=len(added), mean=means[added])
            yield
        values = source.release(source.far)
        found.add_release(values, arm=2, mean=means[source.far])
        found.add_difference(values - taken[source.near])
        if not identifies:
            found.end_round()
        yield
        if identifies:
            _identify_candidate(source, found, rng)
            found.end_round()
            yield


def _identify_candidate(source: ReleaseSource, found: Evidence, rng: torch.Generator) -> None:
    """Release one of the candidates and name the most likely one."""
    chosen = int(torch.randint(source.candidates, (1,), generator=rng))
    values = source.release((chosen,))
    distances = []
    for place in range(source.candidates):
        mean = source.mean((place,))
        if mean is None:
            raise InvalidInput("Expected a known mean of every candidate. Pass the model.")  # pragma: no cover
        distances.append(float(np.square(values - mean).sum()))
    found.add_identification(int(np.argmin(distances)) == chosen)
    found.add_release(values, arm=None, mean=source.mean((chosen,)))


def _verify_iterates(
    iterates: Sequence[Mapping[str, Tensor]],
    data: Any,
    claimed: Mechanism | DpSgdSettings | None,
    model: nn.Module | None,
    loss_fn: LossFunction | None,
    rules: Rules,
) -> MechanismVerdict:
    if not isinstance(claimed, DpSgdSettings):
        remedy = "Pass claimed=rr.attacks.DpSgdSettings(learning_rate=..., clip_norm=..., noise_multiplier=...)."
        raise invalid_input("type(claimed)", type(claimed).__name__, "to be DpSgdSettings for a finished run", remedy)
    if model is None:
        raise invalid_input("model", None, "to be the trained model", "Pass model=: its gradients are needed.")
    records, plain = _read_records(data), plain_copy(model).eval()
    run = FinishedRun(plain, _loss(loss_fn, plain, records), iterates, records, claimed)
    plan = Plan(
        blocks=run.blocks,
        size=run.size,
        shift=1 / claimed.noise_multiplier,
        multiple=1,
        candidates=1,
        has_mean=True,
        repeats=False,
        fixed=rules.fixed,
        alpha=rules.alpha,
    )
    found = Evidence(plan)

    def turns() -> Iterator[None]:
        for values, mean in run.releases():
            found.set_direction(mean)
            found.add_release(values, arm=None, mean=mean)
            found.end_round()
            yield

    rules = replace(rules, releases=min(rules.releases, run.steps))
    was_interrupted = _collect(found, turns(), rules)
    assumptions = (
        "plain gradient descent with the stated learning rate, batch size and records in each step",
        "the noise is Gaussian; a wrong description of the run can only hide missing noise",
        "clipping is that of the description: a finished run does not show the contribution of one record",
        UNTESTED_BITS,
    )
    return conclude(found, "finished DP-SGD run", run.claimed, assumptions, rules, was_interrupted)


def _verify_trainings(
    audit: TrainingAudit, train: Callable[[Tensor, Tensor], Any], first: tuple[Tensor, nn.Module], rules: Rules
) -> MechanismVerdict:
    """Guess canaries from final models; ``first`` are the coins and the model of a training that is done already."""
    was_interrupted = False
    try:
        for run in track(range(rules.releases), "Trainings"):
            if run == 0:
                audit.set_coins(first[0])
                audit.add_model(first[1])
            else:
                inputs, labels = audit.draw_records()
                audit.add_model(train(inputs, labels))
            # the counts of many canaries are pooled, which needs a fixed number of trainings
            if not rules.fixed and audit.count == 1 and audit.evidence() >= rules.needed:
                break
    except KeyboardInterrupt:
        if audit.runs == 0:
            raise
        was_interrupted = True
    return conclude_trainings(audit, rules, was_interrupted)
