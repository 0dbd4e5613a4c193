"""Attacks by name, configured with what their adversary may know of the records beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from reconrisk.attacks.baselines import Prior
from reconrisk.attacks.malicious_server.optimal_analytic import neurons_for_clipping
from reconrisk.attacks.malicious_server.trap_weights import TrapWeights
from reconrisk.attacks.matching.parametrizations import tabular
from reconrisk.attacks.prior_choice import GAUSSIAN, SHIPPED, StatedPrior, check_prior_fits, prior_by_name, shipped_for
from reconrisk.attacks.registry import TAKES_PRIOR, attack_by_name, is_stated_attack, settings_of
from reconrisk.core.columns import Column
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.observation import Attack, ForwardMap
from reconrisk.core.threat import Knows
from reconrisk.core.validation import refuse
from reconrisk.priors.gaussian import LARGEST_COVARIANCE, fit_gaussian
from reconrisk.priors.load.folders import shipped_names, shipped_shape

_LARGEST_LAYER = 2**26  # values of a planted layer: 256 MB of float32

_MORE_PUBLIC = "Pass public=, or attack fewer records= (--records 0-9, for instance), so that others are public."
_PUBLIC_BESIDE_CAPTURED = "Pass public= (--data), records like those behind the update."
_FEWEST = 30  # records that a covariance is fitted to
_EACH_OF_MANY = 10  # records for each value of one, of which the attacked one is then a small part

Settings = dict[str, object]


class KnownRecords(Protocol):
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
class Beliefs:
    """What an adversary may know before any update.

    The ``shape`` of a record is public, and so is what the ``columns`` of a table mean. ``public`` holds records like
    those attacked, ``candidates`` all that the attacked ones may be; None if there are none. An update is of
    ``batch_size`` records, and ``clip_norm`` its largest norm where a known defense clips it. Where a trained model is
    released, ``training`` is the map from a record to it. Values lie in ``data_range``. ``holds_targets`` says that
    attacked records are among the public ones, ``is_captured`` that nobody has the attacked ones: errors advise
    accordingly.
    """

    shape: tuple[int, ...]
    batch_size: int = 1
    public: KnownRecords | None = None
    candidates: KnownRecords | None = None
    columns: tuple[Column, ...] | None = None
    clip_norm: float | None = None
    training: ForwardMap | None = None
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

    def prior_of(self, attack: Attack) -> StatedPrior | None:
        """The prior that an attack has, if it has any, and where it comes from."""
        held = getattr(attack, "prior", None)
        stated = (each for each in self._priors.values() if isinstance(each, StatedPrior) and each.is_of(attack))
        return next(stated, StatedPrior(held, "configured by the caller") if isinstance(held, Prior) else None)

    @cached_property
    def _priors(self) -> dict[tuple[str, tuple[str, ...]], StatedPrior | InvalidInput | MissingExtra]:
        return {}

    def _read(self, word: str, kinds: tuple[str, ...]) -> StatedPrior:
        if word == GAUSSIAN:
            return self._gaussian
        if word == SHIPPED:
            return shipped_for(self.records("a shipped prior").inputs, kinds, self.data_range)
        found = prior_by_name(word, kinds, self.data_range)
        check_prior_fits(found.value, self.shape, self.data_range)
        return found

    @cached_property
    def _gaussian(self) -> StatedPrior:
        """The normal law of public records, if they are many enough to tell of records in general."""
        inputs, size = self.records("a Gaussian prior").inputs, math.prod(self.shape)
        if size > LARGEST_COVARIANCE:
            raise refuse("values of a record", size, f"<= {LARGEST_COVARIANCE} for a Gaussian prior")
        least = max(_FEWEST, _EACH_OF_MANY * size if self.holds_targets else size)
        if len(inputs) < least:
            among = ", since attacked ones are among them" if self.holds_targets else ""
            raise refuse("public records", len(inputs), f">= {least} for a Gaussian prior{among}", self.more_public)
        return StatedPrior(fit_gaussian(inputs, data_range=self.data_range), f"fitted to {len(inputs)} public records")

    def records(self, attack: str) -> KnownRecords:
        """The public records, or an error that says who needs them."""
        if self.public is None:
            raise InvalidInput(f"Expected records beside the attacked ones for {attack}. {self.more_public}")
        return self.public

    @property
    def more_public(self) -> str:
        """What whoever lacks public records can do."""
        return _PUBLIC_BESIDE_CAPTURED if self.is_captured else _MORE_PUBLIC


def configured_attack(
    attack: str | Attack, settings: Mapping[str, object] | None, beliefs: Beliefs
) -> tuple[Attack, frozenset[Knows]]:
    """The attack of a name with settings and beliefs, or a configured one as it is; and what it knows by beliefs."""
    if isinstance(attack, str):
        return attack_with_beliefs(attack, dict(settings or {}), beliefs)
    if settings:
        raise refuse("settings", sorted(settings), "to be left out for a configured attack", "Configure it with them.")
    return attack, frozenset()


def attack_with_beliefs(name: str, settings: Settings, beliefs: Beliefs) -> tuple[Attack, frozenset[Knows]]:
    """The attack of this name with the settings given, the others from ``beliefs``, and what it knows by them.

    A setting that is itself an attack, such as a warm start, may be a pair of its name and settings; a prior may be a
    word (:meth:`Beliefs.prior`), and is the shipped one that fits, else a Gaussian one, where none is stated.

    Guarantee: settings that are given stay as they are.

    >>> from reconrisk.data.dataset import Dataset
    >>> toy = Dataset("toy", torch.tensor([[0.0], [0.5], [1.0]]), torch.tensor([0, 1, 1]))
    >>> attack_with_beliefs("class_mean", {}, Beliefs(toy.shape, public=toy))[0].means
    tensor([[0.0000],
            [0.7500]])
    """
    nested, known = _nested(settings, beliefs)
    given = {**_layout(name, beliefs), **settings, **nested}
    if name in TAKES_PRIOR and isinstance(given.get("prior"), str):
        given["prior"] = beliefs.prior(str(given["prior"]), TAKES_PRIOR[name]).value
    believed = _BELIEFS[name](beliefs, given) if name in _BELIEFS else {}
    attack = attack_by_name(name, **{**believed, **given})
    used = bool(believed.keys() - given.keys())
    if isinstance(attack, TrapWeights) and "scale" not in given and beliefs.public is not None:
        inputs = beliefs.public.inputs
        if len(inputs) >= beliefs.batch_size:
            attack, used = attack.calibrated(beliefs.batch_size, inputs), True
    return attack, known | (frozenset({Knows.PRIOR}) if used else frozenset())


def _nested(settings: Settings, beliefs: Beliefs) -> tuple[Settings, frozenset[Knows]]:
    """Settings that are attacks, stated as a pair of name and settings, with what these know by beliefs."""
    found, known = Settings(), frozenset[Knows]()
    for key, value in settings.items():
        if is_stated_attack(value):
            found[key], more = attack_with_beliefs(value[0], dict(value[1]), beliefs)
            known |= more
    return found, known


def name_of(attack: Attack) -> str:
    """What the function that configured an attack is called, as far as that can be seen.

    >>> name_of(attack_by_name("constant_guess"))
    'constant_guess'
    """
    name = getattr(attack, "name", None)
    return name if isinstance(name, str) else repr(attack).partition("(")[0]


def _layout(name: str, beliefs: Beliefs) -> Settings:
    """What follows from the shape of the records and the meaning of their columns."""
    known, settings = settings_of(name), Settings()
    if "total_variation" in known and len(beliefs.shape) != 3:
        settings["total_variation"] = 0.0
    if "parametrization" in known and beliefs.columns is not None:
        settings["parametrization"] = tabular(beliefs.columns)
    return settings


def _candidates(beliefs: Beliefs, given: Settings) -> Settings:
    del given
    if beliefs.candidates is None:
        raise InvalidInput("Expected data for best_candidate: the records that the attacked one may be.")
    labels = beliefs.candidates.labels
    return {"candidates": beliefs.candidates.inputs, **({} if labels is None else {"labels": labels})}


def _prior_mean(beliefs: Beliefs, given: Settings) -> Settings:
    del given
    return {"mean": _mean(beliefs.records("prior_mean").inputs)}


def _class_means(beliefs: Beliefs, given: Settings) -> Settings:
    """A mean for each class of the data; that of all records for a class without public ones."""
    del given
    public = beliefs.records("class_mean")
    labels, every = public.class_labels, public if beliefs.candidates is None else beliefs.candidates
    classes = len(every.classes) if every.classes is not None else int(every.class_labels.max()) + 1
    sums = torch.zeros(classes, *public.shape, dtype=torch.float64).index_add_(0, labels, public.inputs.double())
    counts = torch.bincount(labels, minlength=classes).view(-1, *[1] * len(public.shape))
    means = torch.where(counts > 0, sums / counts.clamp_min(1), _mean(public.inputs).double())
    return {"means": means.to(public.inputs.dtype)}


def _bins(beliefs: Beliefs, given: Settings) -> Settings:
    """Quantiles of public records where there are enough and they differ, else of a normal law with their moments."""
    default = settings_of("imprint")
    bins, measurement = (given.get(key, default[key].default) for key in ("bins", "measurement"))
    if beliefs.public is None or "public" in given or not isinstance(bins, int):
        return {}
    inputs = beliefs.public.inputs
    if measurement != "mean":
        return {"public": inputs} if len(inputs) >= bins else {}
    measured = inputs.flatten(1).double().mean(1)
    ends = np.quantile(measured.numpy(), np.arange(1, bins) / bins, method="weibull")
    if len(inputs) >= bins and bool((np.diff(ends) > 0).all()):
        return {"public": inputs}
    spread = float(measured.std(correction=0))
    return {"public": Normal(float(measured.mean()), spread)} if spread > 0 else {}


def _neurons(beliefs: Beliefs, given: Settings) -> Settings:
    """As many as let clipping bind for every public record, which is where the attack is strongest."""
    if beliefs.public is None or beliefs.clip_norm is None or "neurons" in given:
        return {}
    norms = beliefs.public.inputs.flatten(1).norm(dim=1)
    norms = norms[norms > 0]
    if not len(norms):
        return {}
    most = max(1, _LARGEST_LAYER // math.prod(beliefs.public.shape))
    return {"neurons": min(most, neurons_for_clipping(beliefs.clip_norm, float(norms.min())))}


def _prior(name: str, kinds: tuple[str, ...], beliefs: Beliefs, given: Settings) -> Settings:
    """A shipped prior that fits, else the normal law of public records.

    Guarantee: where one fits but cannot be read for lack of an extra, the error names the extra: the normal law in its
    place would be a weaker attack, without a word.
    """
    if "prior" in given:
        return {}
    if beliefs.public is None:
        raise _not_stated(name, kinds, beliefs)
    try:
        return {"prior": beliefs.prior(SHIPPED, kinds).value}
    except InvalidInput:
        if GAUSSIAN not in kinds:
            raise
    return {"prior": beliefs.prior(GAUSSIAN, kinds).value}


def _not_stated(name: str, kinds: tuple[str, ...], beliefs: Beliefs) -> InvalidInput:
    """Without public records nobody can tell which prior fits: it has to be stated."""
    shipped = ((kind, word) for kind in kinds if kind != GAUSSIAN for word in shipped_names(kind))
    words = [word for kind, word in shipped if shipped_shape(kind, word) == beliefs.shape] or ["FOLDER"]
    stated = " or ".join(f"prior={word}" for word in dict.fromkeys(words))
    remedy = f"State one that fits (--setting {stated}), or have one chosen. {beliefs.more_public}"
    return InvalidInput(f"Expected a prior for {name}: there are no public records to choose one by. {remedy}")


def _mean(inputs: Tensor) -> Tensor:
    return inputs.double().mean(0).to(inputs.dtype)


_BELIEFS: Mapping[str, Callable[[Beliefs, Settings], Settings]] = {
    "best_candidate": _candidates,
    "class_mean": _class_means,
    "imprint": _bins,
    "optimal_analytic": _neurons,
    "prior_mean": _prior_mean,
    **{name: partial(_prior, name, kinds) for name, kinds in TAKES_PRIOR.items()},
}
