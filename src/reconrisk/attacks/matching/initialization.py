"""First candidates and labels of an attack by optimisation.

A :class:`Start` draws the candidates. A :class:`LabelStrategy` provides labels: known or inferred ones, or unknowns
that are varied together with the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from reconrisk.attacks.labels.infer import labels_for
from reconrisk.attacks.matching.optimizers import Variables
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, refuse
from reconrisk.releases.model_state import called
from reconrisk.releases.observe import model_of


@dataclass(frozen=True, eq=False)
class LabelChoice:
    """Labels of all restarts as a function of the variables, and which variables those are."""

    decode: Callable[[Variables], Tensor]
    chosen: Callable[[Variables], tuple[int, ...] | None]
    variables: Variables = field(default_factory=dict)


class LabelStrategy(Protocol):
    """How an attack comes by labels."""

    def begin(self, observation: Observation, restarts: int, rng: torch.Generator) -> LabelChoice:
        """The labels for this observation."""
        ...


@dataclass(frozen=True)
class GivenLabels:
    """Known labels, or those inferred from the release before the search."""

    def begin(self, observation: Observation, restarts: int, rng: torch.Generator) -> LabelChoice:
        """The same labels in every restart."""
        del rng
        labels = labels_for(observation)
        repeated = labels.expand(restarts, *labels.shape)
        whole = None if labels.is_floating_point() else tuple(int(label) for label in labels)
        return LabelChoice(lambda variables: repeated[: len(variables["inputs"])], lambda _: whole)


@dataclass(frozen=True)
class VariedLabels:
    """Soft labels that are varied together with the records, where they are not known.

    Assumes: a loss that takes probabilities of classes, such as cross-entropy.
    Reference: Algorithm 1, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.
    """

    def begin(self, observation: Observation, restarts: int, rng: torch.Generator) -> LabelChoice:
        """Logits of a random start."""
        if observation.labels is not None:
            return GivenLabels().begin(observation, restarts, rng)
        logits = torch.randn((restarts, observation.batch_size, classes_of(observation)), generator=rng)

        def chosen(variables: Variables) -> tuple[int, ...]:
            return tuple(int(label) for label in variables["labels"][0].argmax(-1))

        return LabelChoice(lambda variables: variables["labels"].softmax(-1), chosen, {"labels": logits})


def classes_of(observation: Observation) -> int:
    """The number of outputs of the model behind the release, which stays as it is; refused where it is not several."""
    model = model_of(observation.forward)
    if model is None:
        raise InvalidInput("Expected a release of a model to vary its labels. Declare the labels as known instead.")
    dtype = next((value.dtype for value in model.parameters()), torch.get_default_dtype())
    # Copies of the buffers, so that batch norm in training mode does not move its statistics.
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        shape = called(model, buffers, torch.zeros((2, *observation.input_shape), dtype=dtype)).shape[1:]
    if len(shape) != 1 or shape[0] < 2:
        remedy = "Declare the labels as known instead: add Knows.LABELS to the threat."
        raise refuse(
            "shape of a record's outputs", tuple(shape), "to be one number for each of several classes", remedy
        )
    return int(shape[0])


class Start(Protocol):
    """First candidates for every restart."""

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Candidates of shape (restarts, batch_size, *input_shape)."""
        ...


@dataclass(frozen=True)
class NormalStart:
    """Normal noise around the middle of the data range; ``spread`` is its standard deviation in units of the range."""

    spread: float = 0.25

    def __post_init__(self) -> None:
        check_nonnegative("spread", self.spread)

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Independent draws."""
        low, high = observation.data_range
        shape = (restarts, observation.batch_size, *observation.input_shape)
        noise = torch.randn(shape, generator=rng, device=rng.device).to(observation.device)
        return (low + high) / 2 + self.spread * (high - low) * noise
