"""Priors that a word states: fitted to public records, shipped with the package, or in a folder."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from reconrisk.attacks.baselines import Prior
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import did_you_mean, refuse
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.load.bundled import fitting
from reconrisk.priors.load.diffusers import diffusion
from reconrisk.priors.load.folders import prior_folder, range_in, shipped_names, shipped_shape
from reconrisk.priors.load.gan import gan
from reconrisk.priors.network import check_fits
from reconrisk.priors.training_state import trained_in

GAUSSIAN = "gaussian"
"""The word for a normal law that is fitted to public records."""

SHIPPED = "shipped"
"""The word for the prior of the package that explains public records best."""

_DIFFUSION, _GAN = "diffusion", "gan"
_KINDS = {DiffusionPrior: _DIFFUSION, GaussianPrior: GAUSSIAN, GeneratorPrior: _GAN}


@dataclass(frozen=True, eq=False)
class StatedPrior:
    """A prior with where it comes from, in words; ``trained_on`` names the data of a shipped one."""

    value: Prior
    source: str
    trained_on: str = ""

    @property
    def word(self) -> str:
        """What states it, of whatever kind an attack takes."""
        return f"{_GAN}/{self.value.name}" if isinstance(self.value, GeneratorPrior) else self.value.name

    @property
    def said(self) -> str:
        """Which it is, and whom it may not be tried on."""
        warning = "; what it rebuilds of those it may only remember" if self.trained_on else ""
        return f"{self.value.name} ({self.source}){warning}"

    def is_of(self, attack: Any) -> bool:
        """Whether an attack has it, as it is or as a denoiser."""
        held = getattr(attack, "prior", None)
        return held is self.value or (isinstance(self.value, GaussianPrior) and held is self.value.diffusion)


def kinds_of(build: Callable[..., Any]) -> tuple[str, ...]:
    """The kinds of prior that an attack takes, by the function that configures it; a bare name is of the first.

    >>> from reconrisk.attacks.with_prior.gifd import gifd
    >>> from reconrisk.attacks.baselines import prior_alone
    >>> kinds_of(gifd), kinds_of(prior_alone)
    (('gan',), ('diffusion', 'gaussian', 'gan'))
    """
    hint = typing.get_type_hints(build).get("prior")
    taken = typing.get_args(hint) or (hint,)
    return tuple(kind for each, kind in _KINDS.items() if each in taken)


def kind_of(prior: Prior) -> str:
    """What kind of prior it is.

    >>> from reconrisk.priors.generator import generator
    >>> kind_of(generator(lambda latents: latents, (2,), 2))
    'gan'
    """
    return _KINDS[type(prior)]


def is_prior_name(word: str) -> bool:
    """Whether a word states a prior by itself, and not by a folder.

    >>> is_prior_name("gaussian"), is_prior_name("./mnist")
    (True, False)
    """
    kind, _, name = word.rpartition("/")
    kinds = (kind,) if kind else (_DIFFUSION, _GAN)
    return word in (GAUSSIAN, SHIPPED) or any(
        name in shipped_names(kind) for kind in kinds if kind in (_DIFFUSION, _GAN)
    )


def prior_by_name(word: str, kinds: tuple[str, ...], data_range: tuple[float, float] = (0.0, 1.0)) -> StatedPrior:
    """The shipped prior of a name, or the one in a folder, for records of this range; ``gan/mnist`` says its kind too.

    One that was trained on records of another range is scaled, the ends of its range to those of this one, and the
    source says so. Whether the records fill the range they are declared in cannot be seen here.

    Guarantee: nothing is downloaded, and what is neither a name nor a folder is refused.
    Edge cases: ``gaussian`` and ``shipped``, which need public records, are refused here.

    >>> prior_by_name("gaussian", ("diffusion",))
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected prior='gaussian' to come with public records. Pass the prior itself.
    """
    if word in (GAUSSIAN, SHIPPED):
        raise refuse("prior", word, "to come with public records", "Pass the prior itself.")
    stated, _, name = word.rpartition("/")
    kind = next((kind for kind in kinds if name in shipped_names(kind) and stated in ("", kind)), None)
    if kind is not None:
        return _as_shipped(_read(kind, name, data_range))
    if not Path(word).expanduser().is_dir():
        names = [name for kind in kinds for name in shipped_names(kind)]
        known = ", ".join((*(word for word in (GAUSSIAN,) if word in kinds), SHIPPED, *dict.fromkeys(names)))
        remedy = f"Nothing is downloaded.{did_you_mean(word, names)}"
        raise refuse("prior", word, f"to be {known} or a folder", remedy)
    return _from_folder(Path(word), kinds, data_range)


def shipped_for(records: Tensor, kinds: tuple[str, ...], data_range: tuple[float, float]) -> StatedPrior:
    """The shipped prior of the first of these kinds that has the records' shape, the one that explains them best.

    Guarantee: where there is one but for a missing extra, the error names the extra.
    """
    shape = tuple(records.shape[1:])
    unread: tuple[str, str] | None = None
    for kind in (kind for kind in kinds if kind != GAUSSIAN):
        names = [name for name in shipped_names(kind) if shipped_shape(kind, name) == shape]
        found = fitting(records, data_range, kind=kind) if names else None
        if found is not None:
            return _as_shipped(found)
        unread = (kind, names[0]) if names else unread
    if unread is not None:
        return _as_shipped(_read(*unread, data_range))  # which says what is missing to read it
    raise refuse("shape of a record", shape, "to be that of a shipped prior", "Train one, and pass its folder.")


def _read(kind: str, name: str | Path, data_range: tuple[float, float]) -> DiffusionPrior | GeneratorPrior:
    return diffusion(name, data_range=data_range) if kind == _DIFFUSION else gan(name, data_range=data_range)


def _from_folder(folder: Path, kinds: tuple[str, ...], data_range: tuple[float, float]) -> StatedPrior:
    trained = trained_in(folder.expanduser())
    kind = _DIFFUSION if _DIFFUSION in kinds else _GAN
    if trained is None:
        return StatedPrior(_read(kind, folder, data_range), "read from a folder")
    found = _read(trained.kind if trained.kind in kinds else kind, folder, data_range)
    said = f"read from a folder, trained on {trained.count:,} records that must not be attacked"
    return StatedPrior(found, said + _scaled(trained.data_range, data_range))


def _as_shipped(prior: DiffusionPrior | GeneratorPrior) -> StatedPrior:
    scaled = _scaled(range_in(prior_folder(prior.name, kind_of(prior))), prior.data_range)
    return StatedPrior(prior, f"shipped, trained on the training records of {prior.name}{scaled}", prior.name)


def _scaled(trained: tuple[float, float], data_range: tuple[float, float]) -> str:
    """What is said of a prior that is used in another range than that of its training."""
    if tuple(map(float, data_range)) == trained:
        return ""
    one, other = (f"[{low:g}, {high:g}]" for low, high in (trained, data_range))
    return f", scaled from {one} to {other}"


def check_prior_fits(prior: Prior, shape: tuple[int, ...], data_range: tuple[float, float]) -> None:
    """Refuse a prior that was made for records of another shape or range, by its name."""
    try:
        check_fits(prior.shape, prior.data_range, shape, data_range)
    except InvalidInput as error:
        raise InvalidInput(f"The prior {prior.name} does not fit the records. {error}") from error
