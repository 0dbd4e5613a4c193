"""Registry of attacks: one row per attack with its code, required knowledge, priors and audit portfolios.

:data:`ATTACKS` is the only table of attacks. The command line, audits and docs read it. Nothing is imported before an
attack is used. Attacks of other distributions (entry point group ``reconrisk.attacks``) are found by name as well.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from reconrisk.core.observation import Attack
from reconrisk.core.registry import Info, Plugin, Registry, summary_from_docstring
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_settings, did_you_mean, invalid_input
from reconrisk.priors.registry import DIFFUSION, GAN, GAUSSIAN, PRIORS, SHIPPED

ESTIMATOR, TRAINING = "estimator", "training"
"""Kinds of trained models that attacks read: a fitted linear estimator, a network with a known training run."""

Settings = Mapping[str, object]


@dataclass(frozen=True)
class AttackInfo(Info):
    """A row of :data:`ATTACKS`.

    Attributes:
        guess_for: None for an attack. For a baseline, which ignores the release, the knowledge that it requires.
        reads: Kinds of trained models that the attack inverts; empty for attacks on updates.
        priors: Kinds of generative priors that it takes; a prior name without its kind means the first kind that has a
            prior of this name. A kind that no other attack takes needs no row in ``PRIORS``: ``from_knowledge`` then
            derives the setting prior.
        plants_layer: True if the attack needs a layer that a malicious server puts into the model.
        any_release: True if the attack recomputes the release of candidates and so applies to any release.
        knows: Knowledge that the attack is configured with; an audit skips the attack if the threat model does not
            grant this knowledge.
        whole_update: True if the attack reconstructs every record of an update; False if updates must have one record.
        from_knowledge: ``"module:function"`` that derives settings from public knowledge, or empty. The function takes
            a :class:`~reconrisk.attacks.knowledge.PublicKnowledge` and the stated settings.
        words: ``"module:function"`` by setting, for settings that a word on the command line can state; the function
            reads the word.
        portfolios: For each portfolio of audits, pairs of a rough cost and the settings to run with. The cost is a
            number of evaluations, each of the release and its derivative, measured on small networks.
    """

    guess_for: frozenset[Knows] | None = None
    reads: tuple[str, ...] = ()
    priors: tuple[str, ...] = ()
    plants_layer: bool = False
    any_release: bool = False
    knows: frozenset[Knows] = frozenset()
    whole_update: bool = True
    from_knowledge: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    portfolios: Mapping[str, Sequence[tuple[int, Settings]]] = field(default_factory=dict)

    @property
    def is_baseline(self) -> bool:
        """Return True if the attack ignores the release."""
        return self.guess_for is not None


# A clean update takes a Gaussian prior thousands of evaluations to fit to rounding, where other attacks are exact in a
# hundred. Under noise these few iterations suffice.
_NORMAL_PRIOR: Settings = {"prior": GAUSSIAN, "iterations": 5, "inner_iterations": 30}
_NORMAL_START: Settings = {**_NORMAL_PRIOR, "warm_start": ("ggss_r", {"prior": GAUSSIAN})}
_ESTIMATE = {"estimate": "reconrisk.attacks.analytic.estimates:estimate_by_name"}

_ROWS = (
    AttackInfo(
        "dlg",
        "reconrisk.attacks.matching.published:dlg",
        "Squared error, L-BFGS, soft labels: smooth networks.",
        portfolios={"thorough": [(1500, {})]},
    ),
    AttackInfo(
        "idlg",
        "reconrisk.attacks.matching.published:idlg",
        "The same with labels inferred from the gradient.",
        portfolios={"thorough": [(1000, {"restarts": 2})]},
    ),
    AttackInfo(
        "inverting_gradients",
        "reconrisk.attacks.matching.published:inverting_gradients",
        "Cosine, signs, total variation: any network.",
        portfolios={"quick": [(700, {"steps": 200})], "thorough": [(7000, {"restarts": 2})]},
    ),
    AttackInfo(
        "grad_inversion",
        "reconrisk.attacks.matching.published:grad_inversion",
        "Batch norm statistics, restarts that agree.",
        portfolios={"thorough": [(12000, {"restarts": 2})]},
    ),
    AttackInfo(
        "span_inversion",
        "reconrisk.attacks.matching.span_inversion:span_inversion",
        "Cosine within the span of a first linear layer.",
        portfolios={"thorough": [(3000, {})]},
    ),
    AttackInfo(
        "gauss_newton",
        "reconrisk.attacks.gauss_newton.attack:gauss_newton",
        "Maximum likelihood by second order: smooth, or noisy.",
        portfolios={
            "quick": [(400, {"iterations": 20, "warm_start": ("inverting_gradients", {"steps": 100})})],
            "thorough": [(300, {"restarts": 4}), (1700, {"warm_start": ("inverting_gradients", {"steps": 500})})],
        },
    ),
    AttackInfo(
        "gaussian_posterior",
        "reconrisk.attacks.with_prior.gaussian_posterior:gaussian_posterior",
        "Posterior mean under a Gaussian prior and noise.",
        priors=(GAUSSIAN,),
        portfolios={"thorough": [(1500, _NORMAL_PRIOR)]},
    ),
    AttackInfo(
        "plug_and_play",
        "reconrisk.attacks.with_prior.plug_and_play:plug_and_play",
        "Fits and denoises in turn: a prior, under noise.",
        priors=(DIFFUSION, GAUSSIAN),
        portfolios={
            "thorough": [
                (600, {"prior": SHIPPED}),
                (2500, {"prior": GAUSSIAN, "starts": 1, "warm_start": ("gaussian_posterior", _NORMAL_START)}),
            ]
        },
    ),
    AttackInfo(
        "ggss_r",
        "reconrisk.attacks.with_prior.guided_diffusion:ggss_r",
        "Diffusion sampling guided by the update.",
        priors=(DIFFUSION, GAUSSIAN),
        portfolios={"thorough": [(100, {"prior": SHIPPED})]},
    ),
    AttackInfo(
        "finetuned_diffusion",
        "reconrisk.attacks.with_prior.finetuned_diffusion:finetuned_diffusion",
        "Tunes the weights of a diffusion to fit the update.",
        priors=(DIFFUSION,),
    ),
    AttackInfo(
        "gias",
        "reconrisk.attacks.with_prior.gias:gias",
        "Output of a generator: latent values, then weights.",
        priors=(GAN,),
        portfolios={"thorough": [(2000, {"prior": SHIPPED, "steps": 200, "weight_steps": 200, "restarts": 2})]},
    ),
    AttackInfo(
        "ggl",
        "reconrisk.attacks.with_prior.ggl:ggl",
        "The same by evolution, without derivatives.",
        priors=(GAN,),
        portfolios={"thorough": [(600, {"prior": SHIPPED, "steps": 60, "population": 16})]},
    ),
    AttackInfo(
        "gifd",
        "reconrisk.attacks.with_prior.gifd:gifd",
        "The same in the features between its layers.",
        priors=(GAN,),
    ),
    AttackInfo(
        "analytic",
        "reconrisk.attacks.analytic.attack:analytic",
        "Solves a linear layer on the record: one per update.",
        whole_update=False,
        words=_ESTIMATE,
        portfolios={"quick": [(2, {})], "thorough": [(2, {})]},
    ),
    AttackInfo(
        "optimal_analytic",
        "reconrisk.attacks.malicious_server.optimal_analytic:optimal_analytic",
        "A planted layer whose gradient is the record.",
        plants_layer=True,
        whole_update=False,
        from_knowledge="reconrisk.attacks.malicious_server.optimal_analytic:settings_from_knowledge",
        words=_ESTIMATE,
        portfolios={"quick": [(2, {})], "thorough": [(2, {})]},
    ),
    AttackInfo(
        "imprint",
        "reconrisk.attacks.malicious_server.imprint:imprint",
        "A planted layer that sorts a batch into bins.",
        plants_layer=True,
        from_knowledge="reconrisk.attacks.malicious_server.imprint:settings_from_knowledge",
        portfolios={"quick": [(2, {})], "thorough": [(2, {})]},
    ),
    AttackInfo(
        "trap_weights",
        "reconrisk.attacks.malicious_server.trap_weights:trap_weights",
        "A planted layer that few records activate.",
        plants_layer=True,
        from_knowledge="reconrisk.attacks.malicious_server.trap_weights:settings_from_knowledge",
        portfolios={"thorough": [(2, {})]},
    ),
    AttackInfo(
        "glm",
        "reconrisk.attacks.informed.glm.attack:glm_observed",
        "Reads a linear model: see reconrisk rebuild-informed.",
        reads=(ESTIMATOR,),
        whole_update=False,
        portfolios={"quick": [(20, {})], "thorough": [(20, {})]},
    ),
    AttackInfo(
        "invert_training",
        "reconrisk.attacks.informed.invert_training.attack:invert_training",
        "Reads a trained network: see reconrisk rebuild-informed.",
        reads=(TRAINING,),
        whole_update=False,
        portfolios={"quick": [(600, {})], "thorough": [(600, {})]},
    ),
    AttackInfo(
        "best_candidate",
        "reconrisk.attacks.best_candidate:best_candidate",
        "The record of the data set whose update is nearest.",
        any_release=True,
        knows=frozenset({Knows.PRIOR}),
        whole_update=False,
        from_knowledge="reconrisk.attacks.best_candidate:settings_from_knowledge",
        portfolios={"quick": [(2, {})], "thorough": [(2, {})]},
    ),
    AttackInfo(
        "low_bits",
        "reconrisk.attacks.low_bits:low_bits",
        "The record whose update plus float noise can round so.",
        any_release=True,
        knows=frozenset({Knows.PRIOR}),
        whole_update=False,
        from_knowledge="reconrisk.attacks.best_candidate:settings_from_knowledge",
    ),
    AttackInfo(
        "class_mean",
        "reconrisk.attacks.baselines:class_mean",
        "Guesses the mean of a class of other records.",
        guess_for=frozenset({Knows.LABELS}),
        any_release=True,
        from_knowledge="reconrisk.attacks.baselines:class_means_of_public_records",
    ),
    AttackInfo(
        "prior_mean",
        "reconrisk.attacks.baselines:prior_mean",
        "Guesses the mean of other records.",
        guess_for=frozenset(),
        any_release=True,
        from_knowledge="reconrisk.attacks.baselines:mean_of_public_records",
    ),
    AttackInfo(
        "prior_alone",
        "reconrisk.attacks.baselines:prior_alone",
        "Guesses the mean of a generative prior.",
        guess_for=frozenset(),
        any_release=True,
        priors=tuple(PRIORS),
    ),
    AttackInfo(
        "constant_guess",
        "reconrisk.attacks.baselines:constant_guess",
        "Guesses the middle of the range.",
        guess_for=frozenset(),
        any_release=True,
    ),
)


def _row_from_plugin(plugin: Plugin, build: Any) -> AttackInfo:
    """Return the row of a plugin; its entry point must name the function that configures the attack."""
    if "observation" in inspect.signature(build).parameters:
        remedy = "Let the entry point name a function that returns it: def configure(): return attack."
        raise invalid_input(
            f"{plugin.where} of {plugin.distribution}",
            "an attack",
            "to be a function that configures an attack",
            remedy,
        )
    return AttackInfo(plugin.name, plugin.where, summary_from_docstring(build) or f"Attack of {plugin.distribution}.")


ATTACKS: Registry[AttackInfo] = Registry("attack", _ROWS, _row_from_plugin)
"""All attacks by name: by optimisation, by direct solution, and baselines."""


@dataclass(frozen=True)
class PortfolioEntry:
    """An attack in a portfolio of audits.

    Attributes:
        name: Name of the attack in :data:`ATTACKS`.
        evaluations: Rough number of evaluations of the release that it takes.
        settings: Settings that it runs with.
    """

    name: str
    evaluations: int
    settings: Settings = field(default_factory=dict)


PORTFOLIOS: Mapping[str, tuple[PortfolioEntry, ...]] = {
    name: tuple(
        sorted(
            (PortfolioEntry(row.name, *each) for row in _ROWS for each in row.portfolios.get(name, ())),
            key=lambda entry: entry.evaluations,
        )
    )
    for name in ("quick", "thorough")
}
"""Attacks that an audit selects from, cheapest first; it runs the ones that its threat model allows."""

_SYNONYMS = {
    "steps": "iterations"
}  # "steps" is the length of a search on the command line, also for attacks that count iterations


def attack_by_name(name: str, **settings: object) -> Attack:
    """Configure the attack of this name.

    Args:
        name: A name in :data:`ATTACKS`, or of a plugin.
        **settings: Settings of the attack. ``steps`` also names the iterations of attacks that count iterations. A
            setting that is itself an attack may be a pair of its name and its settings. A prior may be the name of a
            shipped one, or a folder.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If the name is unknown, or the attack does not take a setting.

    >>> attack_by_name("constant_guess", value=0.25)
    constant_guess(value=0.25)
    >>> attack_by_name("analytic", steps=3)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected steps=3 to be left out for analytic. It takes estimate, scales.
    """
    info, known = ATTACKS[name], attack_settings(name)
    given = {
        # Translate only where the attack lacks the word itself, so that real settings keep their meaning.
        _SYNONYMS[key] if key not in known and _SYNONYMS.get(key) in known else key: settings[key]
        for key in settings
    }
    check_settings(name, known, given, "Pass the knowledge of the adversary.")
    nested = {key: attack_by_name(value[0], **value[1]) for key, value in given.items() if is_attack_spec(value)}
    prior, read = given.get("prior"), {}
    if isinstance(prior, str) and info.priors:
        # Imported here, so that listing attacks stays fast.
        from reconrisk.attacks.prior_choice import prior_by_name  # reads weights with torch

        read = {"prior": prior_by_name(prior, info.priors).value}
    attack: Attack = ATTACKS.configure(name, **{**given, **nested, **read})
    if name in tuple(ATTACKS):
        return attack
    from reconrisk.attacks.plain_function import attack_from_function  # a plugin may return a plain function

    return attack_from_function(attack)


def is_attack_spec(value: object) -> TypeGuard[tuple[str, Mapping[str, Any]]]:
    """Return True if a setting is an attack, written as a pair of its name and its settings.

    Args:
        value: The setting to test.

    Returns:
        True for a pair of a name and a mapping.

    >>> is_attack_spec(("inverting_gradients", {"steps": 100})), is_attack_spec((0.0, 1.0))
    (True, False)
    """
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)


def attack_settings(name: str) -> dict[str, inspect.Parameter]:
    """Return the settings that an attack takes.

    Args:
        name: Name of the attack in :data:`ATTACKS`, or of a plugin.

    Returns:
        The parameters of its configuring function by name.

    Raises:
        InvalidInput: If the name is unknown.

    >>> list(attack_settings("constant_guess"))
    ['value']
    """
    return dict(inspect.signature(ATTACKS[name].load()).parameters)


def settings_from_text(name: str, texts: Sequence[str]) -> dict[str, object]:
    """Parse settings written as ``name=value`` into the types that the attack takes.

    Numbers, words, true, false and none are parsed. A prior stays a word, since it may be fitted to public records
    later.

    Args:
        name: Name of the attack.
        texts: One ``name=value`` for each setting.

    Returns:
        The settings by name.

    Raises:
        InvalidInput: If a text is not ``name=value``, the attack has no such setting, or the setting cannot be written
            as text.

    >>> settings_from_text("imprint", ["bins=64", "isolated=false", "measurement=random"])
    {'bins': 64, 'isolated': False, 'measurement': 'random'}
    >>> settings_from_text("analytic", ["estimate=james_stein"])
    {'estimate': JamesStein(toward=0.0)}
    """
    info, known, settings = ATTACKS[name], attack_settings(name), dict[str, object]()
    hints = typing.get_type_hints(info.load())
    for text in texts:
        key, equals, word = text.partition("=")
        if not equals or key not in known:
            remedy = f"{name} takes {', '.join(known)}.{did_you_mean(key, known)}"
            raise invalid_input("setting", text, f"to be name=value with a setting of {name}", remedy)
        if key == "prior" and info.priors:
            settings[key] = word
        elif key in info.words:
            settings[key] = Info(key, info.words[key], "").load()(word)
        else:
            settings[key] = _read(text, word, hints[key])
    return settings


def _read(text: str, word: str, hint: Any) -> object:
    """Parse a word as the first alternative of a type hint that accepts it."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    choices = {choice: typing.get_origin(choice) or choice for choice in (typing.get_args(hint) if union else (hint,))}
    for choice, kind in choices.items():
        try:
            return _READERS[kind](word, choice)
        except (KeyError, ValueError):
            continue
    words = [
        " or ".join(map(str, typing.get_args(choice))) if kind is Literal else _WORDS[kind]
        for choice, kind in choices.items()
        if kind in _READERS
    ]
    if words in ([], ["none"]):  # only None can be written, so the setting is an object
        raise invalid_input("setting", text, "to be a setting that can be written as text", "Set it in Python instead.")
    raise invalid_input("setting", text, f"to be {' or '.join(words)}")


_READERS: Mapping[Any, Callable[[str, Any], object]] = {
    bool: lambda word, _: {"true": True, "false": False}[word.lower()],
    int: lambda word, _: int(word),
    float: lambda word, _: float(word),
    types.NoneType: lambda word, _: {"none": None}[word.lower()],
    Literal: lambda word, choice: {str(value): value for value in typing.get_args(choice)}[word],
}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", types.NoneType: "none"}
