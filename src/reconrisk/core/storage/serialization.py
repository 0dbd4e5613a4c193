"""JSON round trip for the values that go into results and stores.

A registered dataclass becomes an object. Its ``kind`` is a tag that stays when the class is renamed or moved; the
outermost object states the ``version`` of its kind. Enums become their values, sets sorted lists, infinities the
strings that ``float`` reads back. Reading calls the constructors, so a file cannot hold what code could not build.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any, TypeVar

from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.links import list_keys, look_up
from reconrisk.core.validation import did_you_mean

T = TypeVar("T")

NOT_IN_JSON = types.MappingProxyType({"in_json": False})
"""Metadata of a field that is left out and read back as its default, such as a picture of a private record."""

FIRST_VERSION = 1
"""The version of a value whose JSON states none."""

_VOCABULARY = ("columns", "guarantee", "mechanism", "metric", "papers", "reconstruction", "registry", "threat")
"""Modules of core whose kinds need no row in a table: a new mechanism is one class."""

_RESERVED = ("kind", "version")
_TAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A registered dataclass, its tag in JSON, and the version of its form.

    The version is raised when a reader of the old form would misread the new one.
    """

    tag: str
    cls: type
    version: int

    @property
    def fields(self) -> dict[str, Any]:
        """Names of the fields that JSON holds, with their types."""
        return _field_types(self.cls)


_BY_TAG: dict[str, Kind] = {}
_BY_CLASS: dict[type, Kind] = {}


def serializable(tag: str, *, version: int = FIRST_VERSION) -> Callable[[type[T]], type[T]]:
    """Register a dataclass for the JSON round trip.

    Args:
        tag: A noun in kebab case that never changes, such as ``"audit-result"``. Outside core, the table of kinds
            (``reconrisk/kinds.py``) has a row for it.
        version: The version of the form.

    Returns:
        The decorator.
    """
    if _TAG.fullmatch(tag) is None:
        raise ValueError(f"Expected tag={tag!r} in kebab case, such as 'audit-result'.")

    def register(cls: type[T]) -> type[T]:
        other = _BY_TAG.get(tag)
        if other is not None and other.cls.__qualname__ != cls.__qualname__:
            raise ValueError(f"Expected one class for the tag {tag!r}, {other.cls.__qualname__} has it already.")
        _BY_TAG[tag] = _BY_CLASS[cls] = Kind(tag, cls, version)
        return cls

    return register


def kind_of(cls: type) -> Kind:
    """Return the kind that a registered class is."""
    return _BY_CLASS[cls]


def find_kind(tag: object) -> Kind:
    """Return the kind of a tag, importing the module that defines it.

    Args:
        tag: The tag in a JSON text.

    Raises:
        InvalidInput: If there is no such tag; the message names the nearest one.
    """
    if not isinstance(tag, str):
        raise InvalidInput(f"Expected kind={tag!r} to be a tag such as audit-result.")
    if tag not in _BY_TAG:
        _load_vocabulary()
    if tag not in _BY_TAG and (home := look_up("kinds", tag)) is not None:
        importlib.import_module(home)
    if tag not in _BY_TAG:
        raise InvalidInput(_unknown_kind(tag))
    return _BY_TAG[tag]


def list_kinds() -> tuple[Kind, ...]:
    """Return every kind of value that JSON may hold, sorted by tag."""
    _load_vocabulary()
    return tuple(find_kind(tag) for tag in sorted({*_BY_TAG, *list_keys("kinds")}))


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return a registered value as JSON text.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> to_json(Gaussian(noise_multiplier=1.1))
    '{"kind": "gaussian", "version": 1, "noise_multiplier": 1.1, "clip_norm": 1.0}'
    """
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def from_json(text: str) -> Any:
    """Return the value that :func:`to_json` wrote.

    >>> from_json('{"kind": "gaussian", "version": 1, "noise_multiplier": 1.1, "clip_norm": 1.0}')
    Gaussian(noise_multiplier=1.1, clip_norm=1.0)
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"Expected JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidInput("Expected JSON of a value, it is nested too deeply.") from error
    return from_plain(plain)


def to_plain(value: object) -> Any:
    """Return a registered value as dictionaries, lists, strings and numbers; the outermost states its version."""
    return _plain(value, outermost=True)


def _plain(value: object, *, outermost: bool = False) -> Any:
    kind = _BY_CLASS.get(type(value))
    if kind is not None:
        written = {"version": kind.version} if outermost or kind.version != FIRST_VERSION else {}
        return {"kind": kind.tag, **written, **{name: _plain(getattr(value, name)) for name in kind.fields}}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item, outermost=outermost) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidInput(
        f"Expected a value that a report may hold, it is {type(value).__name__}. Store arrays as safetensors."
    )


def from_plain(plain: Any) -> Any:
    """Return the value that :func:`to_plain` took apart."""
    if isinstance(plain, list):
        return tuple(from_plain(item) for item in plain)
    if not isinstance(plain, dict):
        return plain
    kind = find_kind(plain.get("kind"))
    _check_version(kind, plain.get("version", FIRST_VERSION))
    hints = kind.fields
    given = {name: item for name, item in plain.items() if name not in _RESERVED}
    for name in given:
        if name not in hints:
            near = did_you_mean(name, hints)
            raise InvalidInput(f"Expected {kind.tag}.{name} to be one of {', '.join(hints)}.{near}")
    try:
        return kind.cls(**{name: _restore(from_plain(item), hints[name]) for name, item in given.items()})
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"Expected the fields of {kind.tag} ({', '.join(hints)}) with fitting values. {error}."
        ) from error


def _check_version(kind: Kind, version: object) -> None:
    if version == kind.version and not isinstance(version, bool):
        return
    is_later = isinstance(version, int) and version > kind.version
    remedy = "Update reconrisk." if is_later else "Make it again with this version."
    raise InvalidInput(
        f"Expected {kind.tag} of version {kind.version}, the only one that this reconrisk reads, it is of version "
        f"{version!r}. {remedy}"
    )


def _unknown_kind(tag: str) -> str:
    known = {*_BY_TAG, *list_keys("kinds")}
    if tag != tag.lower():  # tags were names of classes once
        return (
            f"Expected kind={tag!r} to be a tag such as audit-result: an earlier version of reconrisk wrote it, which "
            "this one does not read. Make it again with this version."
        )
    remedy = did_you_mean(tag, known) or " A later version of reconrisk or another program wrote it."
    return f"Expected kind={tag!r} to be a kind that this reconrisk knows.{remedy}"


@cache
def _load_vocabulary() -> None:
    for name in _VOCABULARY:
        importlib.import_module(f"reconrisk.core.{name}")


@cache
def _field_types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.metadata.get("in_json", True)}


def _restore(item: Any, hint: Any) -> Any:
    """Undo what JSON cannot express: enums, sets, and infinities written as strings."""
    if item is None or dataclasses.is_dataclass(item):
        return item
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _restore(item, next(choice for choice in parts if choice is not types.NoneType))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(item)
    if hint is float and isinstance(item, (str, int)) and not isinstance(item, bool):
        return float(item)
    if origin is frozenset:
        return frozenset(_restore(each, parts[0]) for each in item)
    if origin is tuple:
        hints = repeat(parts[0], len(item)) if parts[-1] is Ellipsis else parts
        return tuple(_restore(each, one) for each, one in zip(item, hints, strict=True))
    return item
