"""An attack by its name: which there are, what each says of itself, and which settings it takes."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from reconrisk.attacks.analytic.attack import analytic
from reconrisk.attacks.analytic.estimates import (
    LayerEstimate,
    james_stein,
    known_norm,
    known_scale,
    least_squares,
    ratio,
    total_least_squares,
)
from reconrisk.attacks.baselines import class_mean, constant_guess, prior_alone, prior_mean
from reconrisk.attacks.best_candidate import best_candidate
from reconrisk.attacks.gauss_newton.attack import gauss_newton
from reconrisk.attacks.informed.glm.attack import glm_observed
from reconrisk.attacks.informed.invert_training.attack import invert_training
from reconrisk.attacks.malicious_server.imprint import imprint
from reconrisk.attacks.malicious_server.optimal_analytic import optimal_analytic
from reconrisk.attacks.malicious_server.trap_weights import trap_weights
from reconrisk.attacks.matching.published import dlg, grad_inversion, idlg, inverting_gradients
from reconrisk.attacks.matching.span_inversion import span_inversion
from reconrisk.attacks.prior_choice import GAUSSIAN, SHIPPED, kinds_of, prior_by_name
from reconrisk.attacks.with_prior.finetuned_diffusion import finetuned_diffusion
from reconrisk.attacks.with_prior.gaussian_posterior import gaussian_posterior
from reconrisk.attacks.with_prior.ggl import ggl
from reconrisk.attacks.with_prior.gias import gias
from reconrisk.attacks.with_prior.gifd import gifd
from reconrisk.attacks.with_prior.guided_diffusion import ggss_r
from reconrisk.attacks.with_prior.plug_and_play import plug_and_play
from reconrisk.core.observation import Attack
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_settings, did_you_mean, refuse
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.releases.linear.estimator_release import EstimatorMap
from reconrisk.releases.shadow.release import PrivateTrainingMap
from reconrisk.releases.training.trained_model import TrainingMap

ATTACKS: Mapping[str, Callable[..., Attack]] = {
    build.__name__.removesuffix("_observed"): build
    for build in (
        dlg,
        idlg,
        inverting_gradients,
        grad_inversion,
        span_inversion,
        gauss_newton,
        gaussian_posterior,
        plug_and_play,
        ggss_r,
        finetuned_diffusion,
        gias,
        ggl,
        gifd,
        analytic,
        optimal_analytic,
        imprint,
        trap_weights,
        glm_observed,
        invert_training,
        best_candidate,
        class_mean,
        prior_mean,
        prior_alone,
        constant_guess,
    )
}
"""The functions that configure an attack, by name: those that optimise, those that solve, those that only guess."""

TAKES_PRIOR: Mapping[str, tuple[str, ...]] = {
    name: kinds for name, kinds in ((name, kinds_of(build)) for name, build in ATTACKS.items()) if kinds
}
"""Those that take a generative prior, and of which kinds it may be."""

BASELINES: Mapping[str, frozenset[Knows]] = {
    "constant_guess": frozenset(),
    "prior_mean": frozenset(),
    "prior_alone": frozenset(),
    "class_mean": frozenset({Knows.LABELS}),
}
"""Those that never look at the update of whoever knows this: what an adversary reaches by guessing."""

READS: Mapping[str, tuple[type, ...]] = {
    "glm": (EstimatorMap,),
    "invert_training": (TrainingMap, PrivateTrainingMap),
}
"""Those that read a trained model, and the maps from a record to it that they can invert."""

AT_ANY_RELEASE = frozenset({"best_candidate", *BASELINES})
"""Those to whom it does not matter what is released: they compute it again for candidates, or do not look."""


@dataclass(frozen=True)
class Listed:
    """An attack of a portfolio: its name, its settings, and how long it takes, roughly, in ``evaluations``.

    One is the time to compute a release and its derivative once; a step of a search takes several, since releases are
    compared and candidates moved as well. They are the middle of what clean and noisy updates of small networks took,
    without what is waited for a prior.
    ``whole_update`` attacks rebuild any number of records of an update, the others one. A setting that is an attack is
    stated as a pair of its name and its settings.
    """

    name: str
    evaluations: int
    settings: Mapping[str, object] = field(default_factory=dict)
    whole_update: bool = True


# a clean update is explained to rounding after thousands of evaluations of a normal law's coordinates, where other
# attacks are exact in a hundred; under noise these few are all it takes
_NORMAL_LAW: Mapping[str, object] = {"prior": GAUSSIAN, "iterations": 5, "inner_iterations": 30}
_NORMAL_PLUG_AND_PLAY: Mapping[str, object] = {
    "prior": GAUSSIAN,
    "starts": 1,
    "warm_start": ("gaussian_posterior", {**_NORMAL_LAW, "warm_start": ("ggss_r", {"prior": GAUSSIAN})}),
}

PORTFOLIOS: Mapping[str, tuple[Listed, ...]] = {
    "quick": (
        Listed("analytic", 2, whole_update=False),
        Listed("optimal_analytic", 2, whole_update=False),
        Listed("imprint", 2),
        Listed("best_candidate", 2, whole_update=False),
        Listed("glm", 20, whole_update=False),
        Listed("gauss_newton", 400, {"iterations": 20, "warm_start": ("inverting_gradients", {"steps": 100})}),
        Listed("invert_training", 600, whole_update=False),
        Listed("inverting_gradients", 700, {"steps": 200}),
    ),
    "thorough": (
        Listed("analytic", 2, whole_update=False),
        Listed("optimal_analytic", 2, whole_update=False),
        Listed("imprint", 2),
        Listed("trap_weights", 2),
        Listed("best_candidate", 2, whole_update=False),
        Listed("glm", 20, whole_update=False),
        Listed("ggss_r", 100, {"prior": SHIPPED}),
        Listed("gauss_newton", 300, {"restarts": 4}),
        Listed("plug_and_play", 600, {"prior": SHIPPED}),
        Listed("ggl", 600, {"prior": SHIPPED, "steps": 60, "population": 16}),
        Listed("invert_training", 600, whole_update=False),
        Listed("idlg", 1000, {"restarts": 2}),
        Listed("gaussian_posterior", 1500, _NORMAL_LAW),
        Listed("dlg", 1500),
        Listed("gauss_newton", 1700, {"warm_start": ("inverting_gradients", {"steps": 500})}),
        Listed("gias", 2000, {"prior": SHIPPED, "steps": 200, "weight_steps": 200, "restarts": 2}),
        Listed("plug_and_play", 2500, _NORMAL_PLUG_AND_PLAY),
        Listed("span_inversion", 3000),
        Listed("inverting_gradients", 7000, {"restarts": 2}),
        Listed("grad_inversion", 12000, {"restarts": 2}),
    ),
}
"""Attacks that an audit chooses from by what its threat allows, cheapest first."""

_ESTIMATES: Mapping[str, Callable[[], LayerEstimate]] = {
    build.__name__: build for build in (least_squares, ratio, total_least_squares, known_scale, james_stein, known_norm)
}
_ALSO = {"steps": "iterations"}  # one word for how long an attack searches, whatever it calls its steps


def attack_by_name(name: str, **settings: object) -> Attack:
    """The attack that ``name`` stands for, with these settings.

    Guarantee: an unknown name and a setting that the attack does not take are refused, with what it takes.
    Edge cases: ``steps`` are the iterations of attacks that count these. A setting that is an attack may be stated as
    a pair of its name and settings, and a prior as the name of a shipped one or a folder.

    >>> attack_by_name("constant_guess", value=0.25)
    constant_guess(value=0.25)
    >>> attack_by_name("analytic", steps=3)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected steps=3 to be left out for analytic. It takes estimate, scales.
    """
    known = settings_of(name)
    given = {_ALSO[key] if key not in known and _ALSO.get(key) in known else key: settings[key] for key in settings}
    check_settings(name, known, given, "Pass what the adversary believes.")
    nested = {key: attack_by_name(value[0], **value[1]) for key, value in given.items() if is_stated_attack(value)}
    prior = given.get("prior")
    read = {"prior": prior_by_name(prior, TAKES_PRIOR[name]).value} if isinstance(prior, str) else {}
    return ATTACKS[name](**{**given, **nested, **read})


def is_stated_attack(value: object) -> TypeGuard[tuple[str, Mapping[str, Any]]]:
    """Whether a setting is an attack, stated as a pair of its name and its settings.

    >>> is_stated_attack(("inverting_gradients", {"steps": 100})), is_stated_attack((0.0, 1.0))
    (True, False)
    """
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)


def settings_of(name: str) -> dict[str, inspect.Parameter]:
    """What the attack ``name`` can be configured with.

    >>> list(settings_of("constant_guess"))
    ['value']
    """
    if name not in ATTACKS:
        raise refuse("attack", name, f"to be one of {', '.join(ATTACKS)}", did_you_mean(name, ATTACKS).strip())
    return dict(inspect.signature(ATTACKS[name]).parameters)


def sentence_of(name: str) -> str:
    """What the attack ``name`` says of itself in one sentence.

    >>> sentence_of("prior_mean")
    'Guess the mean of the prior for every record.'
    """
    return (inspect.getdoc(ATTACKS[name]) or "").split("\n\n")[0].replace("\n", " ")


def settings_from_text(name: str, texts: Sequence[str]) -> dict[str, object]:
    """Settings written as ``name=value``, read as what the attack takes: numbers, words, true, false, none, estimates.

    A prior stays the word that states it, since it may come from public records.

    Guarantee: what cannot be read as such is refused, as are settings that take more than a word to write.

    >>> settings_from_text("imprint", ["bins=64", "isolated=false", "measurement=random"])
    {'bins': 64, 'isolated': False, 'measurement': 'random'}
    >>> settings_from_text("analytic", ["estimate=james_stein"])
    {'estimate': JamesStein(toward=0.0)}
    """
    known = settings_of(name)
    hints = typing.get_type_hints(ATTACKS[name])
    settings: dict[str, object] = {}
    for text in texts:
        key, equals, word = text.partition("=")
        if not equals or key not in known:
            remedy = f"{name} takes {', '.join(known)}.{did_you_mean(key, known)}"
            raise refuse("setting", text, f"to be name=value with a setting of {name}", remedy)
        settings[key] = _read(text, word, hints[key])
    return settings


def _read(text: str, word: str, hint: Any) -> object:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    choices = {choice: typing.get_origin(choice) or choice for choice in (typing.get_args(hint) if union else (hint,))}
    for choice, kind in choices.items():
        try:
            return _READERS[kind](word, choice)
        except (KeyError, ValueError):
            continue
    words = [_said(choice, kind) for choice, kind in choices.items() if kind in _READERS]
    if words in ([], ["none"]):
        raise refuse("setting", text, "to be one that a word can state", "Set it in Python instead.")
    raise refuse("setting", text, f"to be {' or '.join(words)}")


_READERS: Mapping[Any, Callable[[str, Any], object]] = {
    bool: lambda word, _: {"true": True, "false": False}[word.lower()],
    int: lambda word, _: int(word),
    float: lambda word, _: float(word),
    types.NoneType: lambda word, _: {"none": None}[word.lower()],
    Literal: lambda word, choice: {str(value): value for value in typing.get_args(choice)}[word],
    LayerEstimate: lambda word, _: _ESTIMATES[word](),
    DiffusionPrior: lambda word, _: word,
    GaussianPrior: lambda word, _: word,
    GeneratorPrior: lambda word, _: word,
}


def _said(choice: Any, kind: Any) -> str:
    if kind is Literal:
        return " or ".join(str(value) for value in typing.get_args(choice))
    words = {bool: "true or false", int: "a whole number", float: "a number", types.NoneType: "none"}
    return words.get(kind, f"one of {', '.join(_ESTIMATES)}")
