"""Tables of upper layers that ``core`` looks up without importing those layers beforehand.

``core`` imports no upper layer. The ``__init__`` of the package registers the tables by their path: the module of each
kind of JSON value (``"kinds"``), and the functions that write each kind of result (``"renderers"``). A table is
imported when it is first needed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take half of the import time of the package
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_TABLES: dict[str, list[str]] = {}


def add_table(part: str, where: str) -> None:
    """Register a table without importing it.

    Args:
        part: Role of the table, ``"kinds"`` or ``"renderers"``.
        where: Path of the mapping, as ``"package.module:NAME"``.
    """
    known = _TABLES.setdefault(part, [])
    if where not in known:
        known.append(where)


def look_up(part: str, key: str) -> Any:
    """Return the entry of a key in the tables of a role.

    Args:
        part: Role of the tables, ``"kinds"`` or ``"renderers"``.
        key: The key.

    Returns:
        The entry, or None if no table has the key.

    >>> look_up("kinds", "audit-result")
    'reconrisk.studies.audit.result'
    """
    return next((table[key] for table in _tables(part) if key in table), None)


def list_keys(part: str) -> tuple[str, ...]:
    """Return the keys of all tables of a role.

    Args:
        part: Role of the tables, ``"kinds"`` or ``"renderers"``.

    Returns:
        The keys, in the order of the tables.
    """
    return tuple(key for table in _tables(part) for key in table)


def _tables(part: str) -> Iterator[Any]:
    from reconrisk.core.registry import Info

    return (Info(part, where, "").load() for where in _TABLES.get(part, ()))
