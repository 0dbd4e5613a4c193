"""What an audit adds to the attacks it runs: plan, store, intervals, guarantees and result, against the bare loop.

The loop observes, attacks and scores the same updates with the same attacks under the same defenses. An audit may take
5 % more; "times ours" of the loop is then at least 0.95. The attack takes the same number of steps on every update.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.baselines import WITH_PRIOR
from reconrisk.data.load import load_dataset
from reconrisk.metrics.scoring import score
from reconrisk.releases.observe import observe
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.studies.common.arguments import metrics_for
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT

UPDATES, STEPS = 6, 100
DATA = load_dataset("digits")


def _model() -> nn.Module:
    torch.manual_seed(0)
    return rr.models.lenet(DATA.shape, 10, activation=nn.Tanh)


def _defenses() -> list[object]:
    return [None, rr.defenses.clip_and_noise(noise_multiplier=0.1, clip_norm=1.0)]


def _audit(store: bool) -> Callable[[], float]:
    model = _model()

    def work() -> float:
        with tempfile.TemporaryDirectory() as folder:
            result = rr.audit(
                model,
                DATA,
                defenses=_defenses(),
                attacks=[("inverting_gradients", {"steps": STEPS})],
                trials=UPDATES,
                budget=None,
                store=Path(folder) / "audit.db" if store else None,
            )
        return result.done

    return work


def in_memory() -> Callable[[], float]:
    """rr.audit without a store."""
    return _audit(store=False)


def with_store() -> Callable[[], float]:
    """rr.audit with every trial written to a store as it finishes."""
    return _audit(store=True)


def bare_loop() -> Callable[[], float]:
    """Observe, attack and score, nothing else; guesses included, as the audit makes them too."""
    model = _model()
    attacks = [
        rr.attacks.inverting_gradients(steps=STEPS),
        rr.attacks.constant_guess(),
        rr.attacks.prior_mean(DATA.inputs.mean(0)),
    ]
    threat = DEFAULT_THREAT.with_knowledge(*WITH_PRIOR.knows)

    def work() -> float:
        rng, metrics, done = torch.Generator().manual_seed(0), metrics_for(DATA), 0
        for row in torch.randperm(len(DATA), generator=rng)[:UPDATES].tolist():
            update = GradientRelease(model, nn.functional.cross_entropy, DATA.inputs[[row]], DATA.labels[[row]])
            for defense in _defenses():
                for attack in attacks:
                    observation = observe(update, defense=defense, threat=threat, data_range=DATA.data_range, rng=rng)
                    score(attack(observation, rng=rng), update.inputs, metrics)
                    done += 1
        return done

    return work


CONTENDERS = {"reconrisk": in_memory, "reconrisk, with a store": with_store, "bare loop": bare_loop}
