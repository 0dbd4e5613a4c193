"""A training that can be stopped after any step, and goes on as if it had not been."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.progress import ProgressBar
from reconrisk.core.storage.files import write_whole
from reconrisk.core.validation import check_all_within, check_not_empty, check_whole, invalid_input
from reconrisk.priors.network import check_range

_CHECKPOINT, _STATE, _TRAINED = "training.safetensors", "training.json", "trained.json"
_REMEDY = "Pass another folder, or remove it."


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a finished folder says about its training.

    Settings, a digest of the records, how many they were, processor time, and the range of their values; a folder that
    does not say it has records in [0, 1].
    """

    kind: str
    settings: Mapping[str, Any]
    records: str
    count: int
    seconds: float
    data_range: tuple[float, float] = (0.0, 1.0)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until a step is whole; only the main thread is told of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    struck: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: struck.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if struck and callable(before):
        before(*struck[0])


class Training(ABC):
    """Networks and optimizers at a step, beside each other in a folder.

    What a step draws depends on its number alone, so that the state is all that has to be kept.
    """

    kind: str
    saved: str  # what is in the folder once the prior is
    networks: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]

    def __init__(self, settings: Any, records: Tensor, data_range: tuple[float, float], folder: Path) -> None:
        check_range("data_range", data_range)
        check_not_empty("records", records)
        check_all_within("records", records, data_range, "State the public range of the values.")
        if records.ndim != 4:
            raise invalid_input("records.shape", tuple(records.shape[1:]), "to be pictures: channels, height, width")
        low, high = data_range
        # as networks see them: the ends of the range are -1 and 1
        self.values = (2 * (records - low) / (high - low) - 1).float().contiguous()
        self.settings, self.folder, self.data_range = settings, folder, (float(low), float(high))
        self.step, self.seconds = 0, 0.0
        self._is_whole = True  # and not between two changes of one step, which no state may be kept of

    @abstractmethod
    def advance(self, rng: torch.Generator) -> None:
        """Take one step with what ``rng`` draws."""

    @abstractmethod
    def save(self) -> None:
        """Write what was trained to the folder."""

    def run(self, checkpoint_every: int) -> Path:
        """Take all steps that are left, with a bar, and leave the trained network in the folder."""
        check_whole("checkpoint_every", checkpoint_every)
        finished = trained_in(self.folder)
        if finished is not None:
            found = {**dataclasses.asdict(finished), "data_range": list(finished.data_range)}
            self._check_same(found, self.folder, "It holds a prior of another training", "It holds the prior of a")
            return self.folder
        self._check_place()
        self.resume()
        bar = ProgressBar("training a prior", total=self.settings.steps)
        try:
            for _ in range(self.step):
                bar.advance()
            for _ in self.remaining():
                bar.advance()
                if self.step % checkpoint_every == 0:
                    self.keep()
        except KeyboardInterrupt:
            if self._is_whole and self.step:  # before the first step optimizers have no state yet
                self.keep()
            raise
        finally:
            bar.close()
        return self.finish()

    def remaining(self) -> Iterator[int]:
        """Steps until the last, each taken before it is yielded."""
        while self.step < self.settings.steps:
            begun = time.process_time()
            with _uninterrupted():
                self._is_whole = False
                self.advance(torch.Generator().manual_seed((self.settings.seed * 1_000_003 + self.step) % 2**63))
                self.step += 1
                self._follow()
                self.seconds += time.process_time() - begun
                self._is_whole = True
            yield self.step

    def keep(self) -> None:
        """Write the state beside where the prior will be."""
        self._check_finite()
        tensors = {f"{part}.{key}": value for part, key, value in self._tensors()}
        stated = {"step": str(self.step), "seconds": repr(self.seconds)}
        text = json.dumps(self.identity)
        write_whole(self.folder / _STATE, lambda path: path.write_text(text, encoding="utf-8"))
        write_whole(self.folder / _CHECKPOINT, lambda path: save_file(tensors, path, stated))

    def resume(self) -> None:
        """Take up the state in the folder, if there is one of the same training."""
        path = self.folder / _CHECKPOINT
        if not path.is_file():
            return
        self._check_same(_read(self.folder / _STATE) or {}, path, "It is of another training", "It is the state of a")
        try:
            with safe_open(path, framework="pt") as opened:
                stated = opened.metadata() or {}
            self._load(load_file(path))
            self.step, self.seconds = int(stated["step"]), float(stated.get("seconds", 0.0))
        except (KeyError, RuntimeError, SafetensorError, ValueError) as error:
            raise InvalidFile(path, "state", "It is not a whole state of this training.", _REMEDY) from error

    def finish(self) -> Path:
        """Save the prior and what is known of its training, and remove the state."""
        self._check_finite()
        self.save()
        facts = Trained(count=len(self.values), seconds=round(self.seconds, 1), **self.identity)
        write_trained(self.folder, facts)
        for name in (_CHECKPOINT, _STATE):
            (self.folder / name).unlink(missing_ok=True)
        return self.folder

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What makes it this training and no other: kind, settings, records and their range."""
        settings = json.loads(json.dumps(dataclasses.asdict(self.settings)))
        records = hashlib.sha256(self.values.cpu().numpy().tobytes()).hexdigest()[:16]
        return {"kind": self.kind, "settings": settings, "records": records, "data_range": list(self.data_range)}

    def _check_place(self) -> None:
        """Refuse a folder of something else, whose files could be taken for those of the prior and overwritten."""
        held = sorted(each.name for each in self.folder.iterdir()) if self.folder.is_dir() else []
        files = [name for name in held if not name.startswith(".")]
        state = _read(self.folder / _STATE) or {}  # written first: killed then, a training has left it alone
        if not files or (self.folder / _CHECKPOINT).is_file() or {"records", "settings"} <= state.keys():
            return
        if self.saved in files:
            problem = "It holds a prior that does not say how it was trained."
            raise InvalidFile(self.folder, _TRAINED, problem, _REMEDY)
        remedy = "Pass a new or an empty folder: nothing in it is overwritten."
        raise InvalidFile(self.folder, files[0], "It is no part of a training of this kind.", remedy)

    def _check_same(self, stated: Mapping[str, Any], path: Path, problem: str, of_kind: str) -> None:
        """Refuse the state or prior of another training, and say what differs."""
        unstated = {"kind": self.kind, "data_range": [0.0, 1.0]}  # what a state means that does not say it
        found = {key: stated.get(key, unstated.get(key)) for key in self.identity}
        if found == self.identity:
            return
        if found["kind"] != self.kind:
            raise InvalidFile(path, "kind", f"{of_kind} {found['kind']}, not of a {self.kind}.", _REMEDY)
        theirs, mine = (
            {"data_range": each["data_range"], "records": each["records"], **_table(each["settings"])}
            for each in (found, self.identity)
        )
        name = next((name for name in mine if theirs.get(name) != mine[name]), "settings")
        given = "" if name in ("records", "settings") else f", {name} {theirs.get(name)} for {mine[name]}"
        raise InvalidFile(path, name, f"{problem}{given}.", _REMEDY)

    def _check_finite(self) -> None:
        """Refuse to keep weights that no training leads back from."""
        if all(bool(value.isfinite().all()) for value in self.networks["network"].state_dict().values()):
            return
        condition = f"to keep weights finite to step {self.step}"
        remedy = "The training diverged: pass a lower one, and a new folder."
        raise invalid_input("learning_rate", self.settings.learning_rate, condition, remedy)

    def _follow(self) -> None:
        """Move the average towards the network; slowly, once there are steps to average over. Counts are copied."""
        kept = min(self.settings.average, self.step / (self.step + 10))
        states = (self.networks[name].state_dict().values() for name in ("average", "network"))
        with torch.no_grad():
            for mean, value in zip(*states, strict=True):
                mean.lerp_(value, 1 - kept) if mean.is_floating_point() else mean.copy_(value)

    def _tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        for part, network in self.networks.items():
            for key, value in network.state_dict().items():
                yield part, key, value.contiguous()
        for part, optimizer in self.optimizers.items():
            for place, memory in optimizer.state_dict()["state"].items():
                for key, value in memory.items():
                    yield part, f"{place}.{key}", torch.as_tensor(value).contiguous()

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            part, key = name.split(".", 1)
            parts.setdefault(part, {})[key] = value
        for part, network in self.networks.items():
            network.load_state_dict(parts[part])
        for part, optimizer in self.optimizers.items():
            memory: dict[int, dict[str, Tensor]] = {}
            for name, value in parts[part].items():
                place, key = name.split(".", 1)
                memory.setdefault(int(place), {})[key] = value
            optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})


def check_sides(shape: tuple[int, ...], halvings: int, remedy: str) -> None:
    """Refuse pictures that cannot be halved so often."""
    if any(side % 2**halvings for side in shape[1:]):
        raise invalid_input("records.shape", shape, f"to have sides divisible by {2**halvings}", remedy)


def write_trained(folder: Path, facts: Trained) -> Path:
    """State in a folder how its prior was trained."""
    text = json.dumps(dataclasses.asdict(facts), indent=2) + "\n"
    return write_whole(folder / _TRAINED, lambda path: path.write_text(text, encoding="utf-8"))


def trained_in(folder: str | Path) -> Trained | None:
    """What a finished folder says of its training, None where it says nothing."""
    path = Path(folder) / _TRAINED
    stated = _read(path)
    if stated is None:
        return None
    try:
        ends = stated.get("data_range", (0.0, 1.0))
        check_range("data_range", ends)
        return Trained(**{**stated, "data_range": (float(ends[0]), float(ends[1]))})
    except (InvalidInput, TypeError) as error:
        raise InvalidFile(path, "keys", "It does not describe a training.", _REMEDY) from error


def is_unfinished(folder: Path) -> bool:
    """Whether a folder holds the state of a training that goes on, and no prior."""
    return (folder / _CHECKPOINT).is_file() and not (folder / _TRAINED).is_file()


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidFile(path, "syntax", f"It cannot be read: {error}.", _REMEDY) from error
    return _table(found)
