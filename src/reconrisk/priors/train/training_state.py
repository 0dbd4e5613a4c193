"""Training that can be stopped after any step and resumed without a difference."""

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
from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import check_all_within, check_not_empty, check_whole, invalid_input
from reconrisk.priors.network import check_range

_CHECKPOINT, _STATE, _TRAINED = "training.safetensors", "training.json", "trained.json"
_REMEDY = "Pass another folder, or remove it."


@dataclasses.dataclass(frozen=True)
class TrainingRecord:
    """Description of a finished training, as stored in the folder of a prior.

    Attributes:
        kind: ``"diffusion"`` or ``"gan"``.
        settings: Settings of the training.
        records: Digest of the training records.
        count: Number of training records.
        seconds: Processor time.
        data_range: Range of their values, (0, 1) if the folder does not state it.
    """

    kind: str
    settings: Mapping[str, Any]
    records: str
    count: int
    seconds: float
    data_range: tuple[float, float] = (0.0, 1.0)


@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until a step is complete; only the main thread receives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    struck: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: struck.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if struck and callable(before):  # raise KeyboardInterrupt now that the step is complete
        before(*struck[0])


class Training(ABC):
    """Networks and optimizers at a step of a training, with their folder.

    The draws of a step depend on its number alone, so that the state is all that must be kept.
    """

    kind: str
    saved: str  # file or folder that marks a saved prior
    networks: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]

    def __init__(self, settings: Any, records: Tensor, data_range: tuple[float, float], folder: Path) -> None:
        check_range("data_range", data_range)
        check_not_empty("records", records)
        check_all_within("records", records, data_range, "Pass the public range of the values as data_range.")
        if records.ndim != 4:
            raise invalid_input(
                "records.shape", tuple(records.shape), "to be (n, channels, height, width)", "Pass pictures."
            )
        low, high = data_range
        # in the units of the networks: the ends of the range are -1 and 1
        self.values = (2 * (records - low) / (high - low) - 1).float().contiguous()
        self.settings, self.folder, self.data_range = settings, folder, (float(low), float(high))
        self.step, self.seconds = 0, 0.0
        self._is_whole = True  # False during a step, when no checkpoint may be written

    @abstractmethod
    def advance(self, rng: torch.Generator) -> None:
        """Take one step with random numbers from ``rng``."""

    @abstractmethod
    def save(self) -> None:
        """Write the trained network to the folder."""

    def run(self, checkpoint_every: int) -> Path:
        """Take all remaining steps, with a progress bar, and return the folder with the trained network."""
        check_whole("checkpoint_every", checkpoint_every)
        finished = read_training_record(self.folder)
        if finished is not None:
            found = {**dataclasses.asdict(finished), "data_range": list(finished.data_range)}
            self._check_same(found, self.folder, "It holds a prior of another training", "It holds the prior of a")
            return self.folder
        self._check_folder()
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
            if self._is_whole and self.step:  # optimizers have no state before the first step
                self.keep()
            raise
        finally:
            bar.close()
        return self.finish()

    def remaining(self) -> Iterator[int]:
        """Take the remaining steps, and yield the number of each afterwards."""
        while self.step < self.settings.steps:
            begun = time.process_time()
            with _delay_interrupt():
                self._is_whole = False
                # seeds of different trainings do not overlap within a million steps
                self.advance(torch.Generator().manual_seed((self.settings.seed * 1_000_003 + self.step) % 2**63))
                self.step += 1
                self._update_average()
                self.seconds += time.process_time() - begun
                self._is_whole = True
            yield self.step

    def keep(self) -> None:
        """Write a checkpoint to the folder."""
        self._check_finite()
        tensors = {f"{part}.{key}": value for part, key, value in self._tensors()}
        stated = {"step": str(self.step), "seconds": repr(self.seconds)}
        text = json.dumps(self.identity)
        # description first: resume() checks it before it reads the tensors
        write_atomically(self.folder / _STATE, lambda path: path.write_text(text, encoding="utf-8"))
        write_atomically(self.folder / _CHECKPOINT, lambda path: save_file(tensors, path, stated))

    def resume(self) -> None:
        """Load the checkpoint in the folder, if there is one of the same training."""
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
            raise InvalidFile(path, "state", "It is not a complete state of this training.", _REMEDY) from error

    def finish(self) -> Path:
        """Save the prior and the description of its training, and remove the checkpoint."""
        self._check_finite()
        self.save()
        facts = TrainingRecord(count=len(self.values), seconds=round(self.seconds, 1), **self.identity)
        write_training_record(self.folder, facts)
        for name in (_CHECKPOINT, _STATE):
            (self.folder / name).unlink(missing_ok=True)
        return self.folder

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Kind, settings, digest of the records and their range: the values that identify a training."""
        settings = json.loads(json.dumps(dataclasses.asdict(self.settings)))
        records = hashlib.sha256(self.values.cpu().numpy().tobytes()).hexdigest()[:16]
        return {"kind": self.kind, "settings": settings, "records": records, "data_range": list(self.data_range)}

    def _check_folder(self) -> None:
        """Refuse a folder with other files, which could be mistaken for those of the prior or overwritten."""
        held = sorted(each.name for each in self.folder.iterdir()) if self.folder.is_dir() else []
        files = [name for name in held if not name.startswith(".")]
        state = _read(self.folder / _STATE) or {}  # written first, so a killed training may have left only this file
        if not files or (self.folder / _CHECKPOINT).is_file() or {"records", "settings"} <= state.keys():
            return
        if self.saved in files:
            problem = "It holds a prior without a description of its training."
            raise InvalidFile(self.folder, _TRAINED, problem, _REMEDY)
        remedy = "Pass a new or an empty folder: existing files are not overwritten."
        raise InvalidFile(self.folder, files[0], "It does not belong to a training of this kind.", remedy)

    def _check_same(self, stated: Mapping[str, Any], path: Path, problem: str, of_kind: str) -> None:
        """Refuse the checkpoint or prior of another training, and name the difference."""
        unstated = {"kind": self.kind, "data_range": [0.0, 1.0]}  # defaults of older files
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
        given = "" if name in ("records", "settings") else f", {name} {theirs.get(name)} instead of {mine[name]}"
        raise InvalidFile(path, name, f"{problem}{given}.", _REMEDY)

    def _check_finite(self) -> None:
        """Refuse to save weights that are not finite."""
        if all(bool(value.isfinite().all()) for value in self.networks["network"].state_dict().values()):
            return
        condition = f"to be so small that weights stay finite until step {self.step}"
        remedy = "Pass a lower learning_rate and a new folder: the training diverged."
        raise invalid_input("learning_rate", self.settings.learning_rate, condition, remedy)

    def _update_average(self) -> None:
        """Move the average towards the network, faster during the first steps; integer buffers are copied."""
        # the first averages extend over about a tenth of the steps so far, not over the initial weights
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
    """Refuse pictures whose sides cannot be halved often enough.

    Args:
        shape: Shape (channels, height, width) of a picture.
        halvings: Number of halvings.
        remedy: Advice for the error message.

    Raises:
        InvalidInput: If a side is not divisible by 2 to the power of ``halvings``.
    """
    if any(side % 2**halvings for side in shape[1:]):
        raise invalid_input("records.shape", shape, f"to have sides divisible by {2**halvings}", remedy)


def write_training_record(folder: Path, facts: TrainingRecord) -> Path:
    """Write the description of a training to the folder of its prior.

    Args:
        folder: Folder of the prior.
        facts: Description of the training.

    Returns:
        The path of the file.
    """
    text = json.dumps(dataclasses.asdict(facts), indent=2) + "\n"
    return write_atomically(folder / _TRAINED, lambda path: path.write_text(text, encoding="utf-8"))


def read_training_record(folder: str | Path) -> TrainingRecord | None:
    """Read the description of the training from the folder of a prior.

    Args:
        folder: Folder of the prior.

    Returns:
        The description, None if there is none.

    Raises:
        InvalidFile: If the file is damaged.
    """
    path = Path(folder) / _TRAINED
    stated = _read(path)
    if stated is None:
        return None
    try:
        ends = stated.get("data_range", (0.0, 1.0))
        check_range("data_range", ends)
        return TrainingRecord(**{**stated, "data_range": (float(ends[0]), float(ends[1]))})
    except (InvalidInput, TypeError) as error:
        raise InvalidFile(path, "keys", "It does not describe a training.", _REMEDY) from error


def is_unfinished(folder: Path) -> bool:
    """Return True if a folder holds the checkpoint of an unfinished training and no prior.

    Args:
        folder: The folder.

    Returns:
        True if the training can be resumed.
    """
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
