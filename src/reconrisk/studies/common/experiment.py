"""One trial: make a release of the target records, defend it, observe it, attack it and score the estimates.

The random numbers of a trial follow from a hash of seed, defense, draw and attack, so trials do not depend on earlier
ones. Attacks on one draw under one defense see the same noise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.core.digest import describe_settings
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Observation, check_reconstruction
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.metrics.scoring import score
from reconrisk.releases.observe import observe
from reconrisk.releases.release import Release
from reconrisk.studies.common.plan import Plan, PlannedAttack
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.runs import Trial, TrialKey, TrialScores
from reconrisk.studies.common.subjects.subject import Subject

_SEEDS = 2**63  # torch.Generator takes seeds below this
_REFUSALS = (InvalidInput, InvalidFile, MissingExtra)

_REMEDY = "Choose another attack"


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything that the trials of a study share.

    Attributes:
        plan: Attacks, defenses and target records.
        subject: Audited object, which makes the releases.
        population: Records that targets are drawn from.
        threat: Abilities of the adversary.
        metrics: Metrics that every trial computes.
        seed: Seed of the study.
    """

    plan: Plan
    subject: Subject
    population: Population
    threat: ThreatModel
    metrics: tuple[Metric, ...]
    seed: int

    def trial(self, key: TrialKey) -> tuple[Trial, Tensor]:
        """Run one attack on one release; return its outcome and its estimates in the order of the records.

        Guarantee: the result depends on the key only, not on earlier trials; attacks on one draw under one defense see
        the same noise. An attack of a portfolio that refuses the release is recorded as not applicable, and one that
        raises as failed. An error of the model or the defense is reported with its message.
        """
        planned, rows = self.attacks[key.attack], self.plan.updates[key.draw]
        search = self._rng("search", key)
        release, observation = self.observe(key, self.threat_of(planned))
        reconstruction = self._run_attack(planned, observation, search)
        with report_user_errors(f"scores of what {planned.label} estimates", "A metric raised this."):
            scores = score(reconstruction, release.inputs, self.metrics)
        order = scores.matched.clamp_min(0)  # -1 marks a record without an estimate; its score is the worst one
        trial = Trial(
            key=key,
            records=rows,
            seed=search.initial_seed(),
            scores=tuple(TrialScores(name, tuple(values.tolist())) for name, values in scores.items()),
            account=reconstruction.account,
            distortion=self._distortion(key, release, observation),
            settings=planned.settings,
        )
        return trial, reconstruction.estimates[order]

    def observe(self, key: TrialKey, threat: ThreatModel) -> tuple[Release, Observation]:
        """Return the release of a trial, and the observation of an adversary with these powers.

        Args:
            key: Defense, attack and draw of the trial.
            threat: Abilities of the adversary.

        Returns:
            The release and the observation; the noise depends on the defense and the draw only.
        """
        rows, noise = self.plan.updates[key.draw], self._rng("noise", key)
        article = "an update" if self.subject.unit == "update" else f"a {self.subject.unit}"
        with report_user_errors(f"{article} of the records {rows} under {key.defense}"):
            release = self.subject.release(rows, self.attacks[key.attack].attack, noise)
            observation = observe(
                release,
                defense=self.plan.defenses[key.defense],
                threat=threat,
                data_range=self.population.dataset.data_range,
                rng=noise,
            )
        return release, observation

    def is_scored(self, trial: Trial) -> bool:
        """Return True if a stored trial has the scores of every metric that is needed now."""
        return {metric.name for metric in self.metrics} <= {scores.metric for scores in trial.scores}

    def threat_of(self, planned: PlannedAttack) -> ThreatModel:
        """Return the adversary who runs an attack.

        An attack with a prior knows the prior in addition. Baselines know everything that they need.
        """
        if planned.is_baseline:
            return self.threat.with_knowledge(*planned.attack.needs.knows)
        return self.threat if planned.prior is None else self.threat.with_knowledge(Knows.PRIOR)

    @cached_property
    def attacks(self) -> Mapping[str, PlannedAttack]:
        """Planned attacks by label."""
        return {planned.label: planned for planned in self.plan.attacks}

    def _run_attack(self, planned: PlannedAttack, observation: Observation, rng: torch.Generator) -> Reconstruction:
        begun = time.monotonic()
        try:
            return check_reconstruction(planned.label, planned.attack(observation, rng=rng), observation)
        except _REFUSALS as error:
            if planned.was_chosen:
                raise
            cause, _, rest = str(error).rstrip(".").partition(f". {_REMEDY}")  # some errors end with this remedy
            status = Status(Ending.NOT_APPLICABLE, cause, _REMEDY + rest)
        except Exception as error:  # any kind: one trial that fails must not lose the others
            status = Status(Ending.DIVERGED, _describe_error(error), "Change its settings or choose another attack")
        cost = Cost(time.monotonic() - begun, 0)
        account = AttackReport(
            describe_settings(planned.attack), status, (float("inf"),) * observation.batch_size, cost
        )
        shape = (observation.batch_size, *observation.input_shape)
        return Reconstruction(torch.full(shape, float("nan")), account)  # NaN gets the worst score of every metric

    def _distortion(self, key: TrialKey, release: Release, observation: Observation) -> float | None:
        """Return the relative squared change of the release by the defense.

        The trial of the first baseline measures it for all attacks; the others return None.
        """
        if key.attack != next((each.label for each in self.plan.attacks if each.is_baseline), None):
            return None
        if self.plan.defenses[key.defense] is None:
            return 0.0
        undefended = release.value()
        norm = sum(float(value.double().square().sum()) for value in undefended.values())
        pairs = ((observation.released[name].double(), value.double()) for name, value in undefended.items())
        # A zero release has no relative change.
        return sum(float((sent - value).square().sum()) for sent, value in pairs) / norm if norm > 0 else 0.0

    def _rng(self, kind: str, key: TrialKey) -> torch.Generator:
        """Return a generator that depends on the seed and the key only, not on the order or number of trials."""
        # The noise does not depend on the attack, so attacks on one draw under one defense see the same noise.
        parts = (self.seed, kind, key.draw, key.defense, key.attack if kind == "search" else "")
        digest = hashlib.sha256(repr(parts).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") % _SEEDS)


@contextmanager
def report_user_errors(what: str, remedy: str = "The model, its loss or the defense raised this.") -> Iterator[None]:
    """Report an exception of the user's model, loss, defense or metric as InvalidInput.

    Args:
        what: What was expected, as the object of "Expected ...".
        remedy: Last sentence of the message.

    Raises:
        InvalidInput: If the body raises anything but one of our own errors or KeyboardInterrupt.
    """
    try:
        yield
    except _REFUSALS:
        raise
    except Exception as error:  # a model, loss or defense may raise anything
        raise InvalidInput(f"Expected {what}, got {_describe_error(error)}. {remedy}") from error


def _describe_error(error: Exception) -> str:
    """Return the class of an error and the first line of its message."""
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
