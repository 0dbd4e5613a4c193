"""The observation: everything that the adversary receives. It has no field for the target and no reference to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_all_finite, check_finite, check_not_empty, check_whole, invalid_input

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class ForwardMap(Protocol):
    """Map from candidate records and labels to the release that they would cause; the adversary can evaluate it."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """Return the release of a batch of candidates.

        Args:
            inputs: Batch of records, one per row.
            labels: Class index of each record.

        Returns:
            One tensor per released tensor, by the same names, for the batch as a whole.
        """
        ...


GAUSSIAN, LAPLACE = "gaussian", "laplace"
"""Noise distributions that an observation can have."""

_SIDE_INFORMATION = {
    "labels": Knows.LABELS,
    "record_norms": Knows.RECORD_NORM,
    "batch_statistics": Knows.BATCH_STATISTICS,
    "noise_std": Knows.DEFENSE,
    "kept": Knows.DEFENSE,
}


@dataclass(frozen=True, eq=False)
class Observation:
    """The released tensors, the map that produces such releases, and the side information of the threat model.

    Side information that the threat model does not grant is None.

    Attributes:
        released: Released tensors by name, usually the name of a parameter.
        forward: Map from candidate records to their release. If the adversary knows the defense, it includes the part
            of the defense that is not random, such as clipping.
        threat: Threat model under which the observation was made.
        input_shape: Shape of one record.
        data_range: Smallest and largest possible value of a record; public knowledge.
        batch_size: Number of records behind the release.
        labels: Class index of each record.
        record_norms: Euclidean norm of each record.
        batch_statistics: Mean and variance of the input of each batch norm layer, as ``<layer>.mean`` and
            ``<layer>.var``.
        noise_std: Standard deviation of the noise on each released value, if the adversary knows the defense.
        kept: Masks that are True where a value was sent, if the adversary knows the defense.
        noise_law: Distribution of the noise, :data:`GAUSSIAN` or :data:`LAPLACE`.
    """

    released: Mapping[str, Tensor]
    forward: ForwardMap
    threat: ThreatModel
    input_shape: tuple[int, ...]
    data_range: tuple[float, float]
    batch_size: int = 1
    labels: Tensor | None = None
    record_norms: Tensor | None = None
    batch_statistics: Mapping[str, Tensor] | None = None
    noise_std: Mapping[str, Tensor] | None = None
    kept: Mapping[str, Tensor] | None = None
    noise_law: str = GAUSSIAN

    def __post_init__(self) -> None:
        if not self.released:
            raise invalid_input("released", {}, "to contain at least one tensor", "Pass the released tensors by name.")
        for name, tensor in self.released.items():
            check_all_finite(f"released[{name!r}]", tensor, "Check the training step that produced it.")
        ends = [check_finite("data_range", end) for end in self.data_range]
        if len(ends) != 2 or not ends[0] < ends[1]:
            raise invalid_input("data_range", self.data_range, "to be (low, high) with low < high")
        for side in self.input_shape:
            check_whole("input_shape", side)
        check_whole("batch_size", self.batch_size)
        self._check_side_information()
        self._check_defense()

    def _check_side_information(self) -> None:
        for name, power in _SIDE_INFORMATION.items():
            if getattr(self, name) is not None and power not in self.threat.knows:
                remedy = f"Remove {name}, or add Knows.{power.name} to the threat."
                raise InvalidInput(f"Expected {name} to be None under a threat model without {power.value}. {remedy}")
        for name in ("labels", "record_norms"):
            values = getattr(self, name)
            if values is None:
                continue
            check_not_empty(name, values)
            if len(values) != self.batch_size:
                raise invalid_input(f"len({name})", len(values), f"to equal batch_size={self.batch_size}")
        if self.record_norms is not None and not bool((self.record_norms >= 0).all()):
            raise invalid_input("min(record_norms)", float(self.record_norms.min()), ">= 0")
        for key, statistic in (self.batch_statistics or {}).items():
            check_all_finite(f"batch_statistics[{key!r}]", statistic)

    def _check_defense(self) -> None:
        self._check_alike("noise_std", self.noise_std)
        self._check_alike("kept", self.kept)
        if self.noise_law not in (GAUSSIAN, LAPLACE):
            raise invalid_input("noise_law", self.noise_law, f"to be {GAUSSIAN!r} or {LAPLACE!r}")
        if self.noise_law != GAUSSIAN and self.noise_std is None:
            raise invalid_input("noise_law", self.noise_law, "to be left out if noise_std is None")
        for key, std in (self.noise_std or {}).items():
            if not bool((std > 0).all()):
                raise invalid_input(
                    f"min(noise_std[{key!r}])", float(std.min()), "> 0", "Leave noise_std out if there is no noise."
                )
        for key, mask in (self.kept or {}).items():
            if str(mask.dtype) != "torch.bool":  # compared as text, because core does not import torch
                raise invalid_input(f"kept[{key!r}].dtype", mask.dtype, "to be torch.bool", "Pass tensor != 0.")

    def _check_alike(self, name: str, given: Mapping[str, Tensor] | None) -> None:
        """Check that there is one tensor of the same name and shape for each released tensor."""
        if given is None:
            return
        shapes = {key: tuple(value.shape) for key, value in given.items()}
        expected = {key: tuple(value.shape) for key, value in self.released.items()}
        if shapes != expected:
            raise invalid_input(
                f"shapes of {name}", shapes, f"to be the names and shapes of the released tensors, {expected}"
            )

    @property
    def device(self) -> torch.device:
        """Device of the released tensors, on which attacks work."""
        return next(iter(self.released.values())).device

    @property
    def has_laplacian_noise(self) -> bool:
        """True if the noise is known to be Laplacian."""
        return self.noise_std is not None and self.noise_law == LAPLACE

    @property
    def is_zero(self) -> bool:
        """True if every released tensor is zero, so that the release carries no information."""
        return not any(bool(tensor.any()) for tensor in self.released.values())

    def check_covers(self, needs: ThreatModel) -> None:
        """Check that the threat model of this observation grants every power that an attack needs.

        Args:
            needs: Powers that the attack needs.

        Raises:
            InvalidInput: If it does not.
        """
        if not self.threat.covers(needs):
            raise invalid_input(
                "threat",
                self.threat,
                f"to cover what the attack needs, {needs}",
                "Choose another attack, or a threat model that grants more.",
            )

    def __repr__(self) -> str:
        """Return sizes and the threat model, without any tensor value."""
        size = sum(tensor.numel() for tensor in self.released.values())
        records = f"{self.batch_size} x {self.input_shape}"
        return f"Observation({len(self.released)} tensors, {size} values, {records}, {self.threat})"


class Attack(Protocol):
    """Protocol of a configured attack, which estimates the private records from an observation."""

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model under which the attack can run."""
        ...

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind an observation.

        Args:
            observation: Everything that the adversary receives.
            rng: Generator of all random draws.

        Returns:
            The estimated records, one per row, with the report of the attack.
        """
        ...


def check_reconstruction(name: str, found: object, observation: Observation) -> Reconstruction:
    """Check that an attack returned a reconstruction of at most as many records as the update has.

    Args:
        name: Name of the attack, for the error message.
        found: The value that the attack returned.
        observation: The observation that the attack was called with.

    Returns:
        ``found``, unchanged.

    Raises:
        InvalidInput: If ``found`` is not a Reconstruction, has no estimate, or has more estimates than there are
            records.
    """
    if not isinstance(found, Reconstruction):
        remedy = "Return a Reconstruction; a plain function may return a tensor."
        raise invalid_input(f"the type of the result of {name}", type(found).__name__, "to be Reconstruction", remedy)
    count, most = len(found.estimates), observation.batch_size
    if not count:
        remedy = "Return NaN for records that the attack does not find."
        raise invalid_input(f"number of estimates of {name}", count, ">= 1", remedy)
    if count > most:  # scoring matches estimates to records, and would pick the best of many guesses
        remedy = "Let the attack choose among its estimates."
        raise invalid_input(f"number of estimates of {name}", count, f"<= {most}, the number of records", remedy)
    return found
