"""Folder of finished cells: one file each, found again only by the same settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.files import write_atomically, wrong_version
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.validation import invalid_input
from reconrisk.studies.tradeoff.result import TradeoffCell

VERSION = 2
"""Version of the files. 2: cells have stable tags, and are named by the one digest of settings."""

_MARK = "store.json"


@dataclass(frozen=True)
class CellStore:
    """Cells in the files of a folder, by the digest of everything they depend on.

    Attributes:
        folder: Folder of the files; None to keep nothing.

    Guarantee: a folder with cells of another version of the package, whose digests differ, is rejected.

    >>> CellStore(None).find("0" * 12) is None
    True
    """

    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise invalid_input("store", str(self.folder), "to be a folder", "Pass another name.")
        found = self._version()
        if self.folder is not None and found not in (None, VERSION):
            raise wrong_version(self.folder, "version", "a store of rr.tradeoff", found=found, reads=VERSION)

    def find(self, fingerprint: str) -> TradeoffCell | None:
        """Return the cell of these settings; None if it was never finished."""
        path = self._path(fingerprint)
        if path is None or not path.exists():
            return None
        remedy = "Delete the file to compute the cell again."
        try:
            found = from_json(path.read_text(encoding="utf-8"))
        except (InvalidInput, UnicodeDecodeError) as error:
            raise InvalidFile(path, "cell", str(error), remedy) from error
        if not isinstance(found, TradeoffCell):
            raise InvalidFile(path, "cell", f"It holds a {type(found).__name__}, not a TradeoffCell.", remedy)
        return found

    def add(self, fingerprint: str, cell: TradeoffCell) -> None:
        """Write a finished cell; the file is replaced atomically."""
        path = self._path(fingerprint)
        if path is None:
            return
        if self._version() is None:
            mark = json.dumps({"store": "tradeoff", "version": VERSION})
            write_atomically(
                path.with_name(_MARK), lambda temporary: temporary.write_text(mark + "\n", encoding="utf-8")
            )
        write_atomically(path, lambda temporary: temporary.write_text(to_json(cell) + "\n", encoding="utf-8"))

    def _version(self) -> object:
        """Return the version of the folder: 1 for cells without a version file, None for no cells."""
        if self.folder is None:
            return None
        mark = self.folder / _MARK
        if not mark.is_file():
            return 1 if any(self.folder.glob("cell-*.json")) else None
        try:
            return json.loads(mark.read_text(encoding="utf-8"))["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidFile(mark, "version", "It states no version.", "Use another folder.") from error

    def _path(self, fingerprint: str) -> Path | None:
        return None if self.folder is None else self.folder / f"cell-{fingerprint}.json"
