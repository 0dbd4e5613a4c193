"""Variables of an attack by optimisation: labels, starts, and the values of a record or something that generates them.

:class:`Values` varies the records themselves. :class:`Tabular` keeps the numbers of a table in their range, and has
categories as probabilities that are rounded at the end. Generative priors are parametrizations too, see
``attacks/with_prior/latents.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from reconrisk.attacks.labels.infer import labels_for
from reconrisk.attacks.matching.optimizers import Variables
from reconrisk.core.columns import CategoricalColumn, Column, NumericColumn, check_columns, check_layout, width_of
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, invalid_input
from reconrisk.releases.model_state import called
from reconrisk.releases.observe import model_of

_SHARPNESS = 10.0  # logits per unit of a coordinate: update rules take steps of some hundredths of the data range
_LOWEST = -14.0  # logit relative to the largest: below it a category would take too long to come back
_RAREST = 1e-5  # probability with which a category begins at least; its logarithm is above the lowest logit


@dataclass(frozen=True)
class Tabular:
    """The parametrisation that :func:`tabular` returns."""

    columns: tuple[Column, ...]
    whole: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_columns(self.columns)
        numbers = {column.name: column for column in self.columns if isinstance(column, NumericColumn)}
        for name in self.whole:
            if name not in numbers:
                raise invalid_input("whole", name, f"to be one of the columns of numbers {', '.join(numbers)}")
            low, high = numbers[name].low, numbers[name].high
            if not float(low).is_integer() or not float(high).is_integer():
                raise invalid_input("whole", name, f"to have whole ends of its range, they are {low:g} and {high:g}")

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Numbers as they are, of categories the logarithm of their share; refused where the columns do not fit."""
        del rng
        check_layout(self.columns, observation.input_shape)
        if tuple(observation.data_range) != (0, 1):
            remedy = "Encode the table as load_dataset does, and pass data_range=(0, 1) to observe."
            raise invalid_input(
                "data_range", observation.data_range, "to be (0, 1), the range of encoded columns", remedy
            )
        inputs = inputs.clamp(0, 1)
        if self._blocks is None:
            return self.project(inputs, observation)
        shares = self._blocks.of(inputs.clamp_min(_RAREST), padding=0)
        logits = (shares / shares.sum(-1, keepdim=True)).log() / _SHARPNESS
        return self.project(self._blocks.within(inputs, logits), observation)

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Numbers as they are, of categories the probabilities."""
        del observation
        if self._blocks is None:
            return coordinates
        logits = _SHARPNESS * self._blocks.of(coordinates, padding=-torch.inf)
        return self._blocks.within(coordinates, logits.softmax(-1))

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Numbers clipped to their range; logits shifted so that the largest is 0, which changes no probability."""
        del observation
        numbers = coordinates.clamp_min(0).minimum(self._ceiling.to(coordinates.dtype))
        if self._blocks is None:
            return numbers
        logits = self._blocks.of(coordinates, padding=-torch.inf)
        shifted = logits - logits.amax(-1, keepdim=True)
        return self._blocks.within(numbers, shifted.clamp_min(_LOWEST / _SHARPNESS))

    def improbability(self, coordinates: Tensor) -> float:
        """Nothing is believed of values."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """The likeliest category of each block, one-hot, and whole numbers in the columns of ``whole``."""
        records = self.project(inputs, observation)
        for column in self.columns:
            block = inputs[..., column.coordinates]
            if isinstance(column, CategoricalColumn):
                likeliest = torch.nn.functional.one_hot(block.argmax(-1), len(column.categories))
                records[..., column.coordinates] = likeliest.to(records.dtype)
            elif column.name in self.whole and column.high > column.low:
                span = column.high - column.low
                steps = (block.double() * span).round().clamp(0, span)
                records[..., column.coordinates] = (steps / span).to(records.dtype)
        return records

    def __repr__(self) -> str:
        """Names of the columns with their number of categories: ranges and categories are those of the data set."""
        names = [
            f"{column.name} ({len(column.categories)})" if isinstance(column, CategoricalColumn) else column.name
            for column in self.columns
        ]
        return f"tabular([{', '.join(names)}], whole={self.whole!r})"

    @cached_property
    def _blocks(self) -> _Blocks | None:
        columns = [column for column in self.columns if isinstance(column, CategoricalColumn)]
        if not columns:
            return None
        width, most = width_of(self.columns), max(len(column.categories) for column in columns)
        gather = torch.full((len(columns), most), width)
        scatter = torch.zeros(width, dtype=torch.int64)
        categorical = torch.zeros(width, dtype=torch.bool)
        for place, column in enumerate(columns):
            places = torch.arange(len(column.categories))
            gather[place, : len(places)] = column.start + places
            scatter[column.coordinates] = place * most + places
            categorical[column.coordinates] = True
        return _Blocks(gather, scatter, categorical)

    @cached_property
    def _ceiling(self) -> Tensor:
        """1, or 0 for constant columns, whose coordinate is always 0."""
        ceiling = torch.ones(width_of(self.columns))
        for column in self.columns:
            if isinstance(column, NumericColumn) and column.low == column.high:
                ceiling[column.start] = 0
        return ceiling


def tabular(columns: Sequence[Column], *, whole: Sequence[str] = ()) -> Tabular:
    r"""Candidates whose records are rows of a table: numbers in their range, each category a softmax of free logits.

    .. math:: x_j \in [0, 1], \qquad x_{\text{block}} = \mathrm{softmax}(z_{\text{block}})

    Pass it to an attack by optimisation: ``inverting_gradients(parametrization=tabular(columns), total_variation=0)``,
    or, for networks that begin with a linear layer, the stronger ``span_inversion(parametrization=tabular(columns))``.
    At the end every block is rounded to its likeliest category, and the columns named in ``whole``, known to hold
    whole numbers, to the nearest one.

    Assumes: records encoded as :func:`load_dataset` does; ``columns`` and their ranges are public.
    Guarantee: every estimate is a row that the table could hold.
    Edge cases: a constant column is 0; a column with one category is 1.
    Reference: the softmax relaxation of TabLeak, `Vero et al. (2023) <https://arxiv.org/abs/2210.01785>`_.

    >>> age, sex = NumericColumn("age", 17, 90, start=0), CategoricalColumn("sex", ("Female", "Male"), start=1)
    >>> tabular([age, sex], whole=["age"])
    tabular([age, sex (2)], whole=('age',))
    """
    return Tabular(tuple(columns), tuple(whole))


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Where categories stand: ``gather`` takes coordinates to (blocks, most categories), ``scatter`` back.

    One operation for all columns, however many, instead of one each. The padding stands behind the last coordinate.
    """

    gather: Tensor
    scatter: Tensor
    categorical: Tensor

    def of(self, values: Tensor, padding: float) -> Tensor:
        padded = torch.cat([values, values.new_full((*values.shape[:-1], 1), padding)], dim=-1)
        taken: Tensor = padded.index_select(-1, self.gather.flatten())
        return taken.view(*values.shape[:-1], *self.gather.shape)

    def within(self, values: Tensor, blocks: Tensor) -> Tensor:
        spread: Tensor = blocks.flatten(-2).index_select(-1, self.scatter)
        return torch.where(self.categorical, spread, values)


class Parametrization(Protocol):
    """Coordinates of candidates. All tensors begin with the axis of the restarts."""

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Coordinates whose candidates are near ``inputs`` of shape ``(restarts, records, *shape)``."""
        ...

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """The candidates, differentiable."""
        ...

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """The nearest coordinates that are allowed; called after every step."""
        ...

    def improbability(self, coordinates: Tensor) -> Tensor | float:
        """Minus the logarithm of their density up to a constant, for each restart; 0 where nothing is believed."""
        ...

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """The records as they can be, such as with whole categories, from the best candidates of one restart."""
        ...


@dataclass(frozen=True)
class Values:
    """The values of the records in units of the data range, held within it.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> seen = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (1,), (0.0, 4.0))
    >>> Values().decode(Values().project(torch.tensor([[[1.5]]]), seen), seen)
    tensor([[[4.]]])
    """

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """The candidates, scaled to [0, 1]."""
        del rng
        low, high = observation.data_range
        return self.project((inputs - low) / (high - low), observation)

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Scaled back to the data range."""
        low, high = observation.data_range
        return low + (high - low) * coordinates

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Clipped to [0, 1]."""
        del observation
        return coordinates.clamp(0, 1)

    def improbability(self, coordinates: Tensor) -> float:
        """Nothing is believed of values."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Clipped to the data range, which rounding may have left."""
        low, high = observation.data_range
        return inputs.clamp(low, high)


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
        return LabelChoice(
            lambda variables: variables["labels"].softmax(-1),
            lambda variables: tuple(int(label) for label in variables["labels"][0].argmax(-1)),
            {"labels": logits},
        )


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
        raise invalid_input(
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
