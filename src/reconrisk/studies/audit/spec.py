"""An audit as a value: what a spec file states, what the command line adds, and the line that repeats a result."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.mechanism import NoiseMechanism, dp_sgd
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.registry import Choice
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import (
    check_positive,
    check_probability,
    check_real,
    check_whole,
    did_you_mean,
    invalid_input,
)
from reconrisk.metrics.goals import goal_from_text, limit_from_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_REMEDY = "Pass a TOML or JSON file, or JSON itself."
_NOT_IN_SIGNATURE = ("store", "out", "redact")  # where results go, not what they are


@serializable("training-settings")
@dataclass(frozen=True)
class Training:
    """The settings of a finished DP-SGD run.

    >>> Training(noise_multiplier=1.1, sampling_probability=0.01, steps=100).mechanism.steps
    100
    """

    noise_multiplier: float
    clip_norm: float = 1.0
    sampling_probability: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        _ = self.mechanism  # its checks are those of the settings

    @property
    def mechanism(self) -> NoiseMechanism:
        """The whole run."""
        return dp_sgd(**dataclasses.asdict(self))


@serializable("audit-spec")
@dataclass(frozen=True)
class AuditSpec:
    """Everything that an audit is told, by name: ``reconrisk audit`` reads it from TOML, JSON or options.

    ``folder`` is what paths and modules are relative to. ``attacks`` are a portfolio or attacks by name. None and empty
    stand for the default of :func:`reconrisk.studies.audit.run.audit`; ``account`` is the file of a Fisher account.

    Guarantee: ``spec_from_mapping(spec.mapping())`` is the same spec.

    >>> spec_from_mapping({"model": "lenet", "data": "mnist", "trials": 4}).line()
    '{"model":"lenet","data":"mnist","trials":4}'
    """

    model: str
    data: str
    folder: str = "."
    weights: str | None = None
    train_mode: bool = False
    split: str | None = None
    label: str | None = None
    data_range: tuple[float, float] | None = None
    records: tuple[int, ...] | None = None
    trials: int | None = None
    batch_size: int = 1
    local_steps: int | None = None
    local_learning_rate: float | None = None
    threat: ThreatModel | None = None
    defenses: tuple[Choice, ...] = ()
    attacks: tuple[Choice, ...] = (Choice("quick"),)
    goals: tuple[Goal, ...] = ()
    max_risk: tuple[Limit, ...] = ()
    budget: str = "2min"
    seed: int = 0
    confidence: float = 0.95
    training: Training | None = None
    account: str | None = None
    store: str | None = None
    out: str = "audit-report"
    redact: bool | None = None

    def path(self, stated: str) -> Path:
        """A stated path, from where the process is."""
        return Path(self.folder, Path(stated).expanduser())

    def mapping(self) -> dict[str, Any]:
        """What differs from the defaults, as a spec file states it."""
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {field.name: _plain(value) for field, value in values if value != field.default}

    def line(self) -> str:
        """All that the result depends on, as JSON in one line; for the folder of the spec, if that is absolute.

        Guarantee: no path of this machine is in it that was not stated.
        """
        left_out = (*_NOT_IN_SIGNATURE, "folder") if Path(self.folder).is_absolute() else _NOT_IN_SIGNATURE
        stated = {key: value for key, value in self.mapping().items() if key not in left_out}
        return json.dumps(stated, separators=(",", ":"))


def read_spec(source: str | Path) -> AuditSpec:
    """The spec in a TOML or JSON file, or in a text that begins with a brace.

    Guarantee: unknown keys, wrong types and missing keys are refused, naming the key and the nearest known one. Paths
    in a file are relative to it.

    >>> read_spec('{"model": "lenet", "data": "mnist", "trails": 4}')
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: trails: Expected a known key. Did you mean trials?
    """
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return spec_from_mapping(_parsed(source, "the spec", json.loads))
    path = Path(source)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(path, f"byte {error.start}", "It is not text in UTF-8.", _REMEDY) from error
    is_json = path.suffix == ".json" or text.lstrip().startswith("{")
    stated = _parsed(text, path, json.loads if is_json else tomllib.loads)
    try:
        spec = spec_from_mapping(stated)
    except InvalidInput as error:
        raise InvalidInput(f"{path}, {error}") from error
    return dataclasses.replace(spec, folder=str(path.parent / spec.folder))


def spec_from_mapping(stated: Mapping[str, Any]) -> AuditSpec:
    """The spec of keys and values as a file states them."""
    values = values_from_mapping(stated)
    for key in ("model", "data"):
        if key not in values:
            raise InvalidInput(f"{key}: Expected this key. State {'what is trained' if key == 'model' else 'on what'}.")
    return AuditSpec(**values)


def values_from_mapping(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a spec from keys and values as a file states them; each is checked by itself."""
    values = {}
    for key, value in stated.items():
        if key not in _READERS:
            raise InvalidInput(f"{key}: Expected a known key. {_nearest(key, _READERS)}")
        try:
            values[key] = _READERS[key](key, value)
        except InvalidInput as error:
            raise InvalidInput(f"{key}: {error}") from error
    return values


def _parsed(text: str, path: str | Path, read: Any) -> Mapping[str, Any]:
    try:
        stated = read(text)
    except ValueError as error:  # of either format
        raise InvalidFile(path, "syntax", f"It cannot be read: {error}.", _REMEDY) from error
    if not isinstance(stated, dict):
        raise InvalidFile(path, "whole", f"It is a {type(stated).__name__}, not keys with values.", _REMEDY)
    return stated


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise invalid_input(name, value, "to be a text")
    return value


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid_input(name, value, "to be true or false")
    return value


def _seed(name: str, value: Any) -> int:
    if check_whole(name, value, minimum=0) >= 2**63:
        raise invalid_input(name, value, "< 2^63")
    return int(value)


def _several(name: str, value: Any) -> list[Any]:
    """A list, or one element as a list of it."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _data_range(name: str, value: Any) -> tuple[float, float]:
    ends = value.split(",") if isinstance(value, str) else value
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError) as error:
        raise invalid_input(name, value, "to be two numbers such as [-1, 1]") from error
    return check_real(name, low), check_real(name, high)


def _records(name: str, value: Any) -> tuple[int, ...]:
    """Rows in a list, or in a text such as 0,3,8-15."""
    if not isinstance(value, str):
        return tuple(check_whole(name, row, minimum=0) for row in _several(name, value))
    rows: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise invalid_input(name, value, "to be whole numbers such as 0,3,8-15")
        rows += range(int(first), int(last or first) + 1)
    if not rows:
        raise invalid_input(name, value, "to be whole numbers such as 0,3,8-15, the smaller first")
    return tuple(rows)


def _threat(name: str, value: Any) -> ThreatModel:
    known = _table(name, value, ("sees", "knows", "controls"))
    knows = known.get("knows", [Knows.DEFENSE.value])
    return ThreatModel(known.get("sees", Sees.ONE_UPDATE), knows, known.get("controls", []))


def _training(name: str, value: Any) -> Training:
    known = [field.name for field in dataclasses.fields(Training)]
    stated = _table(name, value, known)
    if "noise_multiplier" not in stated:
        raise invalid_input(name, value, "to state the noise_multiplier")
    return Training(**stated)


def _table(name: str, value: Any, known: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid_input(name, value, f"to be a table with {', '.join(known)}")
    for key in value:
        if key not in known:
            raise InvalidInput(f"Expected {name}.{key} to be one of {', '.join(known)}. {_nearest(key, known)}".strip())
    return value


def _confidence(name: str, value: Any) -> float:
    if not 0 < check_probability(name, value) < 1:
        raise invalid_input(name, value, "in (0, 1)", "0.95 is usual.")
    return float(value)


_READERS: Mapping[str, Any] = {
    **dict.fromkeys(("model", "data", "folder", "weights", "split", "label", "account", "store", "out"), _text),
    **dict.fromkeys(("train_mode", "redact"), _truth),
    **dict.fromkeys(("trials", "batch_size", "local_steps"), check_whole),
    **dict.fromkeys(
        ("defenses", "attacks"), lambda name, value: tuple(Choice.read(name, each) for each in _several(name, value))
    ),
    "data_range": _data_range,
    "records": _records,
    "local_learning_rate": check_positive,
    "threat": _threat,
    "goals": lambda name, value: tuple(goal_from_text(each) for each in _several(name, value)),
    "max_risk": lambda name, value: tuple(limit_from_text(each) for each in _several(name, value)),
    "budget": lambda name, value: value if isinstance(value, str) else f"{check_positive(name, value):g}s",
    "seed": _seed,
    "confidence": _confidence,
    "training": _training,
}
KEYS = tuple(_READERS)
"""The keys of a spec file."""


def _plain(value: Any) -> Any:
    """A value as a spec file states it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Choice):
        return value.plain()
    if isinstance(value, ThreatModel):
        parts = {"knows": value.knows, "controls": value.controls}
        return {"sees": value.sees.value, **{key: sorted(each.value for each in part) for key, part in parts.items()}}
    if isinstance(value, Training):
        return dataclasses.asdict(value)
    if isinstance(value, Goal):
        return f"{value.metric}{'>=' if value.higher_is_better else '<='}{_shortest(value.threshold)}"
    if isinstance(value, Limit):
        return f"{_plain(value.goal)}: {'100%' if value.at_most == 1 else _shortest(value.at_most)}"
    return value


def _shortest(number: float) -> str:
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _nearest(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known).strip() or f"Known are {', '.join(known)}."
