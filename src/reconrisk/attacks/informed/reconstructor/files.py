"""Files of trained reconstructors: tensors as safetensors, settings as JSON in the header."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reconrisk.attacks.informed.reconstructor.attack import Reconstructor
from reconrisk.attacks.informed.reconstructor.features import Reading, Scaling
from reconrisk.attacks.informed.reconstructor.linear import ClassMap, LinearReconstruction
from reconrisk.attacks.informed.reconstructor.network import build_network
from reconrisk.attacks.informed.reconstructor.settings import ReconstructorSettings
from reconrisk.attacks.informed.reconstructor.training import read_header_and_tensors, write_tensors
from reconrisk.core.errors import InvalidFile
from reconrisk.core.storage.files import wrong_version
from reconrisk.core.storage.serialization import from_plain, to_plain

_FORMAT = 2  # since 2 the threat model has a stable tag
_REMEDY = "Save the reconstructor again."
_MAP_TENSORS = ("mean", "members", "inverse", "weights", "offset")


def save_reconstructor(attack: Reconstructor, path: str | Path) -> Path:
    """Write a trained reconstructor to a safetensors file, whole or not at all.

    Args:
        attack: Trained reconstructor.
        path: File to write.

    Returns:
        The path.

    Guarantee: :func:`load_reconstructor` returns a reconstructor with the same estimates to the last bit.
    Edge cases: a closed form contains its shadow models, so its file is about as large as they are.

    >>> import tempfile
    >>> from reconrisk.attacks.informed.reconstructor.attack import reconstructor
    >>> from reconrisk.attacks.informed.reconstructor.shadow_knowledge import ShadowKnowledge
    >>> from reconrisk.releases.shadow.training import ShadowTraining
    >>> rng = torch.Generator().manual_seed(0)
    >>> inputs, labels = torch.rand(30, 3, generator=rng), torch.arange(30) % 2
    >>> training = ShadowTraining(torch.nn.Linear(3, 2), inputs[:5], labels[:5], steps=2)
    >>> attack = reconstructor(ShadowKnowledge(training, inputs[5:], labels[5:]), rng=rng)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_reconstructor(save_reconstructor(attack, Path(folder) / "attack.safetensors")).shadows
    25
    """
    tensors: dict[str, Tensor] = {f"scaling.{name}": getattr(attack.scaling, name) for name in ("kept", "mean", "std")}
    linear, about = attack.linear, None
    if linear is not None:
        scales = [one.scale for one in linear.maps]
        about = {"by_direction": linear.by_direction, "labels": linear.labels, "ridge": linear.ridge, "scales": scales}
        tensors["linear.origin"] = linear.origin
        for number, one in enumerate(linear.maps):
            tensors |= {f"linear.{number}.{name}": getattr(one, name) for name in _MAP_TENSORS}
    if attack.network is not None:
        tensors |= {f"network.{name}": value for name, value in attack.network.state_dict().items()}
    header = {
        "format": _FORMAT,
        "settings": dataclasses.asdict(attack.settings),
        "names": attack.reading.names,
        "shapes": attack.reading.shapes,
        "linear": about,
        "network": attack.network is not None,
        "input_shape": attack.input_shape,
        "data_range": attack.data_range,
        "shadows": attack.shadows,
        "error": attack.error,
        "farthest": attack.farthest,
        "interrupted": attack.interrupted,
        "needs": to_plain(attack.needs),
    }
    return write_tensors(path, tensors, header)


def load_reconstructor(path: str | Path) -> Reconstructor:
    """Load a reconstructor that :func:`save_reconstructor` wrote.

    Args:
        path: File to read.

    Returns:
        The trained reconstructor.

    Raises:
        InvalidFile: If the file is damaged, incomplete, of another format or version, or has values that are not
            finite.

    Guarantee: the error names the defect. No code in the file is ever run.

    >>> load_reconstructor("no/such/file")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidFile: no/such/file, file: There is no such file. Save the reconstructor again.
    """
    tensors, header = read_header_and_tensors(path, _REMEDY)
    found = header.get("format")
    if not isinstance(found, int):
        raise InvalidFile(path, "header", f"Its format is {found!r}, expected {_FORMAT}.", _REMEDY)
    if found != _FORMAT:
        raise wrong_version(path, "format", "a reconstructor", found=found, reads=_FORMAT)
    for name, value in tensors.items():
        if (
            value.is_floating_point() and not bool(value.isfinite().all()) and name != "scaling.std"
        ):  # inf marks a constant coordinate
            raise InvalidFile(path, f"key {name!r}", "It has values that are not finite.", _REMEDY)
    try:
        return _attack(tensors, header)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        problem = f"It does not describe a reconstructor ({str(error).splitlines()[0]})."
        raise InvalidFile(path, "content", problem, _REMEDY) from error


def _attack(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Reconstructor:
    settings = ReconstructorSettings(**header["settings"])
    shapes = tuple(tuple(int(side) for side in shape) for shape in header["shapes"])
    shape, (low, high) = tuple(header["input_shape"]), header["data_range"]
    scaled = Scaling(*(tensors[f"scaling.{name}"] for name in ("kept", "mean", "std")))
    what = Reading(tuple(header["names"]), shapes)
    if not len(scaled.kept) == len(scaled.mean) == len(scaled.std) <= what.size or int(scaled.kept.max()) >= what.size:
        raise ValueError("its scaling does not fit its features")
    linear = None if header["linear"] is None else _linear(tensors, header["linear"])
    network = None
    if header["network"]:
        maps = None if linear is None else len(linear.maps)
        with torch.random.fork_rng(devices=[]):  # the drawn weights are replaced below
            network = build_network(settings, scaled.size, shape, (low, high), maps)
        prefix = "network."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        network.load_state_dict(own)
        network.eval().requires_grad_(requires_grad=False)
    return Reconstructor(
        settings=settings,
        reading=what,
        scaling=scaled,
        linear=linear,
        network=network,
        input_shape=shape,
        data_range=(float(low), float(high)),
        shadows=int(header["shadows"]),
        error=float(header["error"]),
        farthest=float(header["farthest"]),
        interrupted=bool(header["interrupted"]),
        needs=from_plain(header["needs"]),
    )


def _linear(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> LinearReconstruction:
    maps = []
    for number, scale in enumerate(about["scales"]):
        mean, members, inverse, weights, offset = (tensors[f"linear.{number}.{name}"] for name in _MAP_TENSORS)
        if inverse.shape != (len(members), len(members)) or weights.shape != (len(members), len(offset)):
            raise ValueError(f"the shapes of class {number} do not agree")
        maps.append(ClassMap(mean, members, float(scale), inverse, weights, offset))
    labels = None if about["labels"] is None else tuple(int(label) for label in about["labels"])
    return LinearReconstruction(
        tensors["linear.origin"], bool(about["by_direction"]), tuple(maps), labels, float(about["ridge"])
    )
