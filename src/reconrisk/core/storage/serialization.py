"""JSON round trip for the values that go into a report.

A registered dataclass becomes an object whose ``kind`` is its class name; enums become their values, sets sorted
lists, infinities the strings that ``float`` reads back. Reading calls the constructors, so a file cannot hold what code
could not build.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import types
import typing
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import did_you_mean

T = TypeVar("T")

_KINDS: dict[str, type] = {}

NOT_IN_JSON = types.MappingProxyType({"in_json": False})
"""Metadata of a field that is left out and read back as its default, such as a picture of a private record."""

_HOMES = (
    "core.columns",
    "core.mechanism",
    "core.threat",
    "core.papers",
    "core.goal",
    "core.guarantee",
    "core.reconstruction",
    "bounds.analytic_inversion",
    "bounds.calibration",
    "bounds.correlation",
    "bounds.corridor",
    "bounds.prior_success",
    "audit.audit_result",
    "audit.choice",
    "audit.comparison",
    "audit.informed_report",
    "audit.leakage_report",
    "audit.rebuild_report",
    "audit.recommendation_result",
    "audit.run_info",
    "audit.spec",
    "audit.store",
    "audit.tradeoff_cell",
    "audit.tradeoff_result",
    "audit.trial",
    "integrations.leakage_summary",
)
"""Where kinds are defined: loaded when a kind is not known yet, since the package loads nothing before it is used."""


def serializable(cls: type[T]) -> type[T]:
    """Register a dataclass for the JSON round trip, under its own name."""
    _KINDS[cls.__name__] = cls
    return cls


def to_json(value: object, *, indent: int | None = None) -> str:
    """A registered value as JSON text.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> to_json(Gaussian(noise_multiplier=1.1))
    '{"kind": "Gaussian", "noise_multiplier": 1.1, "clip_norm": 1.0}'
    """
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def from_json(text: str) -> Any:
    """The value that :func:`to_json` wrote.

    >>> from_json('{"kind": "Gaussian", "noise_multiplier": 1.1, "clip_norm": 1.0}')
    Gaussian(noise_multiplier=1.1, clip_norm=1.0)
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"Expected JSON: {error}.") from error
    return from_plain(plain)


def to_plain(value: object) -> Any:
    """A registered value as dictionaries, lists, strings and numbers."""
    if dataclasses.is_dataclass(value) and type(value).__name__ in _KINDS:
        names = [field.name for field in dataclasses.fields(value) if field.metadata.get("in_json", True)]
        return {"kind": type(value).__name__, **{name: to_plain(getattr(value, name)) for name in names}}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidInput(
        f"Expected a value that a report may hold, it is {type(value).__name__}. Store arrays as safetensors."
    )


def from_plain(plain: Any) -> Any:
    """The value that :func:`to_plain` took apart."""
    if isinstance(plain, list):
        return tuple(from_plain(item) for item in plain)
    if not isinstance(plain, dict):
        return plain
    kind = plain.get("kind")
    if kind not in _KINDS:
        _load_homes()
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput(
            f"Expected kind={kind!r} to be one of {', '.join(sorted(_KINDS))}.{did_you_mean(kind, _KINDS)}"
        )
    hints = _hints(_KINDS[kind])
    given = {name: item for name, item in plain.items() if name != "kind"}
    for name in given:
        if name not in hints:
            raise InvalidInput(f"Expected {kind}.{name} to be one of {', '.join(hints)}.{did_you_mean(name, hints)}")
    try:
        return _KINDS[kind](**{name: _restored(from_plain(item), hints[name]) for name, item in given.items()})
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"Expected the fields of {kind} ({', '.join(hints)}) with fitting values. {error}."
        ) from error


@cache
def _load_homes() -> None:
    for home in _HOMES:
        importlib.import_module(f"reconrisk.{home}")


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _restored(item: Any, hint: Any) -> Any:
    """Undo what JSON cannot express: enums, sets, and infinities written as strings."""
    if item is None or dataclasses.is_dataclass(item):
        return item
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(choice for choice in typing.get_args(hint) if choice is not types.NoneType)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(item)
    if hint is float and isinstance(item, (str, int)) and not isinstance(item, bool):
        return float(item)
    if typing.get_origin(hint) in (frozenset, tuple):
        return typing.get_origin(hint)(_restored(each, typing.get_args(hint)[0]) for each in item)
    return item
