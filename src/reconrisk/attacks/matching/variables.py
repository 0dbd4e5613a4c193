"""Variables of an attack by optimisation: labels, starts, and parametrizations of the records.

:class:`Values` varies the records themselves. :class:`Tabular` keeps the numbers of a table in their range and
represents categories by probabilities, which are rounded at the end. Generative priors are parametrizations too, see
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
from reconrisk.core.columns import CategoricalColumn, Column, NumericColumn, check_columns, check_layout, total_width
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, invalid_input
from reconrisk.releases.model_state import call_module
from reconrisk.releases.observe import find_model

_SHARPNESS = 10.0  # logits per unit of a coordinate, since update rules take steps of a few hundredths
_LOWEST = -14.0  # lowest logit relative to the largest: from further below a category recovers too slowly
_RAREST = 1e-5  # smallest starting probability of a category; its logarithm is above the lowest logit


@dataclass(frozen=True)
class Tabular:
    """Parametrisation configured by :func:`tabular`."""

    columns: tuple[Column, ...]
    whole: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_columns(self.columns)
        numbers = {column.name: column for column in self.columns if isinstance(column, NumericColumn)}
        for name in self.whole:
            if name not in numbers:
                raise invalid_input("whole", name, f"to be one of the numeric columns {', '.join(numbers)}")
            low, high = numbers[name].low, numbers[name].high
            if not float(low).is_integer() or not float(high).is_integer():
                raise invalid_input("whole", name, f"to have an integer range, not {low:g} to {high:g}")

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Return numbers unchanged and log-shares of categories; raise InvalidInput if the columns do not fit."""
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
        shares = self._blocks.gather_blocks(inputs.clamp_min(_RAREST), padding=0)
        logits = (shares / shares.sum(-1, keepdim=True)).log() / _SHARPNESS
        return self.project(self._blocks.scatter_blocks(inputs, logits), observation)

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return numbers unchanged and category probabilities."""
        del observation
        if self._blocks is None:
            return coordinates
        logits = _SHARPNESS * self._blocks.gather_blocks(coordinates, padding=-torch.inf)
        return self._blocks.scatter_blocks(coordinates, logits.softmax(-1))

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Clip numbers to their range; shift logits so that the largest is 0, which changes no probability."""
        del observation
        numbers = coordinates.clamp_min(0).minimum(self._ceiling.to(coordinates.dtype))
        if self._blocks is None:
            return numbers
        logits = self._blocks.gather_blocks(coordinates, padding=-torch.inf)
        shifted = logits - logits.amax(-1, keepdim=True)
        return self._blocks.scatter_blocks(numbers, shifted.clamp_min(_LOWEST / _SHARPNESS))

    def negative_log_density(self, coordinates: Tensor) -> float:
        """Return 0: there is no prior on values."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Round each block to its likeliest category, and columns in ``whole`` to integers."""
        records = self.project(inputs, observation)
        for column in self.columns:
            block = inputs[..., column.coordinates]
            if isinstance(column, CategoricalColumn):
                likeliest = torch.nn.functional.one_hot(block.argmax(-1), len(column.categories))
                records[..., column.coordinates] = likeliest.to(records.dtype)
            elif column.name in self.whole and column.high > column.low:
                span = column.high - column.low
                # Encoded integers are multiples of 1 / span.
                steps = (block.double() * span).round().clamp(0, span)
                records[..., column.coordinates] = (steps / span).to(records.dtype)
        return records

    def __repr__(self) -> str:
        """Return column names and numbers of categories; ranges and categories belong to the data set."""
        names = [
            f"{column.name} ({len(column.categories)})" if isinstance(column, CategoricalColumn) else column.name
            for column in self.columns
        ]
        return f"tabular([{', '.join(names)}], whole={self.whole!r})"

    @cached_property
    def _blocks(self) -> _Blocks | None:
        """Index tables of the categorical columns, or None without any."""
        columns = [column for column in self.columns if isinstance(column, CategoricalColumn)]
        if not columns:
            return None
        width, most = total_width(self.columns), max(len(column.categories) for column in columns)
        gather = torch.full((len(columns), most), width)
        scatter = torch.zeros(width, dtype=torch.int64)
        categorical = torch.zeros(width, dtype=torch.bool)
        for place, column in enumerate(columns):
            places = torch.arange(len(column.categories))
            # Unused places of short columns keep the index of the padding, one past the last coordinate.
            gather[place, : len(places)] = column.start + places
            scatter[column.coordinates] = place * most + places
            categorical[column.coordinates] = True
        return _Blocks(gather, scatter, categorical)

    @cached_property
    def _ceiling(self) -> Tensor:
        """Upper end of each coordinate: 1, or 0 for constant columns."""
        ceiling = torch.ones(total_width(self.columns))
        for column in self.columns:
            if isinstance(column, NumericColumn) and column.low == column.high:
                ceiling[column.start] = 0
        return ceiling


def tabular(columns: Sequence[Column], *, whole: Sequence[str] = ()) -> Tabular:
    r"""Configure candidates that are rows of a table: numbers in their range, categories as a softmax of free logits.

    .. math:: x_j \in [0, 1], \qquad x_{\text{block}} = \mathrm{softmax}(z_{\text{block}})

    Here :math:`x_j` is a numeric column, and a block are the coordinates of one categorical column, with free logits z.

    Pass it to an attack by optimisation: ``inverting_gradients(parametrization=tabular(columns), total_variation=0)``.
    For networks that begin with a linear layer, ``span_inversion(parametrization=tabular(columns))`` is stronger. At
    the end every block is rounded to its likeliest category.

    Args:
        columns: Columns of the table, with their public ranges and categories.
        whole: Names of numeric columns known to hold integers, which are rounded at the end.

    Returns:
        The configured parametrization.

    Raises:
        InvalidInput: If the columns are inconsistent, or ``whole`` names a column that is not numeric or has a
            fractional range.

    Assumes: records encoded as by :func:`load_dataset`; ``columns`` and their ranges are public.
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
    """Index tables of categorical columns: ``gather`` maps coordinates to (blocks, most categories), ``scatter`` back.

    One operation handles all columns, instead of one operation per column. Padding is stored after the last coordinate.
    """

    gather: Tensor
    scatter: Tensor
    categorical: Tensor

    def gather_blocks(self, values: Tensor, padding: float) -> Tensor:
        """Return the coordinates of each block along the last axis, padded."""
        padded = torch.cat([values, values.new_full((*values.shape[:-1], 1), padding)], dim=-1)
        taken: Tensor = padded.index_select(-1, self.gather.flatten())
        return taken.view(*values.shape[:-1], *self.gather.shape)

    def scatter_blocks(self, values: Tensor, blocks: Tensor) -> Tensor:
        """Return ``values`` with the categorical coordinates replaced by the values in ``blocks``."""
        spread: Tensor = blocks.flatten(-2).index_select(-1, self.scatter)
        return torch.where(self.categorical, spread, values)


class Parametrization(Protocol):
    """Protocol of the coordinates of candidates. All tensors begin with the axis of the restarts."""

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Return coordinates whose candidates are near ``inputs``.

        Args:
            observation: The observation to match.
            inputs: Starts of shape ``(restarts, records, *shape)``.
            rng: Source of randomness.

        Returns:
            Initial coordinates, with the restarts along the first axis.
        """
        ...

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the candidates, differentiable in the coordinates."""
        ...

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the nearest allowed coordinates; called after every step."""
        ...

    def negative_log_density(self, coordinates: Tensor) -> Tensor | float:
        """Return the negative log-density of the coordinates for each restart, up to a constant; 0 without a prior."""
        ...

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Return valid records, such as with definite categories, from the best candidates of one restart."""
        ...


@dataclass(frozen=True)
class Values:
    """Values of the records themselves, in units of the data range and clipped to it.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> seen = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (1,), (0.0, 4.0))
    >>> Values().decode(Values().project(torch.tensor([[[1.5]]]), seen), seen)
    tensor([[[4.]]])
    """

    def begin(self, observation: Observation, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Return the candidates scaled to [0, 1]."""
        del rng
        low, high = observation.data_range
        return self.project((inputs - low) / (high - low), observation)

    def decode(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Return the candidates scaled back to the data range."""
        low, high = observation.data_range
        return low + (high - low) * coordinates

    def project(self, coordinates: Tensor, observation: Observation) -> Tensor:
        """Clip to [0, 1]."""
        del observation
        return coordinates.clamp(0, 1)

    def negative_log_density(self, coordinates: Tensor) -> float:
        """Return 0: there is no prior on values."""
        del coordinates
        return 0.0

    def finish(self, inputs: Tensor, observation: Observation) -> Tensor:
        """Clip to the data range, which rounding may have left."""
        low, high = observation.data_range
        return inputs.clamp(low, high)


@dataclass(frozen=True, eq=False)
class LabelChoice:
    """Labels of all restarts as a function of the variables.

    Attributes:
        decode: Function from variables to labels.
        chosen: Function from variables to the classes of the best restart, or None.
        variables: Variables that the labels add to the search.
    """

    decode: Callable[[Variables], Tensor]
    chosen: Callable[[Variables], tuple[int, ...] | None]
    variables: Variables = field(default_factory=dict)


class LabelStrategy(Protocol):
    """Protocol of the way an attack obtains labels."""

    def begin(self, observation: Observation, restarts: int, rng: torch.Generator) -> LabelChoice:
        """Return the labels for an observation and a number of restarts."""
        ...


@dataclass(frozen=True)
class FixedLabels:
    """Labels that are known, or inferred from the release before the search."""

    def begin(self, observation: Observation, restarts: int, rng: torch.Generator) -> LabelChoice:
        """Return the same labels for every restart."""
        del rng
        labels = labels_for(observation)
        repeated = labels.expand(restarts, *labels.shape)
        whole = None if labels.is_floating_point() else tuple(int(label) for label in labels)
        return LabelChoice(lambda variables: repeated[: len(variables["inputs"])], lambda _: whole)


@dataclass(frozen=True)
class SoftLabels:
    """Soft labels that are optimised together with the records, unless the labels are known.

    Assumes: a loss that takes probabilities of classes, such as cross-entropy.
    Reference: Algorithm 1, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.
    """

    def begin(self, observation: Observation, restarts: int, rng: torch.Generator) -> LabelChoice:
        """Return random logits as additional variables."""
        if observation.labels is not None:
            return FixedLabels().begin(observation, restarts, rng)
        logits = torch.randn((restarts, observation.batch_size, count_classes(observation)), generator=rng)
        return LabelChoice(
            lambda variables: variables["labels"].softmax(-1),
            lambda variables: tuple(int(label) for label in variables["labels"][0].argmax(-1)),
            {"labels": logits},
        )


def count_classes(observation: Observation) -> int:
    """Return the number of outputs of the model behind a release; the model is not changed.

    Args:
        observation: The observation of the release.

    Returns:
        The number of classes, at least 2.

    Raises:
        InvalidInput: If the release has no model, or the model does not return one number per class.
    """
    model = find_model(observation.forward)
    if model is None:
        raise InvalidInput(
            "Expected the release of a model, to optimise its labels. Add Knows.LABELS to the threat model."
        )
    dtype = next((value.dtype for value in model.parameters()), torch.get_default_dtype())
    # Copies of the buffers, so that batch norm in training mode does not update its statistics.
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        # Two records, since batch norm in training mode may refuse a single one.
        shape = call_module(model, buffers, torch.zeros((2, *observation.input_shape), dtype=dtype)).shape[1:]
    if len(shape) != 1 or shape[0] < 2:
        remedy = "Add Knows.LABELS to the threat model."
        raise invalid_input(
            "shape of a record's outputs", tuple(shape), "to be one number for each of several classes", remedy
        )
    return int(shape[0])


class Start(Protocol):
    """Protocol of the first candidates of every restart."""

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Return candidates of shape (restarts, batch_size, *input_shape)."""
        ...


@dataclass(frozen=True)
class NormalStart:
    """Normal noise around the middle of the data range.

    Attributes:
        spread: Standard deviation in units of the range.
    """

    spread: float = 0.25

    def __post_init__(self) -> None:
        check_nonnegative("spread", self.spread)

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """Return independent draws."""
        low, high = observation.data_range
        shape = (restarts, observation.batch_size, *observation.input_shape)
        noise = torch.randn(shape, generator=rng, device=rng.device).to(observation.device)
        return (low + high) / 2 + self.spread * (high - low) * noise
