"""Errors that say what was expected, what came and what to do."""

from __future__ import annotations

from pathlib import Path


class InvalidInput(ValueError):
    """An argument outside its domain; the message names it, its value, the condition and the remedy."""


class InvalidFile(ValueError):
    """A file that is not what it claims to be; the message names the file and the byte, row or key."""

    def __init__(self, path: str | Path, place: str, problem: str, remedy: str) -> None:
        """State in ``path`` at ``place`` (a byte, row or key) what is wrong and what to do about it."""
        self.path = Path(path)
        self.place = place
        super().__init__(f"{path}, {place}: {problem} {remedy}")


class MissingExtra(ImportError):
    """An optional dependency that is not installed; the message says how to install it."""

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        """State that ``purpose`` needs ``package``, which the extra ``extra`` installs; None where no extra does."""
        wanted = package if extra is None else f"'reconrisk[{extra}]'"
        super().__init__(f"{purpose} needs {package}. Install it with: pip install {wanted}")
