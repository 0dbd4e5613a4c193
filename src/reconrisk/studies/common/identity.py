"""Identity of a run: hashes of weights and records, versions, the machine.

A :class:`RunInfo` holds everything that the trials of a run depend on, in words and as a hash.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import metadata

import torch
from torch import Tensor, nn

from reconrisk.attacks.baselines import Prior
from reconrisk.core.serialization import serializable
from reconrisk.core.version import VERSION
from reconrisk.data.bundled_sets import SHIPPED
from reconrisk.data.dataset import Dataset
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.releases.content_hash import described
from reconrisk.studies.audit.result import Environment

_DIGITS = 12


def hash_of_text(text: str) -> str:
    """The beginning of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@serializable
@dataclass(frozen=True)
class RunInfo:
    """A run by its identity: ``run`` is a hash of ``parts``, a JSON text of everything that trials depend on.

    Two calls with the same parts are one run: the second goes on where the first ended.
    """

    run: str
    created: str
    subject: str
    data: str
    signature: str
    parts: str

    @staticmethod
    def of(parts: Mapping[str, object], *, subject: str, data: str, signature: str) -> RunInfo:
        """The run of these parts, as of now.

        >>> info = RunInfo.of({"seed": 0}, subject="Linear", data="toy", signature="rr.audit(...)")
        >>> info.run == RunInfo.of({"seed": 0}, subject="x", data="y", signature="z").run
        True
        """
        text = json.dumps(parts, sort_keys=True)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return RunInfo(hash_of_text(text), now, subject, data, signature, text)


_PACKAGES = ("torch", "numpy", "scipy")
_TENSOR = re.compile(r"\b(tensor|array)\(")


def hash_of_tensors(tensors: Iterable[tuple[str, Tensor]], *, extra: str = "") -> str:
    """The beginning of the SHA-256 of names, shapes, types and values.

    >>> hash_of_tensors([("a", torch.zeros(2))]) == hash_of_tensors([("a", torch.ones(2))])
    False
    """
    digest = hashlib.sha256(extra.encode())
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        # as bytes, since NumPy does not know every type of torch
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_DIGITS]


def hash_of_model(model: nn.Module) -> str:
    """The hash of a network: layers, mode, weights and buffers."""
    return hash_of_tensors(model.state_dict().items(), extra=f"{model!r} {model.training}")


def in_words(configured: object, *, text: str | None = None) -> str:
    """The settings of an attack or a defense as it writes them, without values of tensors, which may be records.

    >>> in_words([torch.ones(1)]).split()[0]
    'list'
    """
    written = repr(configured) if text is None else text
    if _TENSOR.search(written) is None:
        return written
    return f"{type(configured).__name__} {hash_of_tensors(_tensors_of('', configured), extra=written)}"


def settings_in_full(attack: object) -> str:
    """The settings of an attack or a defense in words, with a hash of its tensors, of which the words give the shapes.

    >>> from reconrisk.attacks.baselines import prior_mean
    >>> settings_in_full(prior_mean(torch.zeros(2))) == settings_in_full(prior_mean(torch.ones(2)))
    False
    """
    tensors, functions = list(_tensors_of("", attack)), "".join(_functions_of(attack))
    hashed = hash_of_tensors(tensors, extra=functions)
    return f"{in_words(attack)} {hashed}" if tensors or functions else in_words(attack)


def hash_of_prior(prior: Prior) -> str:
    """The hash of a prior: its weights, or its function and all that this works with, and the units it is in.

    A normal law has that of its denoiser: attacks hold the one or the other, and the belief is the same.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> one, other = (gaussian(torch.zeros(1), variance * torch.eye(1)) for variance in (1.0, 2.0))
    >>> hash_of_prior(one.diffusion) == hash_of_prior(other.diffusion)
    False
    """
    held = prior.diffusion if isinstance(prior, GaussianPrior) else prior
    return hash_of_tensors(_tensors_of("", held), extra="".join(_functions_of(held)))


def _functions_of(value: object) -> Iterator[str]:
    """Priors within settings by name, units and a hash of the function that each of them is."""
    if isinstance(value, (DiffusionPrior, GeneratorPrior)):
        yield f"{value!r}"
        function = value.predict_noise if isinstance(value, DiffusionPrior) else value.generate
        yield hash_of_model(function) if isinstance(function, nn.Module) else described(function)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _functions_of(getattr(value, each.name))


def _tensors_of(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif is_dataclass(value):
        for each in fields(value):
            yield from _tensors_of(f"{name}.{each.name}", getattr(value, each.name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors_of(f"{name}.{key}", each)
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from _tensors_of(f"{name}.{place}", each)


def hash_of_data(dataset: Dataset) -> str:
    """The hash of records and labels."""
    labels = () if dataset.labels is None else (("labels", dataset.labels),)
    return hash_of_tensors((("inputs", dataset.inputs), *labels), extra=str(dataset.data_range))


def is_bundled(dataset: Dataset) -> bool:
    """Whether every record comes with the package, so that showing it tells nobody anything."""
    if dataset.name not in SHIPPED:
        return False
    shape, known = _bundled_records(dataset.name)
    return shape == dataset.shape and {row.tobytes() for row in dataset.inputs.flatten(1).numpy()} <= known


@cache  # loading a data set takes longer than a small audit
def _bundled_records(name: str) -> tuple[tuple[int, ...], frozenset[bytes]]:
    public = SHIPPED[name]()
    return public.shape, frozenset(row.tobytes() for row in public.inputs.flatten(1).numpy())


def environment() -> Environment:
    """Versions, threads and system of this process."""
    return Environment(_versions(), torch.get_num_threads(), f"{platform.system()} {platform.machine()}")


@cache  # reading the metadata of a package takes longer than a small trial
def _versions() -> tuple[tuple[str, str], ...]:
    packages = tuple((name, metadata.version(name)) for name in _PACKAGES)
    return (("reconrisk", VERSION), ("python", platform.python_version()), *packages)
