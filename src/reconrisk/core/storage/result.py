"""What studies and calculators return: a sentence, a table, JSON, a data frame, and files by their suffix."""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeAlias

from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.storage.links import look_up
from reconrisk.core.storage.serialization import from_json, kind_of, to_json
from reconrisk.core.storage.text_table import table_from_rows
from reconrisk.core.validation import check_settings, invalid_input

Row: TypeAlias = dict[str, "str | int | float | bool | None"]
"""One line of a result: values by the name of their column."""

_REMEDY = "Pass a JSON file that save() of a result has written."


class Result(ABC):
    """What a study or a calculator returns.

    A subclass states :attr:`sentence` and :meth:`to_rows`; one that is a registered dataclass
    (:func:`reconrisk.core.storage.serialization.serializable`) is read back by :func:`load`. The functions that write
    it are rows of ``reconrisk/reports/registry.py``, found by its tag and the suffix of the file.
    """

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What was found, in a sentence or two for somebody who reads nothing else."""

    @abstractmethod
    def to_rows(self) -> tuple[Row, ...]:
        """Return the lines of the result as plain values by name, all with the same names."""

    def table(self) -> str:
        """Return the result as a table of text."""
        return table_from_rows(self.to_rows())

    def __str__(self) -> str:
        """Return the table, then the sentence."""
        return f"{self.table()}\n\n{self.sentence}"

    @property
    def kind(self) -> str:
        """Tag of this kind of result, as in its JSON."""
        return kind_of(type(self)).tag

    @property
    def is_private(self) -> bool:
        """True if numbers depend on private records: files are then readable by their owner alone."""
        return True

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the result as JSON text with the tag and version of its kind; no array and no record is in it."""
        return to_json(self, indent=indent)

    def to_frame(self) -> Any:
        """Return :meth:`to_rows` as a ``pandas.DataFrame``.

        Raises:
            MissingExtra: If pandas is not installed; reconrisk does not depend on it.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtra("pandas", None, "A data frame") from error
        return pandas.DataFrame.from_records(list(self.to_rows()))

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the result in the format that the suffix of ``path`` names.

        Args:
            path: The file. Every kind of result is written as .json, .csv, .md and .html; some as .png or .xml too.
            **options: Settings of that format, such as ``redact=True`` for the page of an audit.

        Returns:
            The path.

        Raises:
            InvalidInput: If this kind of result has no such format; the message lists those it has.

        Guarantee: the file appears whole or not at all. It is for its owner alone if :attr:`is_private`, but for the
        model card of an audit, which names no record. Missing folders are made; nothing is written elsewhere.
        """
        from reconrisk.core.registry import Info

        path = Path(path)
        formats = look_up("renderers", self.kind) or {}
        where = formats.get(path.suffix.lower())
        if where is None:
            remedy = f"These are the formats of {self.kind}."
            raise invalid_input("path", str(path), f"to end in one of {', '.join(formats)}", remedy)
        render = Info(self.kind, where, "").load()
        known = dict(list(inspect.signature(render).parameters.items())[2:])
        check_settings(f"{path.suffix} of {self.kind}", known, options)
        written: Path = render(self, path, **options)
        return written


class ReportedResult(Result):
    """A result with arrays: its report is what goes into tables and JSON, and what JSON is read back as."""

    @abstractmethod
    def to_report(self) -> Result:
        """Return everything but the arrays."""

    @property
    def sentence(self) -> str:
        """The sentence of the report."""
        return self.to_report().sentence

    def to_rows(self) -> tuple[Row, ...]:
        """Return the rows of the report."""
        return self.to_report().to_rows()

    def table(self) -> str:
        """Return the table of the report."""
        return self.to_report().table()

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the report as JSON text."""
        return self.to_report().to_json(indent=indent)


def load(path: str | Path) -> Any:
    """Read the result that ``result.save("name.json")`` wrote.

    Args:
        path: The JSON file.

    Returns:
        The result; of one with arrays its report.

    Raises:
        InvalidFile: If there is no such file, or it holds something else; the message says what.

    Guarantee: ``load(result.save(path)) == result`` for results without arrays. Reading calls constructors with their
    checks; no code in the file is run.

    >>> import tempfile
    >>> from reconrisk.bounds.prior_success import uniform_ball
    >>> found = uniform_ball(dimension=2, radius=1.0, mse=0.02)
    >>> load(found.save(f"{tempfile.mkdtemp()}/prior.json")) == found
    True
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        found = from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidFile(path, f"byte {error.start}", "It is no text.", _REMEDY) from error
    except InvalidInput as error:
        raise InvalidFile(path, "content", str(error), _REMEDY) from error
    if not isinstance(found, Result):
        raise InvalidFile(path, "content", f"It is of type {type(found).__name__}, which is no result.", _REMEDY)
    return found
