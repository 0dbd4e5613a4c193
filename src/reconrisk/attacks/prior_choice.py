"""Find a prior by name: fitted to public records, shipped with the package, in a folder, or from a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import did_you_mean, invalid_input
from reconrisk.priors.load.bundled import choose_shipped
from reconrisk.priors.load.folders import find_prior_folder, shipped_names, shipped_shape, trained_data_range
from reconrisk.priors.prior import Prior, is_prior
from reconrisk.priors.registry import DIFFUSION, GAUSSIAN, PRIORS, SHIPPED
from reconrisk.priors.train.training_state import read_training_record


@dataclass(frozen=True, eq=False)
class ResolvedPrior:
    """A prior together with its origin.

    Attributes:
        value: The prior.
        source: Origin of the prior in words, such as "fitted to 200 public records".
        trained_on: Name of the data that a shipped prior was trained on; empty for other priors.
    """

    value: Prior
    source: str
    trained_on: str = ""

    @property
    def word(self) -> str:
        """Word that selects this prior, for any attack that takes its kind."""
        kind, name = self.value.kind, self.value.name
        return name if kind in (DIFFUSION, GAUSSIAN, name) else f"{kind}/{name}"

    @property
    def said(self) -> str:
        """Name and origin of the prior, with a warning about its own training records."""
        warning = "; reconstructions of its own training records may come from memory" if self.trained_on else ""
        return f"{self.value.name} ({self.source}){warning}"

    def is_used_by(self, attack: Any) -> bool:
        """Return True if an attack holds this prior, as it is or in another form such as a denoiser."""
        held = getattr(attack, "prior", None)
        if held is self.value or not is_prior(held):
            return held is self.value
        return held.name == self.value.name and held.fingerprint == self.value.fingerprint


def is_fitted(word: str) -> bool:
    """Return True if a word names a kind of prior that is fitted to public records.

    Args:
        word: The word to test.

    Returns:
        True for a fitted kind.

    >>> is_fitted("gaussian"), is_fitted("shipped")
    (True, False)
    """
    return word in PRIORS and PRIORS[word].source == "records"


def is_prior_name(word: str) -> bool:
    """Return True if a word names a prior, rather than a folder.

    Args:
        word: The word to test.

    Returns:
        True for a fitted kind, ``shipped``, a shipped name (with or without its kind) or the prior of a plugin.

    >>> is_prior_name("gaussian"), is_prior_name("gan/mnist"), is_prior_name("./mnist")
    (True, True, False)
    """
    kind, _, name = word.rpartition("/")
    if word == SHIPPED or any(name in shipped_names(each) for each in PRIORS if kind in ("", each)):
        return True
    return word in PRIORS and PRIORS[word].source != "folder"


def fit_prior(word: str, kinds: tuple[str, ...], records: Tensor, data_range: tuple[float, float]) -> ResolvedPrior:
    """Fit the prior that a word names to public records.

    Args:
        word: A kind of prior that is fitted to records.
        kinds: Kinds of priors that the attack takes.
        records: Public records.
        data_range: Range of their values.

    Returns:
        The fitted prior with its origin.

    Raises:
        InvalidInput: If the attack takes no prior of this kind.
    """
    found = _check_prior(word, PRIORS.configure(word, records, data_range=data_range))
    _check_kind(word, found, kinds)
    return ResolvedPrior(found, f"fitted to {len(records)} public records")


def prior_by_name(word: str, kinds: tuple[str, ...], data_range: tuple[float, float] = (0.0, 1.0)) -> ResolvedPrior:
    """Load the shipped prior of a name, or the prior in a folder.

    A prior trained on records of another range is rescaled linearly to ``data_range``, and its source says so. The
    function cannot check that the records fill the declared range.

    Args:
        word: Name of a shipped prior, optionally with its kind (``gan/mnist``), name of a plugin's prior, or a folder.
        kinds: Kinds of priors that the attack takes, in order of preference.
        data_range: Range of the values of the records.

    Returns:
        The prior with its origin.

    Raises:
        InvalidInput: If ``word`` is neither a known name nor a folder, needs public records, or is of another kind.

    Guarantee: nothing is downloaded, and a word that is neither a name nor a folder is refused.
    Edge cases: ``gaussian`` and ``shipped``, which need public records, are refused here.

    >>> prior_by_name("gaussian", ("diffusion",))
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected prior='gaussian' to need no public records. Pass the prior object.
    """
    if word == SHIPPED or is_fitted(word):
        raise invalid_input("prior", word, "to need no public records", "Pass the prior object.")
    # A shipped name goes before a folder of the same name; ./name selects the folder.
    stated, _, name = word.rpartition("/")
    kind = next((kind for kind in kinds if name in shipped_names(kind) and stated in ("", kind)), None)
    if kind is not None:
        return _describe_shipped(_read(kind, name, data_range))
    if word in PRIORS and PRIORS[word].source == "nothing":
        found = _check_prior(word, PRIORS.configure(word))
        _check_kind(word, found, kinds)
        source = f"provided by a plugin as {word}{_scaling_note(found.data_range, data_range)}"
        return ResolvedPrior(found if found.data_range == data_range else found.scaled_to(data_range), source)
    if not Path(word).expanduser().is_dir():
        names = [name for kind in kinds for name in shipped_names(kind)]
        fitted = [kind for kind in kinds if is_fitted(kind)]
        known = ", ".join((*fitted, SHIPPED, *dict.fromkeys(names)))
        remedy = f"Nothing is downloaded.{did_you_mean(word, names)}"
        raise invalid_input("prior", word, f"to be {known} or a folder", remedy)
    return _from_folder(Path(word), kinds, data_range)


def shipped_for(records: Tensor, kinds: tuple[str, ...], data_range: tuple[float, float]) -> ResolvedPrior:
    """Return the shipped prior that fits the records best, of the first kind that has one of their shape.

    Args:
        records: Public records.
        kinds: Kinds of priors that the attack takes, in order of preference.
        data_range: Range of the values of the records.

    Returns:
        The prior with its origin.

    Raises:
        InvalidInput: If no shipped prior has the shape of the records.

    Guarantee: if a shipped prior fits but an extra is missing to read it, the error names the extra.
    """
    shape = tuple(records.shape[1:])
    unread: tuple[str, str] | None = None
    for kind in kinds:
        names = [name for name in shipped_names(kind) if shipped_shape(kind, name) == shape]
        found = choose_shipped(records, data_range, kind=kind) if names else None
        if found is not None:
            return _describe_shipped(found)
        # A prior of this shape exists but cannot be read: remember it for the error message.
        unread = (kind, names[0]) if names else unread
    if unread is not None:
        return _describe_shipped(_read(*unread, data_range))  # raises an error that names the missing extra
    raise invalid_input(
        "shape of a record", shape, "to be the shape of a shipped prior", "Train a prior and pass its folder."
    )


def _read(kind: str, name: str | Path, data_range: tuple[float, float]) -> Prior:
    return _check_prior(kind, PRIORS.configure(kind, name, data_range=data_range))


def _check_prior(word: str, found: object) -> Prior:
    if not is_prior(found):
        remedy = "Return rr.priors.fit_gaussian(records), for instance, from the function of the plugin."
        raise invalid_input("prior", word, f"to be a prior, but its function returned a {type(found).__name__}", remedy)
    return found


def _check_kind(word: str, prior: Prior, kinds: tuple[str, ...]) -> None:
    if prior.kind not in kinds:
        raise invalid_input(
            "prior", word, f"to be of a kind that the attack takes ({' or '.join(kinds)}), not {prior.kind}"
        )


def _from_folder(folder: Path, kinds: tuple[str, ...], data_range: tuple[float, float]) -> ResolvedPrior:
    readable = [kind for kind in kinds if kind in PRIORS and PRIORS[kind].source == "folder"]
    if not readable:
        raise invalid_input(
            "prior",
            str(folder),
            f"to be {' or '.join(kinds)}",
            "Pass the prior object: such priors are not read from a folder.",
        )
    folder = folder.expanduser()
    trained = read_training_record(folder)
    if trained is None:
        return ResolvedPrior(_read(readable[0], folder, data_range), "read from a folder")
    found = _read(trained.kind if trained.kind in readable else readable[0], folder, data_range)
    source = f"read from a folder, trained on {trained.count:,} records that must not be attacked"
    return ResolvedPrior(found, source + _scaling_note(trained.data_range, data_range))


def _describe_shipped(prior: Prior) -> ResolvedPrior:
    scaled = _scaling_note(trained_data_range(find_prior_folder(prior.name, prior.kind)), prior.data_range)
    return ResolvedPrior(prior, f"shipped, trained on the training records of {prior.name}{scaled}", prior.name)


def _scaling_note(trained: tuple[float, float], data_range: tuple[float, float]) -> str:
    """Return a note about rescaling, or an empty text if the prior is used in the range of its training."""
    if tuple(map(float, data_range)) == trained:
        return ""
    one, other = (f"[{low:g}, {high:g}]" for low, high in (trained, data_range))
    return f", scaled from {one} to {other}"


def check_prior_fits(prior: Prior, shape: tuple[int, ...], data_range: tuple[float, float]) -> None:
    """Check that a prior has the shape and range of the records.

    Args:
        prior: The prior to check.
        shape: Shape of one record.
        data_range: Range of the values of the records.

    Raises:
        InvalidInput: If the prior was made for records of another shape or range; the message names the prior.
    """
    try:
        prior.check_fits(shape, data_range)
    except InvalidInput as error:
        raise InvalidInput(f"The prior {prior.name} does not fit the records. {error}") from error
