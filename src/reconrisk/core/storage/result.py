"""Base class of all results: a sentence, a table, JSON, a data frame, and files in the format of their suffix."""

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
"""One row of a result: values by column name."""

_REMEDY = 'Pass a JSON file written by result.save("name.json").'


class Result(ABC):
    """Base class of the results of studies and calculators.

    A subclass implements :attr:`sentence` and :meth:`to_rows`. If it is a registered dataclass
    (:func:`reconrisk.core.storage.serialization.serializable`), :func:`load` reads it from JSON. The functions that
    write it are rows of ``reconrisk/reports/registry.py``, found by its tag and the suffix of the file.
    """

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Summary of the result in one or two sentences."""

    @abstractmethod
    def to_rows(self) -> tuple[Row, ...]:
        """Return the result as rows with the same columns."""

    def table(self) -> str:
        """Return the result as a text table."""
        return table_from_rows(self.to_rows())

    def __str__(self) -> str:
        """Return the table, then the sentence."""
        return f"{self.table()}\n\n{self.sentence}"

    @property
    def kind(self) -> str:
        """Tag of this kind of result in JSON."""
        return kind_of(type(self)).tag

    @property
    def is_private(self) -> bool:
        """True if numbers depend on private records; only the owner of the files can then read them."""
        return True

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the result as JSON text with the tag and version of its kind, without arrays and records.

        Args:
            indent: Spaces per level; None for one line.

        Returns:
            JSON text that contains every field except arrays and records.
        """
        return to_json(self, indent=indent)

    def to_frame(self) -> Any:
        """Return :meth:`to_rows` as a ``pandas.DataFrame``.

        Returns:
            A data frame with one row for each row of :meth:`to_rows`.

        Raises:
            MissingExtra: If pandas is not installed, because reconrisk does not depend on it.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtra("pandas", None, "A data frame") from error
        return pandas.DataFrame.from_records(list(self.to_rows()))

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the result to a file, in the format of its suffix.

        Args:
            path: The file. All results can be written as .json, .csv, .md and .html, some also as .png or .xml.
            **options: Settings of the format, such as ``redact=True`` for the HTML page of an audit.

        Returns:
            The path.

        Raises:
            InvalidInput: If this kind of result has no such format; the message lists the formats.

        Guarantee: the file is written atomically. If :attr:`is_private`, only its owner can read it, except for the
        model card of an audit, which contains no record. Missing folders are created; nothing else is written.
        """
        from reconrisk.core.registry import Info

        path = Path(path)
        formats = look_up("renderers", self.kind) or {}
        where = formats.get(path.suffix.lower())
        if where is None:
            remedy = f"Choose one of these formats of {self.kind}."
            raise invalid_input("path", str(path), f"to end in one of {', '.join(formats)}", remedy)
        render = Info(self.kind, where, "").load()
        known = dict(list(inspect.signature(render).parameters.items())[2:])  # without result and path
        check_settings(f"{path.suffix} of {self.kind}", known, options)
        written: Path = render(self, path, **options)
        return written


class ReportedResult(Result):
    """A result with arrays. Tables and JSON show its report, and reading the JSON returns the report."""

    @abstractmethod
    def to_report(self) -> Result:
        """Return the result without its arrays."""

    @property
    def sentence(self) -> str:
        """Summary of the report."""
        return self.to_report().sentence

    def to_rows(self) -> tuple[Row, ...]:
        """Return the rows of the report."""
        return self.to_report().to_rows()

    def table(self) -> str:
        """Return the table of the report."""
        return self.to_report().table()

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the report as JSON text.

        Args:
            indent: Spaces per level; None for one line.

        Returns:
            JSON text of the report that :meth:`to_report` returns.
        """
        return self.to_report().to_json(indent=indent)


def load(path: str | Path) -> Any:
    """Read a result that ``result.save("name.json")`` wrote.

    Args:
        path: The JSON file.

    Returns:
        The result. JSON holds no arrays: a result that had them is returned as its ``report`` alone.

    Raises:
        InvalidFile: If the file is missing or contains something else.

    Guarantee: ``load(result.save(path)) == result`` for results without arrays. Values are built by their constructors
    with all checks; no code from the file is run.

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
        raise InvalidFile(path, f"byte {error.start}", "The file is not UTF-8 text.", _REMEDY) from error
    except InvalidInput as error:
        raise InvalidFile(path, "content", str(error), _REMEDY) from error
    if not isinstance(found, Result):
        raise InvalidFile(path, "content", f"Expected a result, found {type(found).__name__}.", _REMEDY)
    return found
