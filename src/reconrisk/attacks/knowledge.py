"""Configure attacks by name from public knowledge about the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from reconrisk.attacks.plain_function import FunctionAttack, attack_from_function
from reconrisk.attacks.prior_choice import (
    ResolvedPrior,
    check_prior_fits,
    fit_prior,
    is_fitted,
    prior_by_name,
    shipped_for,
)
from reconrisk.attacks.registry import ATTACKS, AttackInfo, attack_by_name, attack_settings, is_attack_spec
from reconrisk.core.columns import Column
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.observation import Attack
from reconrisk.core.registry import Info
from reconrisk.core.threat import Knows
from reconrisk.core.validation import invalid_input
from reconrisk.priors.gaussian import LARGEST_COVARIANCE, fit_gaussian
from reconrisk.priors.load.folders import shipped_names, shipped_shape
from reconrisk.priors.prior import Prior, is_prior
from reconrisk.priors.registry import GAUSSIAN, PRIORS, SHIPPED

_MORE_PUBLIC = "Pass public records, or attack fewer records (such as --records 0-9), so that the others are public."
_PUBLIC_FOR_CAPTURED = "Pass public records like those of the update: public= in Python, --data in the shell."
_FEWEST = 30  # records; a covariance of fewer says little about records in general
_PER_VALUE = 10  # public records per value of a record, so that an attacked record among them has little influence

Settings = dict[str, object]


class LabelledRecords(Protocol):
    """Records with labels, as in a data set."""

    @property
    def inputs(self) -> Tensor:
        """The records, along the first axis."""
        ...

    @property
    def labels(self) -> Tensor | None:
        """Labels of the records, or None."""
        ...

    @property
    def class_labels(self) -> Tensor:
        """Labels of the records as classes; raises InvalidInput if they are not classes."""
        ...

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, or None."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        ...


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """Public facts that an adversary may know before any update.

    Attributes:
        shape: Shape of one record.
        batch_size: Number of records in an update.
        public: Records like the attacked ones, or None.
        candidates: All records that the attacked ones may be, or None.
        columns: Meaning of the columns of a table, or None.
        clip_norm: Largest norm of an update, if a known defense clips updates; None otherwise.
        trained_model: Kind of trained model that is released (see ``reads`` of attacks), or None for updates.
        data_range: Range of the values of the records.
        holds_targets: True if attacked records are among the public ones. Error messages depend on it.
        is_captured: True if the attacked records are not available, as for a captured update. Error messages depend on
            it.
    """

    shape: tuple[int, ...]
    batch_size: int = 1
    public: LabelledRecords | None = None
    candidates: LabelledRecords | None = None
    columns: tuple[Column, ...] | None = None
    clip_norm: float | None = None
    trained_model: str | None = None
    data_range: tuple[float, float] = (0.0, 1.0)
    holds_targets: bool = False
    is_captured: bool = False

    def prior(self, word: str, kinds: tuple[str, ...]) -> ResolvedPrior:
        """Return the prior that a word names, of one of the given kinds.

        Args:
            word: ``gaussian``, ``shipped``, a shipped name, or a folder.
            kinds: Kinds of priors that the attack takes, in order of preference.

        Returns:
            The prior, with its origin in words.

        Guarantee: the same object for the same word and kinds. A prior for records of another shape is refused by name.
        """
        if (word, kinds) not in self._priors:
            try:
                self._priors[word, kinds] = self._read(word, kinds)
            except (InvalidInput, MissingExtra) as error:
                # Errors are stored too, so that a large prior is not read again for every attack.
                self._priors[word, kinds] = error
        found = self._priors[word, kinds]
        if isinstance(found, ResolvedPrior):
            return found
        raise found

    def fit_own_prior(self, kind: str, fit: Callable[..., Prior]) -> Prior:
        """Fit a prior of a kind that only one attack takes, and that has no row in ``PRIORS``, to the public records.

        Args:
            kind: The kind, which is also the word that selects it.
            fit: Called with records and ``data_range=``.

        Returns:
            The fitted prior.

        Guarantee: the same object for the same kind.
        """
        key = (kind, (kind,))
        if key not in self._priors:
            inputs = self.records(f"the prior {kind}").inputs
            fitted = fit(inputs, data_range=self.data_range)
            self._priors[key] = ResolvedPrior(fitted, f"fitted to {len(inputs)} public records")
        return self.prior(*key).value

    def prior_used_by(self, attack: Attack) -> ResolvedPrior | None:
        """Return the prior of an attack with its origin, or None if it has no prior."""
        held = getattr(attack, "prior", None)
        # A prior that was resolved here has a known origin; any other was configured by the caller.
        stated = (each for each in self._priors.values() if isinstance(each, ResolvedPrior) and each.is_used_by(attack))
        return next(
            stated, ResolvedPrior(held, "configured by the caller") if held is not None and is_prior(held) else None
        )

    @cached_property
    def _priors(self) -> dict[tuple[str, tuple[str, ...]], ResolvedPrior | InvalidInput | MissingExtra]:
        return {}

    def _read(self, word: str, kinds: tuple[str, ...]) -> ResolvedPrior:
        if word == GAUSSIAN:
            return self._gaussian
        if word == SHIPPED:
            return shipped_for(self.records("a shipped prior").inputs, kinds, self.data_range)
        if is_fitted(word):
            found = fit_prior(word, kinds, self.records(f"the prior {word}").inputs, self.data_range)
        else:
            found = prior_by_name(word, kinds, self.data_range)
        check_prior_fits(found.value, self.shape, self.data_range)
        return found

    @cached_property
    def _gaussian(self) -> ResolvedPrior:
        """Gaussian prior fitted to the public records, if they are numerous enough to be representative."""
        inputs, size = self.records("a Gaussian prior").inputs, math.prod(self.shape)
        if size > LARGEST_COVARIANCE:
            raise invalid_input(
                "values of a record", size, f"<= {LARGEST_COVARIANCE} for a Gaussian prior", "Pass another prior."
            )
        # At least as many records as values, for a covariance of nearly full rank.
        least = max(_FEWEST, _PER_VALUE * size if self.holds_targets else size)
        if len(inputs) < least:
            among = ", since attacked ones are among them" if self.holds_targets else ""
            raise invalid_input(
                "public records", len(inputs), f">= {least} for a Gaussian prior{among}", self.public_records_hint
            )
        return ResolvedPrior(
            fit_gaussian(inputs, data_range=self.data_range), f"fitted to {len(inputs)} public records"
        )

    def records(self, attack: str) -> LabelledRecords:
        """Return the public records; raise InvalidInput naming the attack if there are none."""
        if self.public is None:
            raise InvalidInput(
                f"Expected public records for {attack}, other than the attacked ones. {self.public_records_hint}"
            )
        return self.public

    @property
    def public_records_hint(self) -> str:
        """Advice on how to supply public records, for error messages."""
        return _PUBLIC_FOR_CAPTURED if self.is_captured else _MORE_PUBLIC


def configure_attack(
    attack: str | Attack, settings: Mapping[str, object] | None, knowledge: PublicKnowledge
) -> tuple[Attack, frozenset[Knows]]:
    """Configure an attack by name, or check that an attack is configured already.

    Args:
        attack: A name, a configured attack, or a plain function.
        settings: Settings of an attack by name; None for a configured one.
        knowledge: Public facts that settings are derived from.

    Returns:
        The attack, and the knowledge that the derived settings require.

    Raises:
        InvalidInput: If a name or setting is unknown, or settings are given for a configured attack.
    """
    if isinstance(attack, str):
        return attack_from_knowledge(attack, dict(settings or {}), knowledge)
    if settings:
        raise invalid_input(
            "settings",
            sorted(settings),
            "to be left out for a configured attack",
            "Pass them when you configure the attack.",
        )
    return attack_from_function(attack), frozenset()


def attack_from_knowledge(name: str, settings: Settings, knowledge: PublicKnowledge) -> tuple[Attack, frozenset[Knows]]:
    """Configure an attack by name: stated settings are kept, the others are derived from public knowledge.

    A setting that is itself an attack, such as a warm start, may be a pair of its name and settings. A prior may be a
    word (:meth:`PublicKnowledge.prior`); by default it is the shipped prior that fits the public records best, else a
    prior fitted to them. For ``class_mean``, the setting ``means`` has the mean of the public records of each class.

    Args:
        name: A name in :data:`reconrisk.attacks.registry.ATTACKS`, or of a plugin.
        settings: Settings stated by the user.
        knowledge: Public facts that other settings are derived from.

    Returns:
        The attack, and the knowledge that the derived settings require.

    Raises:
        InvalidInput: If the name or a setting is unknown, or a setting cannot be derived from the knowledge.

    Guarantee: stated settings are never changed.

    >>> import torch
    >>> from reconrisk.data.dataset import Dataset
    >>> toy = Dataset("toy", torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([0, 1, 1]))
    >>> attack_from_knowledge("class_mean", {}, PublicKnowledge(toy.shape, public=toy))[0].means
    tensor([[0.0000],
            [0.7500]])
    """
    info = ATTACKS[name]
    nested, known = Settings(), frozenset[Knows]()
    for key, value in settings.items():
        if is_attack_spec(value):
            nested[key], more = attack_from_knowledge(value[0], dict(value[1]), knowledge)
            known |= more
    given = {**_settings_from_layout(name, knowledge), **settings, **nested}
    word = given.get("prior")
    if info.from_knowledge and word in info.priors and word not in PRIORS:
        del given["prior"]  # a kind without a row in PRIORS: the attack's own function fits it
    elif info.priors and isinstance(word, str):
        given["prior"] = knowledge.prior(word, info.priors).value
    derived: Settings = {}
    # Stated settings win over derived ones below; the function still sees them, to derive the others.
    if info.from_knowledge:
        derived = Info(name, info.from_knowledge, "").load()(knowledge, given)
    if info.priors and "prior" not in {**given, **derived}:
        derived["prior"] = _default_prior(info, knowledge)
    attack = attack_by_name(name, **{**derived, **given})
    return attack, known | (frozenset({Knows.PRIOR}) if derived.keys() - given.keys() else frozenset())


def attack_name(attack: Attack) -> str:
    """Return the name of the function that configured an attack.

    Args:
        attack: A configured attack.

    Returns:
        Its attribute ``name``, else the name in its representation.

    >>> attack_name(attack_by_name("constant_guess"))
    'constant_guess'
    """
    name = getattr(attack, "name", None)
    return name if isinstance(name, str) else repr(attack).partition("(")[0]


def find_attack_info(attack: str | Attack) -> AttackInfo | None:
    """Return the registry row of an attack, or None for an attack without a row.

    Args:
        attack: A name or a configured attack.

    Returns:
        The row. Objects from outside this package have no row, whatever their name. Plugins are not imported.
    """
    if not isinstance(attack, str) and (isinstance(attack, FunctionAttack) or not _is_own(attack)):
        return None
    name = attack if isinstance(attack, str) else attack_name(attack)
    return ATTACKS[name] if name in tuple(ATTACKS) else None


def _is_own(attack: Attack) -> bool:
    return type(attack).__module__.partition(".")[0] == __name__.partition(".")[0]


def _settings_from_layout(name: str, knowledge: PublicKnowledge) -> Settings:
    """Derive settings from the shape of the records and the meaning of their columns."""
    known, settings = attack_settings(name), Settings()
    if "total_variation" in known and len(knowledge.shape) != 3:
        # Total variation needs channels, rows and columns.
        settings["total_variation"] = 0.0
    if "parametrization" in known and knowledge.columns is not None:
        from reconrisk.attacks.matching.variables import tabular

        settings["parametrization"] = tabular(knowledge.columns)
    return settings


def _default_prior(info: AttackInfo, knowledge: PublicKnowledge) -> object:
    """Choose a shipped prior that fits, else the first kind that is fitted to public records.

    Guarantee: if a shipped prior fits but an extra is missing to read it, the error names the extra. Falling back to a
    fitted prior would weaken the attack silently.
    """
    if knowledge.public is None:
        shipped = ((kind, word) for kind in info.priors for word in shipped_names(kind))
        words = [word for kind, word in shipped if shipped_shape(kind, word) == knowledge.shape] or ["FOLDER"]
        stated = " or ".join(f"prior={word}" for word in dict.fromkeys(words))
        remedy = f"Name one that fits (--setting {stated}), or supply public records. {knowledge.public_records_hint}"
        raise InvalidInput(
            f"Expected a prior for {info.name}, since there are no public records to choose one with. {remedy}"
        )
    try:
        return knowledge.prior(SHIPPED, info.priors).value
    except InvalidInput:
        fitted = next((kind for kind in info.priors if is_fitted(kind)), None)
        if fitted is None:
            raise
    return knowledge.prior(fitted, info.priors).value
