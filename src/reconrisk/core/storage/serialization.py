"""JSON round trip of the values in results and stores.

A registered dataclass becomes an object. Its ``kind`` is a tag that does not change when the class is renamed or moved.
The outermost object also has the ``version`` of its kind. Enums become their values, sets become sorted lists, and
infinities become strings that ``float`` parses. Reading calls the constructors, so a file can only contain values that
code could build.
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
"""Metadata of a field that JSON omits, such as a picture of a private record. Reading gives it its default."""

FIRST_VERSION = 1
"""Version of a value whose JSON has none."""

_VOCABULARY = ("columns", "guarantee", "mechanism", "metric", "papers", "reconstruction", "registry", "threat")
"""Modules of core whose kinds need no row in ``reconrisk/kinds.py``."""

_RESERVED = ("kind", "version")
_TAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A registered dataclass with its tag and version in JSON.

    Attributes:
        tag: Value of ``kind`` in JSON.
        cls: The dataclass.
        version: Version of its JSON form. It is increased when an old reader would misread the new form.
    """

    tag: str
    cls: type
    version: int

    @property
    def fields(self) -> dict[str, Any]:
        """Types of the fields in JSON, by name."""
        return _field_types(self.cls)


_BY_TAG: dict[str, Kind] = {}
_BY_CLASS: dict[type, Kind] = {}


def serializable(tag: str, *, version: int = FIRST_VERSION) -> Callable[[type[T]], type[T]]:
    """Register a dataclass for the JSON round trip.

    Args:
        tag: Noun in kebab case that never changes, such as ``"audit-result"``. Tags outside core have a row in
            ``reconrisk/kinds.py``.
        version: Version of the JSON form.

    Returns:
        The class decorator.

    Raises:
        ValueError: If the tag is not in kebab case, or another class has it.
    """
    if _TAG.fullmatch(tag) is None:
        raise ValueError(f"Expected tag={tag!r} in kebab case, such as 'audit-result'.")

    def register(cls: type[T]) -> type[T]:
        other = _BY_TAG.get(tag)
        # The same class again is allowed, for a module that is reloaded.
        if other is not None and other.cls.__qualname__ != cls.__qualname__:
            raise ValueError(f"Expected a new tag, {other.cls.__qualname__} has {tag!r} already. Choose another tag.")
        _BY_TAG[tag] = _BY_CLASS[cls] = Kind(tag, cls, version)
        return cls

    return register


def kind_of(cls: type) -> Kind:
    """Return the kind of a registered class.

    Args:
        cls: A class with the decorator :func:`serializable`.

    Returns:
        Its kind.

    Raises:
        KeyError: If the class is not registered.
    """
    return _BY_CLASS[cls]


def find_kind(tag: object) -> Kind:
    """Return the kind of a tag, importing the module that defines it.

    Args:
        tag: Value of ``kind`` in a JSON text.

    Returns:
        The kind.

    Raises:
        InvalidInput: If there is no such tag; the message suggests a similar one.
    """
    if not isinstance(tag, str):
        raise InvalidInput(f"Expected kind={tag!r} to be a tag such as audit-result.")
    if tag not in _BY_TAG:
        _load_vocabulary()
    if tag not in _BY_TAG and (home := look_up("kinds", tag)) is not None:
        importlib.import_module(home)
    if tag not in _BY_TAG:
        raise InvalidInput(_unknown_kind_message(tag))
    return _BY_TAG[tag]


def list_kinds() -> tuple[Kind, ...]:
    """Return all kinds of JSON values, sorted by tag; this imports every module that defines one."""
    _load_vocabulary()
    return tuple(find_kind(tag) for tag in sorted({*_BY_TAG, *list_keys("kinds")}))


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return a registered value as JSON text.

    Args:
        value: An object of a registered class, or a list of them.
        indent: Spaces per level; None for one line.

    Returns:
        The text.

    Raises:
        InvalidInput: If a part of the value is not registered, such as an array.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> to_json(Gaussian(noise_multiplier=1.1))
    '{"kind": "gaussian", "version": 1, "noise_multiplier": 1.1, "clip_norm": 1.0}'
    """
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def from_json(text: str) -> Any:
    """Return the value of a text that :func:`to_json` wrote.

    Args:
        text: The JSON text.

    Returns:
        The value.

    Raises:
        InvalidInput: If the text is not JSON, or not the JSON of a registered value of a supported version.

    >>> from_json('{"kind": "gaussian", "version": 1, "noise_multiplier": 1.1, "clip_norm": 1.0}')
    Gaussian(noise_multiplier=1.1, clip_norm=1.0)
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"Expected JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidInput("Expected JSON of a value, found too many nested levels.") from error
    return from_plain(plain)


def to_plain(value: object) -> Any:
    """Return a registered value as dictionaries, lists, strings and numbers.

    Args:
        value: An object of a registered class, or a list of them.

    Returns:
        The value; the outermost dictionary has the key ``version``.

    Raises:
        InvalidInput: If a part of the value is not registered, such as an array.
    """
    return _plain(value, outermost=True)


def _plain(value: object, *, outermost: bool = False) -> Any:
    kind = _BY_CLASS.get(type(value))
    if kind is not None:
        # Nested values omit the first version, which is the default on reading.
        written = {"version": kind.version} if outermost or kind.version != FIRST_VERSION else {}
        return {"kind": kind.tag, **written, **{name: _plain(getattr(value, name)) for name in kind.fields}}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item, outermost=outermost) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinities and no NaN
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidInput(
        f"Expected a number, a text or a registered value, found {type(value).__name__}. Store arrays as safetensors."
    )


def from_plain(plain: Any) -> Any:
    """Return the value that :func:`to_plain` converted.

    Args:
        plain: Dictionaries, lists, strings and numbers.

    Returns:
        The value.

    Raises:
        InvalidInput: If kind, version or a field is not known, or a constructor rejects a field.
    """
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
            f"Expected valid values for the fields of {kind.tag} ({', '.join(hints)}). {error}."
        ) from error


def _check_version(kind: Kind, version: object) -> None:
    if version == kind.version and not isinstance(version, bool):  # True == 1 in Python
        return
    is_later = isinstance(version, int) and version > kind.version
    remedy = "Update reconrisk." if is_later else "Create the file again with this version."
    raise InvalidInput(
        f"Expected {kind.tag} of version {kind.version}, the only one that this reconrisk reads, found version "
        f"{version!r}. {remedy}"
    )


def _unknown_kind_message(tag: str) -> str:
    known = {*_BY_TAG, *list_keys("kinds")}
    if tag != tag.lower():  # the first versions wrote class names instead of tags
        return (
            f"Expected kind={tag!r} to be a tag such as audit-result. The file is of an earlier version of reconrisk, "
            "which this version cannot read. Create the file again with this version."
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
    """Convert an item to the type of its field where JSON has no such type: enums, sets, tuples and infinities."""
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
