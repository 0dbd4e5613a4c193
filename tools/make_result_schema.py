"""Write the JSON Schema of results from the dataclasses: ``python tools/make_result_schema.py``.

``docs/result-schema.json`` has a definition for every kind of value that JSON may hold, under its tag, and accepts
every kind of result as a whole. A test makes it anew and compares: where a definition has changed, raise the version
of its kind, unless files of the old form still mean the same.
"""

from __future__ import annotations

import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from reconrisk.core.storage.result import Result
from reconrisk.core.storage.serialization import FIRST_VERSION, Kind, kind_of, list_kinds

FILE = Path(__file__).parents[1] / "docs" / "result-schema.json"

_REAL = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}  # JSON has no infinities
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"$ref": "#/$defs/real"},
    types.NoneType: {"type": "null"},
    Any: {"type": ["string", "number", "boolean", "null"]},
}


def make_schema() -> dict[str, Any]:
    """Return the schema of all results, with a definition for each kind of value."""
    kinds = list_kinds()
    results = [kind.tag for kind in kinds if issubclass(kind.cls, Result)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A result of reconrisk",
        "description": "What save('name.json') of a result writes and rr.load reads.",
        "type": "object",
        "required": ["kind", "version"],
        "oneOf": [{"$ref": f"#/$defs/{tag}"} for tag in results],
        "$defs": {"real": _REAL, **{kind.tag: schema_of_kind(kind) for kind in kinds}},
    }


def schema_of_kind(kind: Kind) -> dict[str, Any]:
    """Return the schema of one kind: its tag, its version and its fields, all of them and no others."""
    stated = [] if kind.version == FIRST_VERSION else ["version"]  # a nested value of the first version states none
    return {
        "type": "object",
        "properties": {
            "kind": {"const": kind.tag},
            "version": {"const": kind.version},
            **{name: schema_of_type(hint) for name, hint in kind.fields.items()},
        },
        "required": ["kind", *stated, *kind.fields],
        "additionalProperties": False,
    }


def schema_of_type(hint: Any) -> dict[str, Any]:
    """Return the schema of the values of a type, as JSON has them.

    >>> schema_of_type(tuple[int, ...])
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of_type(part) for part in parts]}
    if origin is frozenset:
        return {"type": "array", "items": schema_of_type(parts[0]), "uniqueItems": True}
    if origin is tuple and parts[-1] is Ellipsis:
        return {"type": "array", "items": schema_of_type(parts[0])}
    if origin is tuple:
        items = [schema_of_type(part) for part in parts]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return _PLAIN[hint] if hint in _PLAIN else {"$ref": f"#/$defs/{kind_of(hint).tag}"}


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(make_schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
