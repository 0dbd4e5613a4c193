"""Tables of the layers above core, by the part they play: each is imported when core first needs it.

Core imports nothing above it. The package's ``__init__`` states where the tables are: the module that defines each
kind of JSON value (``"kinds"``), and the functions that write each kind of result (``"renderers"``).
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import takes half of the time of importing the package
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_TABLES: dict[str, list[str]] = {}


def add_table(part: str, where: str) -> None:
    """State where a table is, without importing it.

    Args:
        part: The part that it plays, ``"kinds"`` or ``"renderers"``.
        where: The mapping, ``"package.module:NAME"``.
    """
    known = _TABLES.setdefault(part, [])
    if where not in known:
        known.append(where)


def look_up(part: str, key: str) -> Any:
    """Return the entry of a key in the tables of a part, None if no table has it.

    >>> look_up("kinds", "audit-result")
    'reconrisk.studies.audit.result'
    """
    return next((table[key] for table in _tables(part) if key in table), None)


def list_keys(part: str) -> tuple[str, ...]:
    """Return the keys of all tables of a part."""
    return tuple(key for table in _tables(part) for key in table)


def _tables(part: str) -> Iterator[Any]:
    from reconrisk.core.registry import Info

    return (Info(part, where, "").load() for where in _TABLES.get(part, ()))
