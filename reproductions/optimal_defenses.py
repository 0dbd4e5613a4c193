"""What the reproductions of chen2025 share: leakage and training loss under defenses of growing strength, seed by seed.

A seed has its own untrained network, its own private batch and its own draws of noise, and all defenses and attackers
of a seed share them. Leakage is the MSE of Inverting Gradients: by the paper's attacker, who matches what was sent as
if nothing had been done to it, and by one who knows the defense: values that were not sent leave the objective, the
clipping is replayed, and known noise makes the distance its likelihood. Under noise the latter begins twice, anew and
where the former ended, and takes what is more likely. Utility is the training loss after five steps of Adam by four
clients.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reconrisk.attacks.matching.optimizers import Adam
from reconrisk.attacks.matching.published import inverting_gradients
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.core.observation import Observation
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.chain import Chain
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.local import LocalDefense
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.studies.common.defended_training import train_defended
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reproductions.frame import Drawing, Finding
from reproductions.gradient_inversion import generator, mean_over, observed, scored

CLIENTS = 4
UPDATES = 5
UNAWARE, AWARE, BETTER = "unaware", "aware", "better of both"


@dataclass(frozen=True, eq=False)
class Setting:
    """Where defenses are compared: ``private`` records in batches, ``public`` ones for the global forms.

    ``batch`` records are attacked together, each client trains on ``client_batch``.
    """

    build: Callable[[torch.Generator], nn.Module]
    private: Dataset
    public: Dataset
    batch: int
    client_batch: int
    attack_steps: int
    learning_rate: float
    seeds: int
    references: int
    said: str

    @property
    def remark(self) -> str:
        """The setting in words."""
        return (
            f"{self.said}; {self.seeds} seeds: networks, batches of {self.batch}, noise; {self.attack_steps} updates "
            f"of the attack, labels known; loss after {UPDATES} steps of Adam {self.learning_rate:g} on "
            f"{CLIENTS * self.client_batch} records; a blind guess, the public mean, has MSE {self.blind:.4f}"
        )

    @property
    def blind(self) -> float:
        """MSE of guessing the mean of the public records."""
        return float((self.private.inputs - self.public.inputs.mean(0)).square().mean())


@dataclass(frozen=True, eq=False)
class Trial:
    """One seed of a setting; ``moments`` of the public records are at the untrained network."""

    seed: int
    model: nn.Module
    private: Dataset
    training: Dataset
    moments: ReferenceMoments


@dataclass(frozen=True, eq=False)
class Given:
    """Records to begin with."""

    inputs: Tensor

    def __call__(self, observation: Observation, restarts: int, rng: torch.Generator) -> Tensor:
        """The records for every restart."""
        del observation, rng
        return self.inputs.expand(restarts, *self.inputs.shape).clone()


Family = Callable[[Trial, float], Defense]
"""From a seed and a strength to the defense."""


@dataclass(frozen=True, eq=False)
class Curves:
    """What came out, by family: ``(strengths, seeds)`` tables of training loss, and by attacker of MSE and PSNR."""

    strengths: tuple[float, ...]
    loss: Mapping[str, Tensor]
    mse: Mapping[str, Mapping[str, Tensor]]
    psnr: Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class ClippedFirst(LocalDefense):
    """A defense after a clip in the Euclidean norm, as in the paper, whatever norm would match its noise."""

    clip: Clip
    inner: Defense

    def for_release(self, release: Release) -> Chain:
        """The clip as it is, and the defense or what the records make of it."""
        return Chain((self.clip, resolve_defense(self.inner, release)))

    def __str__(self) -> str:
        """Both, as they are written."""
        return f"{self.clip} >> {self.inner}"


def trials(setting: Setting) -> list[Trial]:
    """The seeds of a setting; batches do not overlap."""
    made = []
    trained = CLIENTS * setting.client_batch
    each = setting.batch + trained
    for seed in range(setting.seeds):
        rng = torch.Generator().manual_seed(seed)
        model = setting.build(rng).eval()
        own = setting.private.subset(range(seed * each, (seed + 1) * each))
        public = setting.public.subset(range(setting.references))
        moments = reference_moments(
            model, nn.functional.cross_entropy, public.inputs, public.class_labels, probes=10, rng=rng
        )
        private, training = own.subset(range(setting.batch)), own.subset(range(setting.batch, each))
        made.append(Trial(seed, model, private, training, moments))
    return made


def measured(setting: Setting, families: Mapping[str, Family], strengths: Sequence[float]) -> Curves:
    """Leakage and training loss of every family at every strength, for every seed."""
    shape = (len(strengths), setting.seeds)
    loss = {family: torch.zeros(shape) for family in families}
    mse, psnr = (
        {attacker: {family: torch.zeros(shape) for family in families} for attacker in (UNAWARE, AWARE)}
        for _ in range(2)
    )
    for trial, (name, family), (row, strength) in itertools.product(
        trials(setting), families.items(), enumerate(strengths)
    ):
        defense, cell = family(trial, strength), (row, trial.seed)
        loss[name][cell] = _training_loss(setting, trial, defense)
        for attacker, found in leaked(trial, defense, setting.attack_steps).items():
            mse[attacker][name][cell] = found["mse"].mean()
            psnr[attacker][name][cell] = found["psnr"].mean()
        print(
            f"seed {trial.seed} {name} {strength:g}: loss {float(loss[name][cell]):.4f}, MSE "
            f"{float(mse[UNAWARE][name][cell]):.4f} unaware, {float(mse[AWARE][name][cell]):.4f} aware",
            file=sys.stderr,
            flush=True,
        )
    mse[BETTER] = {name: torch.minimum(mse[UNAWARE][name], mse[AWARE][name]) for name in families}
    psnr[BETTER] = {name: torch.maximum(psnr[UNAWARE][name], psnr[AWARE][name]) for name in families}
    return Curves(tuple(strengths), loss, mse, psnr)


def leaked(trial: Trial, defense: Defense, steps: int) -> dict[str, dict[str, Tensor]]:
    """Scores of the private batch by the attacker who ignores the defense and by the one who knows it."""
    inputs, labels = trial.private.inputs, trial.private.class_labels
    release = GradientRelease(trial.model, nn.functional.cross_entropy, inputs, labels)
    seen, known = (observed(release, defense, aware=aware, seed=trial.seed) for aware in (False, True))
    attack = inverting_gradients(steps=steps)
    unaware = attack(seen, rng=generator("start", trial.seed))
    aware = attack(known, rng=generator("start", trial.seed))
    if known.noise_std is not None:
        # the likelihood is badly conditioned far from the records where the scales of the noise differ by much
        finer = replace(attack, start=Given(unaware.estimates), update=Adam(0.02, signed=True, schedule="cosine"))
        second = replace(finer, steps=(steps + 1) // 2)(known, rng=generator("start", trial.seed))
        aware = min(aware, second, key=lambda found: found.account.objective[0])
    return {UNAWARE: scored(unaware, inputs), AWARE: scored(aware, inputs)}


def gain_at_equal_loss(curves: Curves, attacker: str, better: str, than: str, *, blind: float = math.inf) -> Tensor:
    """For each seed, how much larger the MSE of one family is than that of another at the other's training losses.

    What is worse than the ``blind`` guess counts as it: an attacker who does worse guesses, and nothing is protected
    beyond. Between strengths the MSE goes linearly with the loss. Losses of the other outside of the family's own,
    where it was not measured, are left out; NaN if none is left.
    """
    gains = []
    for seed in range(curves.loss[better].shape[1]):
        order = curves.loss[better][:, seed].argsort()
        loss = curves.loss[better][order, seed].numpy()
        mse = curves.mse[attacker][better][order, seed].clamp_max(blind).numpy()
        at, there = curves.loss[than][:, seed].numpy(), curves.mse[attacker][than][:, seed].clamp_max(blind).numpy()
        within = (at >= loss[0]) & (at <= loss[-1])
        gains.append(float((np.interp(at, loss, mse) - there)[within].mean()) if within.any() else float("nan"))
    return torch.tensor(gains)


def verdict(gains: Tensor) -> str:
    """The mean gain with its interval and what it says; seeds where the curves do not meet are counted."""
    usable = gains[gains.isfinite()]
    left_out = len(gains) - len(usable)
    if len(usable) < 2:
        return f"not comparable: training losses meet for {len(usable)} of {len(gains)} seeds"
    gain = mean_over(usable, "seeds")
    word = "dominates" if gain.low > 0 else "is dominated" if gain.high < 0 else "no difference shown"
    return f"{word}: {_short(gain)}" + (f", {left_out} seeds not comparable" if left_out else "")


def findings(
    curves: Curves, baseline: str, *, setting: Setting, strength: str, leakage: str, scatter: str, claims: Sequence[str]
) -> list[Finding]:
    """Rows of one run: leakage by strength, training loss by strength, and what dominates against whom.

    ``claims`` are the paper's words on leakage, on training and on the trade-off.
    """
    at = f"at {strength} {', '.join(f'{each:g}' for each in curves.strengths)}"
    rows = []
    for attacker, family in itertools.product((UNAWARE, AWARE), curves.loss):
        values = _listed(curves.mse[attacker][family])
        decibels = ", ".join(f"{value:.2f}" for value in curves.psnr[attacker][family].mean(1))
        what = f"{leakage}, {family}, {attacker} attacker: MSE {at}"
        rows.append(Finding(what, claims[0] if attacker == UNAWARE else "-", f"{values}; PSNR {decibels} dB"))
    for family in curves.loss:
        rows.append(Finding(f"{scatter}, {family}: training loss {at}", claims[1], _listed(curves.loss[family])))
    for attacker, family in itertools.product((UNAWARE, AWARE, BETTER), curves.loss):
        if family != baseline:
            gain = "gain in MSE (up to the blind guess) at equal training loss"
            what = f"{scatter}: {family} against {baseline}, {gain}, {attacker} attacker"
            ours = verdict(gain_at_equal_loss(curves, attacker, family, baseline, blind=setting.blind))
            rows.append(Finding(what, claims[2] if attacker == UNAWARE else "-", ours))
    return [Finding(row.what, row.paper, row.ours, setting.remark) for row in rows]


def compared(
    setting: Setting,
    families: Mapping[str, Family],
    strengths: Sequence[float],
    *,
    strength: str,
    leakage: str,
    scatter: str,
    claims: Sequence[str],
    plot: str,
) -> list[Finding | Drawing]:
    """The rows of :func:`findings` for these families, the first of which is the baseline, and the scatter plot."""
    curves = measured(setting, families, strengths)
    baseline = next(iter(families))
    rows = findings(
        curves, baseline, setting=setting, strength=strength, leakage=leakage, scatter=scatter, claims=claims
    )
    return [*rows, scatter_plot(plot, curves)]


def scatter_plot(name: str, curves: Curves) -> Drawing:
    """Training loss against MSE for either attacker, one line per family."""

    def write(path: Path) -> None:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
        for axis, attacker in zip(axes, (UNAWARE, AWARE), strict=True):
            for family, loss in curves.loss.items():
                axis.plot(curves.mse[attacker][family].mean(1), loss.mean(1), "o-", label=family)
            axis.set(title=f"{attacker} attacker", xlabel="mean MSE", ylabel="training loss")
        axes[0].legend()
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)

    return Drawing(name, write)


def _training_loss(setting: Setting, trial: Trial, defense: Defense) -> float:
    rng = torch.Generator().manual_seed(trial.seed)
    done = train_defended(
        trial.model,
        trial.training,
        defense,
        steps=UPDATES,
        clients=CLIENTS,
        update=UpdateRecipe(setting.client_batch, nn.functional.cross_entropy),
        optimizer="adam",
        learning_rate=setting.learning_rate,
        rng=rng,
    )
    return done.training_loss


def _listed(table: Tensor) -> str:
    return ", ".join(_short(mean_over(row, "seeds")) for row in table)


def _short(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"
