"""Run rules on an object, and report every broken rule in one sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

Case = TypeVar("Case")
Rule = Callable[[Case], None]
"""A rule examines a case and raises :class:`BrokenRule` or :class:`Skipped`; its docstring states the rule."""


class BrokenRule(Exception):
    """Raised by a rule that does not hold; :func:`broken_rule` builds it."""


class Skipped(Exception):
    """Raised by a rule that does not apply to the object."""


class BrokenContract(AssertionError):
    """Raised for an object that breaks at least one rule; the message has one sentence for each broken rule.

    Args:
        kind: Kind of the object, such as ``"attack"``.
        subject: Representation of the object.
        failures: Sentence of each broken rule, by the name of the rule.
        rules: Number of rules that were checked.

    Attributes:
        failures: Sentence of each broken rule, by the name of the rule.
    """

    def __init__(self, kind: str, subject: str, failures: Mapping[str, str], rules: int) -> None:
        self.failures = dict(failures)
        lines = (f"  {name}: {sentence}" for name, sentence in self.failures.items())
        super().__init__(f"{subject} breaks {len(failures)} of {rules} rules for {kind}s.\n" + "\n".join(lines))


@dataclass(frozen=True)
class CheckReport:
    """Result of a contract check without broken rules.

    Attributes:
        kind: Kind of the object, such as ``"attack"``.
        subject: Representation of the object.
        passed: Names of the rules that hold.
        skipped: Reason for each rule that does not apply, by the name of the rule.

    >>> print(CheckReport("metric", "mse()", ("has_a_scale",)))
    mse() keeps 1 rule for metrics.
      has_a_scale
    """

    kind: str
    subject: str
    passed: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return a sentence, then one line for each rule."""
        count = len(self.passed)
        lines = [f"{self.subject} keeps {count} rule{'s' if count != 1 else ''} for {self.kind}s."]
        lines += [f"  {name}" for name in self.passed]
        return "\n".join([*lines, *(f"  {name}: skipped, {reason}" for name, reason in self.skipped.items())])


def broken_rule(expected: str, found: object, remedy: str) -> BrokenRule:
    """Return the exception for a broken rule.

    Args:
        expected: Expectation, as the object of "Expected ...".
        found: Actual behaviour or value.
        remedy: What to change, as a sentence.

    Returns:
        The exception, to be raised by the rule.

    >>> print(broken_rule("estimates within (0.0, 1.0)", 1.5, "Clamp them."))
    Expected estimates within (0.0, 1.0), found 1.5. Clamp them.
    """
    return BrokenRule(f"Expected {expected}, found {str(found).rstrip('.')}. {remedy}")


def run_rules(kind: str, subject: object, rules: Sequence[Rule[Case]], case: Case) -> CheckReport:
    """Run every rule on a case.

    Args:
        kind: Kind of the object, for messages.
        subject: The object.
        rules: The rules.
        case: The object and a small problem for it, which the rules examine.

    Returns:
        The rules that hold, and those that do not apply.

    Raises:
        BrokenContract: If a rule does not hold, or the object raised an unexpected error.
    """
    passed: list[str] = []
    skipped: dict[str, str] = {}
    failures: dict[str, str] = {}
    for rule in rules:
        try:
            rule(case)
        except Skipped as reason:
            skipped[rule.__name__] = str(reason)
        except BrokenRule as failure:
            failures[rule.__name__] = str(failure)
        except Exception as error:  # third-party code may raise anything
            sentence = (rule.__doc__ or rule.__name__).rstrip(".")
            failures[rule.__name__] = f"{sentence}: expected no error, found {describe_error(error)}. Fix its cause."
        else:
            passed.append(rule.__name__)
    if failures:
        raise BrokenContract(kind, _representation(subject), failures, len(rules))
    return CheckReport(kind, _representation(subject), tuple(passed), skipped)


def describe_error(error: BaseException) -> str:
    """Return the class of an error and the first line of its message.

    Args:
        error: The error.

    Returns:
        The text, without a full stop at its end.

    >>> describe_error(ValueError("Expected a tensor."))
    'ValueError: Expected a tensor'
    """
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python in a ``with`` block, and restore them at its end.

    Args:
        seed: The seed.
    """
    # NPY002 does not apply: third-party code may use the legacy generator of NumPy.
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def global_state() -> tuple[object, ...]:
    """Return the state of the global generators of torch, NumPy and Python as a value that can be compared."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), str(numpy_state), random.getstate()


def _representation(subject: object) -> str:
    try:
        return repr(subject)
    except Exception as error:  # third-party code may raise anything
        return f"{type(subject).__name__}, whose repr raised {describe_error(error)},"
