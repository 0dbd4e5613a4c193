"""Finished cells of a frontier in a folder: one file each, found again only by the same settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.files import write_whole
from reconrisk.core.serialization import from_json, to_json
from reconrisk.core.validation import refuse
from reconrisk.studies.tradeoff.result import TradeoffCell

_FORMAT = 2  # of the digests that name the files
_NAME = f"cell-v{_FORMAT}-"


@dataclass(frozen=True)
class CellStore:
    """Cells in the files of a ``folder``, by the digest of all they depend on; nothing is kept without one.

    Guarantee: a folder with cells of another version of the package, whose digests differ, is refused.

    >>> CellStore(None).find("0" * 12) is None
    True
    """

    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise refuse("store", str(self.folder), "to be a folder", "Choose another name.")
        others = [] if self.folder is None else [path for path in self.folder.glob("cell-*.json") if not _is_own(path)]
        if others:
            remedy = "Name another folder, or delete these files: their cells are then computed again."
            raise InvalidFile(others[0], "format", "It was written by another version of reconrisk.", remedy)

    def find(self, fingerprint: str) -> TradeoffCell | None:
        """The cell of these settings, None if it was never finished."""
        path = self._path(fingerprint)
        if path is None or not path.exists():
            return None
        remedy = "Delete the file: the cell is then computed again."
        try:
            found = from_json(path.read_text(encoding="utf-8"))
        except (InvalidInput, UnicodeDecodeError) as error:
            raise InvalidFile(path, "cell", str(error), remedy) from error
        if not isinstance(found, TradeoffCell):
            raise InvalidFile(path, "cell", f"it holds a {type(found).__name__}, no TradeoffCell.", remedy)
        return found

    def add(self, fingerprint: str, cell: TradeoffCell) -> None:
        """Keep a finished cell: the file is there whole or not at all."""
        path = self._path(fingerprint)
        if path is not None:
            write_whole(path, lambda temporary: temporary.write_text(to_json(cell) + "\n", encoding="utf-8"))

    def _path(self, fingerprint: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{_NAME}{fingerprint}.json"


def _is_own(path: Path) -> bool:
    return path.name.startswith(_NAME)
