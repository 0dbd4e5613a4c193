"""Errors whose messages state the expected value, the value found and the remedy."""

from __future__ import annotations

from pathlib import Path


class InvalidInput(ValueError):
    """Raised for an argument outside its domain.

    The message states the argument, its value, the condition that it violates and the remedy.
    """


class InvalidFile(ValueError):
    """Raised for a missing, damaged or unexpected file.

    Args:
        path: The file.
        place: The byte, row or key at which the problem was found.
        problem: The problem, as a sentence.
        remedy: The action that solves it, as a sentence.

    Attributes:
        path: The file.
        place: The byte, row or key at which the problem was found.
    """

    def __init__(self, path: str | Path, place: str, problem: str, remedy: str) -> None:
        self.path = Path(path)
        self.place = place
        super().__init__(f"{path}, {place}: {problem} {remedy}")


class MissingExtra(ImportError):
    """Raised if an optional dependency is not installed; the message contains the command that installs it.

    Args:
        package: The package that is missing.
        extra: The extra of reconrisk that installs it, or None if there is none.
        purpose: The feature that needs the package, as the subject of a sentence.
    """

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        wanted = package if extra is None else f"'reconrisk[{extra}]'"
        super().__init__(f"{purpose} needs {package}. Install it with: pip install {wanted}")
