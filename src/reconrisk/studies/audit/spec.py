"""An audit as a value that spec files and command-line options state, and the line that repeats a result."""

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
_NOT_IN_SIGNATURE = ("store", "out", "redact")  # these decide where results go, not their values


@serializable("training-settings")
@dataclass(frozen=True)
class Training:
    """Settings of a finished DP-SGD run.

    Attributes:
        noise_multiplier: Standard deviation of the noise divided by the clip norm.
        clip_norm: Largest norm of the gradient of a record.
        sampling_probability: Probability that a record is in the batch of a step.
        steps: Number of steps.

    >>> Training(noise_multiplier=1.1, sampling_probability=0.01, steps=100).mechanism.steps
    100
    """

    noise_multiplier: float
    clip_norm: float = 1.0
    sampling_probability: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        _ = self.mechanism  # building it checks the settings

    @property
    def mechanism(self) -> NoiseMechanism:
        """Mechanism of the whole run."""
        return dp_sgd(**dataclasses.asdict(self))


@serializable("audit-spec")
@dataclass(frozen=True)
class AuditSpec:
    """An audit by names and numbers, which ``reconrisk audit`` reads from TOML, JSON or options.

    None and empty tuples stand for the defaults of :func:`reconrisk.studies.audit.run.audit`.

    Attributes:
        model: Name of a model, or ``module:function``.
        data: Name of a data set, or a file.
        folder: Folder that paths and modules are relative to.
        weights: File with the weights of the model.
        train_mode: True to audit the model in training mode.
        split: Split of the data set.
        label: Column of the labels in a table.
        data_range: Smallest and largest value of a record.
        records: Rows that targets are drawn from.
        trials: Number of attacked releases.
        batch_size: Records that share one update.
        local_steps: Local SGD steps of a client.
        local_learning_rate: Learning rate of the local steps.
        threat: Abilities of the adversary.
        defenses: Defenses by name.
        attacks: A portfolio, or attacks by name.
        goals: Success criteria.
        max_risk: Limits on the success.
        budget: Time for the trials.
        seed: Seed of every random choice.
        confidence: Probability that the intervals of a line hold together.
        training: Settings of the finished training run.
        account: File of the Fisher account of the training run.
        store: File that keeps the trials.
        out: Folder for the report.
        redact: True to leave records out of the report.

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
        """Return a path of the spec, relative to the working directory."""
        return Path(self.folder, Path(stated).expanduser())

    def mapping(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as in a spec file."""
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {field.name: _to_plain(value) for field, value in values if value != field.default}

    def line(self) -> str:
        """Return everything that the result depends on, as JSON in one line.

        Guarantee: no local path appears except those that the user stated. An absolute ``folder`` is left out; the line
        is then valid in that folder.
        """
        omitted = (*_NOT_IN_SIGNATURE, "folder") if Path(self.folder).is_absolute() else _NOT_IN_SIGNATURE
        stated = {key: value for key, value in self.mapping().items() if key not in omitted}
        return json.dumps(stated, separators=(",", ":"))


def read_spec(source: str | Path) -> AuditSpec:
    """Read a spec from a TOML or JSON file, or from JSON text.

    Args:
        source: Path of a file, or a text that begins with a brace.

    Returns:
        The spec; paths in a file are relative to the file.

    Raises:
        InvalidFile: If the file is missing or cannot be parsed.
        InvalidInput: If a key is unknown or missing, or a value is of the wrong kind. The message names the key, and
            the nearest known one.

    >>> read_spec('{"model": "lenet", "data": "mnist", "trails": 4}')
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: trails: Expected a known key. Did you mean trials?
    """
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return spec_from_mapping(_parse(source, "the spec", json.loads))
    path = Path(source)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(path, f"byte {error.start}", "It is not text in UTF-8.", _REMEDY) from error
    is_json = path.suffix == ".json" or text.lstrip().startswith("{")  # TOML cannot begin with a brace
    stated = _parse(text, path, json.loads if is_json else tomllib.loads)
    try:
        spec = spec_from_mapping(stated)
    except InvalidInput as error:
        raise InvalidInput(f"{path}, {error}") from error
    return dataclasses.replace(spec, folder=str(path.parent / spec.folder))


def spec_from_mapping(stated: Mapping[str, Any]) -> AuditSpec:
    """Return the spec of keys and values of a file.

    Args:
        stated: Keys and values.

    Returns:
        The spec.

    Raises:
        InvalidInput: If a key is unknown or missing, or a value is of the wrong kind.
    """
    values = values_from_mapping(stated)
    for key in ("model", "data"):
        if key not in values:
            what = "the network" if key == "model" else "the records"
            raise InvalidInput(f'{key}: Expected this key, {what}. Add --{key}, or {key} = "..." to the spec.')
    return AuditSpec(**values)


def values_from_mapping(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a spec from keys and values of a file, each checked by itself.

    Args:
        stated: Keys and values.

    Returns:
        Fields of :class:`AuditSpec`.

    Raises:
        InvalidInput: If a key is unknown, or a value is of the wrong kind.
    """
    values = {}
    for key, value in stated.items():
        if key not in _READERS:
            raise InvalidInput(f"{key}: Expected a known key. {_suggest_key(key, _READERS)}")
        try:
            values[key] = _READERS[key](key, value)
        except InvalidInput as error:
            raise InvalidInput(f"{key}: {error}") from error
    return values


def _parse(text: str, path: str | Path, read: Any) -> Mapping[str, Any]:
    try:
        stated = read(text)
    except ValueError as error:  # the base class of the errors of both parsers
        raise InvalidFile(path, "syntax", f"It cannot be read: {error}.", _REMEDY) from error
    if not isinstance(stated, dict):
        raise InvalidFile(path, "whole", f"It holds a {type(stated).__name__}, not keys and values.", _REMEDY)
    return stated


def _read_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise invalid_input(name, value, "to be a text")
    return value


def _read_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid_input(name, value, "to be true or false")
    return value


def _read_seed(name: str, value: Any) -> int:
    if check_whole(name, value, minimum=0) >= 2**63:
        raise invalid_input(name, value, "< 2^63")
    return int(value)


def _as_list(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as a list of one element."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _read_data_range(name: str, value: Any) -> tuple[float, float]:
    ends = value.split(",") if isinstance(value, str) else value
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError) as error:
        raise invalid_input(name, value, "to be two numbers such as [-1, 1]") from error
    return check_real(name, low), check_real(name, high)


def _read_records(name: str, value: Any) -> tuple[int, ...]:
    """Return rows from a list, or from a text such as 0,3,8-15."""
    if not isinstance(value, str):
        return tuple(check_whole(name, row, minimum=0) for row in _as_list(value))
    rows: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise invalid_input(name, value, "to be whole numbers such as 0,3,8-15")
        rows += range(int(first), int(last or first) + 1)
    if not rows:
        raise invalid_input(name, value, "to be whole numbers such as 0,3,8-15, the smaller first")
    return tuple(rows)


def _read_threat(name: str, value: Any) -> ThreatModel:
    known = _check_table(name, value, ("sees", "knows", "controls"))
    knows = known.get("knows", [Knows.DEFENSE.value])  # as in the default threat
    return ThreatModel(known.get("sees", Sees.ONE_UPDATE), knows, known.get("controls", []))


def _read_training(name: str, value: Any) -> Training:
    known = [field.name for field in dataclasses.fields(Training)]
    stated = _check_table(name, value, known)
    if "noise_multiplier" not in stated:
        raise invalid_input(name, value, "to state the noise_multiplier", "Add noise_multiplier, for instance 1.0.")
    return Training(**stated)


def _check_table(name: str, value: Any, known: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid_input(name, value, f"to be a table with {', '.join(known)}")
    for key in value:
        if key not in known:
            raise InvalidInput(
                f"Expected {name}.{key} to be one of {', '.join(known)}. {_suggest_key(key, known)}".strip()
            )
    return value


def _read_confidence(name: str, value: Any) -> float:
    if not 0 < check_probability(name, value) < 1:
        raise invalid_input(name, value, "in (0, 1)", "Pass 0.95, for instance.")
    return float(value)


_READERS: Mapping[str, Any] = {
    **dict.fromkeys(("model", "data", "folder", "weights", "split", "label", "account", "store", "out"), _read_text),
    **dict.fromkeys(("train_mode", "redact"), _read_bool),
    **dict.fromkeys(("trials", "batch_size", "local_steps"), check_whole),
    **dict.fromkeys(
        ("defenses", "attacks"), lambda name, value: tuple(Choice.read(name, each) for each in _as_list(value))
    ),
    "data_range": _read_data_range,
    "records": _read_records,
    "local_learning_rate": check_positive,
    "threat": _read_threat,
    "goals": lambda name, value: tuple(goal_from_text(each) for each in _as_list(value)),
    "max_risk": lambda name, value: tuple(limit_from_text(each) for each in _as_list(value)),
    "budget": lambda name, value: value if isinstance(value, str) else f"{check_positive(name, value):g}s",
    "seed": _read_seed,
    "confidence": _read_confidence,
    "training": _read_training,
}
KEYS = tuple(_READERS)
"""The keys of a spec file."""


def _to_plain(value: Any) -> Any:
    """Return a value in the form of a spec file."""
    if isinstance(value, tuple):
        return [_to_plain(each) for each in value]
    if isinstance(value, Choice):
        return value.to_plain()
    if isinstance(value, ThreatModel):
        parts = {"knows": value.knows, "controls": value.controls}
        return {"sees": value.sees.value, **{key: sorted(each.value for each in part) for key, part in parts.items()}}
    if isinstance(value, Training):
        return dataclasses.asdict(value)
    if isinstance(value, Goal):
        return f"{value.metric}{'>=' if value.higher_is_better else '<='}{_format_number(value.threshold)}"
    if isinstance(value, Limit):  # a bare 1 would be ambiguous: 1 or 1 %
        return f"{_to_plain(value.goal)}: {'100%' if value.at_most == 1 else _format_number(value.at_most)}"
    return value


def _format_number(number: float) -> str:
    """Return the shortest text that reads back as the same number."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _suggest_key(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known).strip() or f"Known are {', '.join(known)}."
