"""Rules for attacks, and :func:`check_attack`, which runs them on a small problem."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.attacks.plain_function import attack_from_function
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import GAUSSIAN, Attack, Observation
from reconrisk.core.reconstruction import Ending, Reconstruction
from reconrisk.core.threat import STRONGEST, Knows, Sees, ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.models.linear import mlp
from reconrisk.releases.observe import find_model, observe
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.testing.contract import (
    CheckReport,
    Skipped,
    broken_rule,
    describe_error,
    global_seed,
    global_state,
    run_rules,
)

_SEED, _SHAPE, _CLASSES = 7, (1, 8, 8), 4
_SIDE_INFORMATION = {
    "labels": Knows.LABELS,
    "record_norms": Knows.RECORD_NORM,
    "batch_statistics": Knows.BATCH_STATISTICS,
    "noise_std": Knows.DEFENSE,
    "kept": Knows.DEFENSE,
}
_CALL = re.compile(r"[\w.<>]+\(.*\)$", re.DOTALL)
_INTERRUPTED_CALL = 3  # call of the forward map at which Ctrl-C is simulated; an iterative search is then running


@dataclass(eq=False)
class AttackCase:
    """An attack with an observation that it can use.

    Attributes:
        attack: The attack.
        observation: The observation.
        records: The private records behind the observation; None if the check may not overwrite them.
        in_double: The same observation in double precision, or None.
    """

    attack: Attack
    observation: Observation
    records: Tensor | None = None
    in_double: Observation | None = None

    def run(self, observation: Observation | None = None, *, seed: int = 1) -> Any:
        """Run the attack with a fixed generator.

        Args:
            observation: The observation; None for the observation of the case.
            seed: Seed of the global generators, which the attack should not use.

        Returns:
            The object that the attack returns, unchecked.
        """
        seen = self.observation if observation is None else observation
        with global_seed(seed):
            return self.attack(seen, rng=torch.Generator(seen.device).manual_seed(_SEED))

    @cached_property
    def first(self) -> _FirstCall:
        """The first call of the attack, with its side effects."""
        before = _copy_tensors(self.observation)
        with global_seed(1):
            state = global_state()
            outcome: Any
            try:
                outcome = self.attack(self.observation, rng=torch.Generator(self.observation.device).manual_seed(_SEED))
            except Exception as error:  # third-party code may raise anything
                outcome = error
            touched = global_state() != state
        after = _copy_tensors(self.observation)
        changed = [name for name, value in after.items() if not torch.equal(before[name], value)]
        return _FirstCall(outcome, touched, tuple(changed))

    @cached_property
    def second(self) -> Any:
        """Result of the attack with other global generators, while the private records are overwritten."""
        if self.records is None:
            return self.run(seed=2)
        kept = self.records.detach().clone()
        try:
            with torch.no_grad():
                self.records.copy_(kept.flip(-1) / 2)  # another record within the same range
            return self.run(seed=2)
        finally:
            with torch.no_grad():
                self.records.copy_(kept)

    @property
    def reconstruction(self) -> Reconstruction:
        """Reconstruction of the first call."""
        if not isinstance(self.first.outcome, Reconstruction):
            raise Skipped("the attack returned no reconstruction")
        return self.first.outcome

    @property
    def estimates(self) -> Tensor:
        """Estimates of the first call; the rule is skipped if the attack reports a failure."""
        if self.reconstruction.status.is_failure:
            raise Skipped("the status of the attack is a failure")
        return self.reconstruction.estimates.detach()

    def repeats(self, again: Any) -> bool:
        """Return True if a later call gave the same estimates as the first."""
        expected = self.reconstruction.estimates
        return isinstance(again, Reconstruction) and _are_equal(expected, again.estimates)


@dataclass(frozen=True, eq=False)
class _FirstCall:
    """Result of a call (or its exception), and the global generators and input tensors that it changed."""

    outcome: Any
    touched_generators: bool
    changed: tuple[str, ...]


def check_attack(attack: Any, observation: Observation | None = None, *, records: Tensor | None = None) -> CheckReport:
    """Check that an attack keeps the rules that audits rely on.

    Args:
        attack: A configured attack, or a function ``(observation, *, rng)``.
        observation: Observation to run the attack on. By default it is the gradient of one image of 8 x 8 pixels in a
            small network, with all side information that an attack on updates may use.
        records: The private records behind ``observation``. They are overwritten during the check and restored
            afterwards, to detect attacks that read them.

    Returns:
        The rules that hold, and those that do not apply to this attack.

    Raises:
        BrokenContract: If a rule does not hold; the message has one sentence for each.
        InvalidInput: If the object is not an attack, or the attack cannot use the default observation.

    >>> from reconrisk.attacks.baselines import constant_guess
    >>> print(check_attack(constant_guess()))  # doctest: +ELLIPSIS
    constant_guess(value=None) keeps ... rules for attacks.
      shows_its_settings
      ...
    """
    checked = attack_from_function(attack)
    case = _small_problem(checked) if observation is None else AttackCase(checked, observation, records)
    return run_rules("attack", checked, RULES, case)


def shows_its_settings(case: AttackCase) -> None:
    """The representation is a call with every setting, and no address in memory."""
    shown = repr(case.attack)
    if not _CALL.match(shown) or " at 0x" in shown:
        remedy = "Write __repr__, or make it a dataclass: stored trials are identified by it."
        raise broken_rule("a representation such as name(setting=1)", shown, remedy)


def returns_a_reconstruction(case: AttackCase) -> None:
    """A call on an observation that the attack can use returns a Reconstruction."""
    if isinstance(case.first.outcome, BaseException):
        remedy = "Pass check_attack an observation that the attack can use, or fix the error."
        raise broken_rule("a Reconstruction of the observation", describe_error(case.first.outcome), remedy)
    if not isinstance(case.first.outcome, Reconstruction):
        remedy = "Return rr.Reconstruction(estimates, account)."
        raise broken_rule("a Reconstruction", type(case.first.outcome).__name__, remedy)


def returns_records(case: AttackCase) -> None:
    """Estimates have the shape of records, and there are at most as many as records."""
    found, seen = case.reconstruction.estimates, case.observation
    if not isinstance(found, Tensor) or not found.is_floating_point():
        remedy = "Return a tensor of real numbers."
        raise broken_rule(
            "estimates to be a floating-point tensor", getattr(found, "dtype", type(found).__name__), remedy
        )
    if tuple(found.shape[1:]) != seen.input_shape:
        remedy = "Return one record per row, in observation.input_shape."
        raise broken_rule(f"estimates of shape (n, {str(seen.input_shape)[1:-1]})", tuple(found.shape), remedy)
    if not 0 < len(found) <= seen.batch_size:
        remedy = "Select among candidates in the attack: the auditor must not select the best of many."
        raise broken_rule(f"at most batch_size={seen.batch_size} estimates", len(found), remedy)


def returns_finite_estimates(case: AttackCase) -> None:
    """Estimates are finite, or the status is a failure."""
    lost = int((~case.estimates.isfinite()).sum())
    if lost:
        remedy = "Return the best finite estimate, or Status(Ending.DIVERGED, cause, remedy)."
        raise broken_rule("finite estimates, or a status that is a failure", f"{lost} NaN or infinite values", remedy)


def returns_estimates_within_range(case: AttackCase) -> None:
    """Estimates lie within the public range of the data."""
    low, high = case.observation.data_range
    least, most = float(case.estimates.min()), float(case.estimates.max())
    if least < low or most > high:
        remedy = "Clamp them to observation.data_range, which the adversary knows."
        raise broken_rule(f"estimates within {case.observation.data_range}", f"{least:g} to {most:g}", remedy)


def returns_no_graph(case: AttackCase) -> None:
    """Estimates are detached from the autograd graph."""
    if case.reconstruction.estimates.requires_grad:
        raise broken_rule("estimates without an autograd graph", "requires_grad=True", "Return estimates.detach().")


def states_its_account(case: AttackCase) -> None:
    """The account contains the attack with its settings."""
    written = case.reconstruction.account.attack
    if not _CALL.match(written):
        raise broken_rule("account.attack such as name(setting=1)", repr(written), "Pass repr(self).")


def repeats_with_the_same_rng(case: AttackCase) -> None:
    """The same generator gives the same estimates, whatever the global generators are."""
    if case.repeats(case.second):
        return
    # The second call differs in the global seed and in the private records. Further calls find the cause; if only the
    # records matter, ignores_the_private_records reports it.
    expected = "the same estimates for the same rng"
    if not case.repeats(case.run()):
        remedy = "Draw from rng only, and keep no state between calls."
        raise broken_rule(expected, "different estimates at the next call", remedy)
    if not case.repeats(case.run(seed=2)):
        remedy = "Draw from rng only: generator=rng, device=rng.device."
        raise broken_rule(expected, "different estimates after another torch.manual_seed", remedy)


def leaves_global_generators(case: AttackCase) -> None:
    """A call leaves the global generators of torch, NumPy and Python unchanged."""
    if case.first.touched_generators:
        remedy = "Draw with generator=rng, and never call torch.manual_seed."
        raise broken_rule("unchanged global generators", "another state after the call", remedy)


def leaves_the_observation(case: AttackCase) -> None:
    """A call leaves the observation unchanged: the released tensors, the side information and the model."""
    if case.first.changed:
        remedy = "Work on copies: other attacks read the same observation."
        raise broken_rule("an unchanged observation", f"changes in {', '.join(case.first.changed)}", remedy)


def ignores_the_private_records(case: AttackCase) -> None:
    """Estimates depend on the observation alone, not on the private records."""
    if case.records is None:
        raise Skipped("pass records=... to check it")
    if not case.repeats(case.second) and case.repeats(case.run()) and case.repeats(case.run(seed=2)):
        remedy = "Read the observation only: an adversary has nothing else."
        raise broken_rule("estimates that do not depend on the private records", "a change when they changed", remedy)


def refuses_weaker_adversaries(case: AttackCase) -> None:
    """The attack raises InvalidInput for an observation whose threat model lacks a power that it needs."""
    needs = case.attack.needs
    weaker = list(_weaker_observations(case.observation, needs))
    if not weaker:
        raise Skipped("the attack needs no side information and controls nothing")
    for lacking, observation in weaker:
        try:
            found = case.run(observation)
        except InvalidInput:
            continue
        remedy = "Call observation.check_covers(self.needs) first."
        raise broken_rule(f"InvalidInput for a threat model without {lacking}", type(found).__name__, remedy)


def works_in_double_precision(case: AttackCase) -> None:
    """The attack works on a release in double precision as on one in single precision."""
    if case.in_double is None:
        raise Skipped("only the default observation has a copy in double precision")
    single = case.reconstruction.estimates
    found = case.run(case.in_double)
    if not isinstance(found, Reconstruction) or found.estimates.shape != single.shape:
        remedy = "Convert to the precision of the released tensors."
        raise broken_rule("a Reconstruction of the same shape", found, remedy)


def ends_when_interrupted(case: AttackCase) -> None:
    """Ctrl-C ends the attack: it raises KeyboardInterrupt, or returns estimates with the status INTERRUPTED."""
    forward = _InterruptedMap(case.observation.forward)
    try:
        found = case.run(dataclasses.replace(case.observation, forward=forward))
    except KeyboardInterrupt:
        return
    except InvalidInput as error:
        raise Skipped("the attack accepts certain types of forward maps only") from error
    if not forward.was_interrupted:
        raise Skipped("the attack calls the forward map too rarely to be interrupted")
    if not isinstance(found, Reconstruction) or found.status.ending is not Ending.INTERRUPTED:
        remedy = "Let KeyboardInterrupt pass, or catch it and return Status(Ending.INTERRUPTED, cause, remedy)."
        raise broken_rule("an interrupted attack", getattr(found, "status", found), remedy)


RULES = (
    shows_its_settings,
    returns_a_reconstruction,
    returns_records,
    returns_finite_estimates,
    returns_estimates_within_range,
    returns_no_graph,
    states_its_account,
    repeats_with_the_same_rng,
    leaves_global_generators,
    leaves_the_observation,
    ignores_the_private_records,
    refuses_weaker_adversaries,
    works_in_double_precision,
    ends_when_interrupted,
)
"""Rules for attacks, in the order in which they are checked."""


class _InterruptedMap:
    """A forward map that raises KeyboardInterrupt in one of its calls, as if Ctrl-C were pressed."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._calls = inner, 0

    @property
    def was_interrupted(self) -> bool:
        return self._calls >= _INTERRUPTED_CALL

    def __call__(self, inputs: Tensor, labels: Tensor) -> Any:
        self._calls += 1
        if self._calls == _INTERRUPTED_CALL:
            raise KeyboardInterrupt
        return self._inner(inputs, labels)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _small_problem(attack: Attack) -> AttackCase:
    """Return the default case of :func:`check_attack`: the gradient of one small image."""
    needs = attack.needs
    if needs.sees is Sees.FINAL_MODEL:
        remedy = "Pass check_attack an observation of a trained model: check_attack(attack, observation)."
        raise invalid_input("attack.needs.sees", needs.sees.value, "to be one-update or every-update", remedy)
    # All side information, but only the controls that the attack needs: others would change the observation.
    threat = dataclasses.replace(STRONGEST, controls=needs.controls)
    records = torch.rand(1, *_SHAPE, generator=torch.Generator().manual_seed(3))
    network: nn.Module = mlp(64, (16,), _CLASSES, activation=nn.Tanh, rng=torch.Generator().manual_seed(4))
    if needs.controls and hasattr(attack, "plant"):  # malicious servers change the model before the update
        network = attack.plant(network, _SHAPE)
    labels, loss = torch.tensor([2]), nn.functional.cross_entropy
    double = GradientRelease(copy.deepcopy(network).double(), loss, records.double(), labels)
    return AttackCase(
        attack,
        observe(GradientRelease(network, loss, records, labels), threat=threat),
        records,
        observe(double, threat=threat),
    )


def _weaker_observations(observation: Observation, needs: ThreatModel) -> Iterator[tuple[str, Observation]]:
    """Yield the observation without one of the needed powers, and without the side information of that power."""
    threat = observation.threat
    for power in sorted(needs.knows, key=lambda each: each.value):
        hidden: dict[str, Any] = {name: None for name, side in _SIDE_INFORMATION.items() if side is power}
        hidden |= {"noise_law": GAUSSIAN} if power is Knows.DEFENSE else {}
        less = dataclasses.replace(threat, knows=threat.knows - {power})
        yield f"knows={power.value}", dataclasses.replace(observation, threat=less, **hidden)
    for control in sorted(needs.controls, key=lambda each: each.value):
        less = dataclasses.replace(threat, controls=threat.controls - {control})
        yield f"controls={control.value}", dataclasses.replace(observation, threat=less)


def _copy_tensors(observation: Observation) -> dict[str, Tensor]:
    """Return copies of all tensors of an observation and its model, by a name for messages."""
    named: dict[str, Tensor] = {f"released[{name!r}]": value for name, value in observation.released.items()}
    for field in ("labels", "record_norms"):
        if getattr(observation, field) is not None:
            named[field] = getattr(observation, field)
    for field in ("batch_statistics", "noise_std", "kept"):
        named |= {f"{field}[{name!r}]": value for name, value in (getattr(observation, field) or {}).items()}
    model = find_model(observation.forward)
    named |= {} if model is None else {f"the model's {name}": value for name, value in model.state_dict().items()}
    return {name: value.detach().clone() for name, value in named.items()}


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal; values that are NaN in both count as equal."""
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
