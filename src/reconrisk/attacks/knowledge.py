"""Attacks by name, configured with what is public about the records before any update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from reconrisk.attacks.plain_function import FunctionAttack, attack_from_function
from reconrisk.attacks.prior_choice import (
    StatedPrior,
    check_prior_fits,
    fit_prior,
    is_fitted,
    prior_by_name,
    shipped_for,
)
from reconrisk.attacks.registry import ATTACKS, AttackInfo, attack_by_name, is_stated_attack, settings_of
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

_MORE_PUBLIC = "Pass public=, or attack fewer records= (--records 0-9, for instance), so that others are public."
_PUBLIC_BESIDE_CAPTURED = "Pass public= (--data), records like those behind the update."
_FEWEST = 30  # records that a covariance is fitted to
_EACH_OF_MANY = 10  # records for each value of one, of which the attacked one is then a small part

Settings = dict[str, object]


class LabelledRecords(Protocol):
    """Records with labels, as a data set has them."""

    @property
    def inputs(self) -> Tensor:
        """The records, first axis first."""
        ...

    @property
    def labels(self) -> Tensor | None:
        """Their labels, if there are any."""
        ...

    @property
    def class_labels(self) -> Tensor:
        """Their labels where these are classes; refused otherwise."""
        ...

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, if there are any."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        ...


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """What an adversary may know before any update.

    The ``shape`` of a record is public, and so is what the ``columns`` of a table mean. ``public`` holds records like
    those attacked, ``candidates`` all that the attacked ones may be; None if there are none. An update is of
    ``batch_size`` records, and ``clip_norm`` its largest norm where a known defense clips it. Where a trained model is
    released, ``trained_model`` is its kind (``reads`` of attacks). Values lie in ``data_range``. ``holds_targets`` says
    that attacked records are among the public ones, ``is_captured`` that nobody has the attacked ones: errors advise
    accordingly.
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

    def prior(self, word: str, kinds: tuple[str, ...]) -> StatedPrior:
        """The prior of one of these kinds that a word states: ``gaussian``, ``shipped``, a shipped name, or a folder.

        Guarantee: the same object for the same word and kinds. A prior of records of another shape is refused by name.
        """
        if (word, kinds) not in self._priors:
            try:
                self._priors[word, kinds] = self._read(word, kinds)
            except (InvalidInput, MissingExtra) as error:
                self._priors[word, kinds] = error
        found = self._priors[word, kinds]
        if isinstance(found, StatedPrior):
            return found
        raise found

    def fit_own_prior(self, kind: str, fit: Callable[..., Prior]) -> Prior:
        """Fit a prior of a kind without a row, which one attack alone takes, to the public records.

        Args:
            kind: The kind, which is the word that states it.
            fit: Called with records and ``data_range=``.

        Guarantee: the same object for the same kind.
        """
        key = (kind, (kind,))
        if key not in self._priors:
            inputs = self.records(f"the prior {kind}").inputs
            fitted = fit(inputs, data_range=self.data_range)
            self._priors[key] = StatedPrior(fitted, f"fitted to {len(inputs)} public records")
        return self.prior(*key).value

    def prior_of(self, attack: Attack) -> StatedPrior | None:
        """The prior that an attack has, if it has any, and where it comes from."""
        held = getattr(attack, "prior", None)
        stated = (each for each in self._priors.values() if isinstance(each, StatedPrior) and each.is_of(attack))
        return next(
            stated, StatedPrior(held, "configured by the caller") if held is not None and is_prior(held) else None
        )

    @cached_property
    def _priors(self) -> dict[tuple[str, tuple[str, ...]], StatedPrior | InvalidInput | MissingExtra]:
        return {}

    def _read(self, word: str, kinds: tuple[str, ...]) -> StatedPrior:
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
    def _gaussian(self) -> StatedPrior:
        """The normal law of public records, if they are many enough to tell of records in general."""
        inputs, size = self.records("a Gaussian prior").inputs, math.prod(self.shape)
        if size > LARGEST_COVARIANCE:
            raise invalid_input("values of a record", size, f"<= {LARGEST_COVARIANCE} for a Gaussian prior")
        least = max(_FEWEST, _EACH_OF_MANY * size if self.holds_targets else size)
        if len(inputs) < least:
            among = ", since attacked ones are among them" if self.holds_targets else ""
            raise invalid_input(
                "public records", len(inputs), f">= {least} for a Gaussian prior{among}", self.more_public
            )
        return StatedPrior(fit_gaussian(inputs, data_range=self.data_range), f"fitted to {len(inputs)} public records")

    def records(self, attack: str) -> LabelledRecords:
        """The public records, or an error that says who needs them."""
        if self.public is None:
            raise InvalidInput(f"Expected records beside the attacked ones for {attack}. {self.more_public}")
        return self.public

    @property
    def more_public(self) -> str:
        """What whoever lacks public records can do."""
        return _PUBLIC_BESIDE_CAPTURED if self.is_captured else _MORE_PUBLIC


def configure_attack(
    attack: str | Attack, settings: Mapping[str, object] | None, knowledge: PublicKnowledge
) -> tuple[Attack, frozenset[Knows]]:
    """Return the attack of a name with settings and public knowledge, or a configured one as it is.

    Args:
        attack: A name, a configured attack, or a plain function.
        settings: Settings of an attack by name; None for a configured one.
        knowledge: Public facts that settings are derived from.

    Returns:
        The attack, and the knowledge that the derived settings require.
    """
    if isinstance(attack, str):
        return attack_from_knowledge(attack, dict(settings or {}), knowledge)
    if settings:
        raise invalid_input(
            "settings", sorted(settings), "to be left out for a configured attack", "Configure it with them."
        )
    return attack_from_function(attack), frozenset()


def attack_from_knowledge(name: str, settings: Settings, knowledge: PublicKnowledge) -> tuple[Attack, frozenset[Knows]]:
    """Configure an attack by name: stated settings as they are, the others from public knowledge.

    A setting that is itself an attack, such as a warm start, may be a pair of its name and settings. A prior may be a
    word (:meth:`PublicKnowledge.prior`); without one it is the shipped prior that fits, else one that is fitted to
    public records.

    Args:
        name: A name in :data:`reconrisk.attacks.registry.ATTACKS`, or of a plugin.
        settings: Settings that are stated.
        knowledge: Public facts that other settings are derived from.

    Returns:
        The attack, and the knowledge that the derived settings require.

    Guarantee: settings that are stated stay as they are.

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
        if is_stated_attack(value):
            nested[key], more = attack_from_knowledge(value[0], dict(value[1]), knowledge)
            known |= more
    given = {**_settings_from_layout(name, knowledge), **settings, **nested}
    word = given.get("prior")
    if info.from_knowledge and word in info.priors and word not in PRIORS:
        del given["prior"]  # a kind without a row: the attack's own function fits it
    elif info.priors and isinstance(word, str):
        given["prior"] = knowledge.prior(word, info.priors).value
    derived: Settings = {}
    if info.from_knowledge:
        derived = Info(name, info.from_knowledge, "").load()(knowledge, given)
    if info.priors and "prior" not in {**given, **derived}:
        derived["prior"] = _default_prior(info, knowledge)
    attack = attack_by_name(name, **{**derived, **given})
    return attack, known | (frozenset({Knows.PRIOR}) if derived.keys() - given.keys() else frozenset())


def name_of(attack: Attack) -> str:
    """Return the name of the function that configured an attack, as far as it can be told.

    >>> name_of(attack_by_name("constant_guess"))
    'constant_guess'
    """
    name = getattr(attack, "name", None)
    return name if isinstance(name, str) else repr(attack).partition("(")[0]


def info_of(attack: str | Attack) -> AttackInfo | None:
    """Return the row of an attack, by its name or by that of a configured one; None for an attack without a row.

    A plugin is not imported for that: whoever configured one has done so. What is not of this package has no row,
    whatever it is called.
    """
    if not isinstance(attack, str) and (isinstance(attack, FunctionAttack) or not _is_own(attack)):
        return None
    name = attack if isinstance(attack, str) else name_of(attack)
    return ATTACKS[name] if name in tuple(ATTACKS) else None


def _is_own(attack: Attack) -> bool:
    return type(attack).__module__.partition(".")[0] == __name__.partition(".")[0]


def _settings_from_layout(name: str, knowledge: PublicKnowledge) -> Settings:
    """Derive settings from the shape of the records and the meaning of their columns."""
    known, settings = settings_of(name), Settings()
    if "total_variation" in known and len(knowledge.shape) != 3:
        settings["total_variation"] = 0.0
    if "parametrization" in known and knowledge.columns is not None:
        from reconrisk.attacks.matching.variables import tabular

        settings["parametrization"] = tabular(knowledge.columns)
    return settings


def _default_prior(info: AttackInfo, knowledge: PublicKnowledge) -> object:
    """Choose a shipped prior that fits, else the first kind that is fitted to public records.

    Guarantee: where one fits but cannot be read for lack of an extra, the error names the extra: a fitted one in its
    place would be a weaker attack, without a word.
    """
    if knowledge.public is None:
        shipped = ((kind, word) for kind in info.priors for word in shipped_names(kind))
        words = [word for kind, word in shipped if shipped_shape(kind, word) == knowledge.shape] or ["FOLDER"]
        stated = " or ".join(f"prior={word}" for word in dict.fromkeys(words))
        remedy = f"State one that fits (--setting {stated}), or have one chosen. {knowledge.more_public}"
        raise InvalidInput(f"Expected a prior for {info.name}: there are no public records to choose one by. {remedy}")
    try:
        return knowledge.prior(SHIPPED, info.priors).value
    except InvalidInput:
        fitted = next((kind for kind in info.priors if is_fitted(kind)), None)
        if fitted is None:
            raise
    return knowledge.prior(fitted, info.priors).value
