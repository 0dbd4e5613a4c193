"""Run rules on an object, and explain every rule that it breaks in one sentence."""

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
"""A rule looks at a case and raises :class:`Broken` or :class:`Skipped`; its docstring states it in one sentence."""


class Broken(Exception):
    """Raised by a rule that does not hold; made by :func:`broken`."""


class Skipped(Exception):
    """Raised by a rule that says nothing about this object."""


class BrokenContract(AssertionError):
    """Raised for an object that breaks at least one rule; the message has one sentence for each.

    ``failures`` maps the names of the broken rules to these sentences.
    """

    def __init__(self, kind: str, subject: str, failures: Mapping[str, str], rules: int) -> None:
        self.failures = dict(failures)
        lines = (f"  {name}: {sentence}" for name, sentence in self.failures.items())
        super().__init__(f"{subject} breaks {len(failures)} of {rules} rules for {kind}s.\n" + "\n".join(lines))


@dataclass(frozen=True)
class CheckReport:
    """The rules that an object keeps.

    Args:
        kind: Kind of the object, such as ``"attack"``.
        subject: Representation of the object.
        passed: Names of the rules that hold.
        skipped: Rules that say nothing about this object, with the reason.
    """

    kind: str
    subject: str
    passed: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """A sentence, then one line for each rule."""
        lines = [f"{self.subject} keeps {len(self.passed)} rules for {self.kind}s."]
        lines += [f"  {name}" for name in self.passed]
        return "\n".join([*lines, *(f"  {name}: skipped, {reason}" for name, reason in self.skipped.items())])


def broken(expected: str, found: object, remedy: str) -> Broken:
    """Return the exception that explains a broken rule: what was expected, what was found, what to change.

    >>> print(broken("estimates within (0.0, 1.0)", 1.5, "Clamp them."))
    Expected estimates within (0.0, 1.0), found 1.5. Clamp them.
    """
    return Broken(f"Expected {expected}, found {found}. {remedy}")


def run_rules(kind: str, subject: object, rules: Sequence[Rule[Case]], case: Case) -> CheckReport:
    """Run every rule on a case.

    Args:
        kind: Kind of the object, used in messages.
        subject: The object.
        rules: The rules.
        case: What the rules look at: the object and a small problem for it.

    Returns:
        The rules that hold.

    Raises:
        BrokenContract: If a rule does not hold, or the object raised something unexpected meanwhile.
    """
    passed: list[str] = []
    skipped: dict[str, str] = {}
    failures: dict[str, str] = {}
    for rule in rules:
        try:
            rule(case)
        except Skipped as reason:
            skipped[rule.__name__] = str(reason)
        except Broken as failure:
            failures[rule.__name__] = str(failure)
        except Exception as error:  # code of others may raise anything
            stated = (rule.__doc__ or rule.__name__).rstrip(".")
            failures[rule.__name__] = f"{stated}: expected no error, found {error_in_words(error)}. Repair its cause."
        else:
            passed.append(rule.__name__)
    if failures:
        raise BrokenContract(kind, _representation(subject), failures, len(rules))
    return CheckReport(kind, _representation(subject), tuple(passed), skipped)


def error_in_words(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and restore them at the end."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  # theirs may be used
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
    """Return the state of the global generators, to be compared."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), str(numpy_state), random.getstate()


def _representation(subject: object) -> str:
    try:
        return repr(subject)
    except Exception as error:  # code of others may raise anything
        return f"{type(subject).__name__}, whose repr raised {error_in_words(error)},"
