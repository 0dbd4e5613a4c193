"""Leakage over a prior: what an attack learned from the release, beyond what its prior knew.

The attack is compared with its prior alone, and with itself on another record's update (:class:`AlsoOnAnother`), given
the same side information. So a plausible record is not taken for a leaked one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.baselines import prior_alone
from reconrisk.attacks.knowledge import name_of
from reconrisk.attacks.plain_function import attack_from_function, check_reconstruction
from reconrisk.attacks.registry import ATTACKS
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Ending, Reconstruction
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_probability, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse, psnr, score
from reconrisk.priors.prior import Prior, is_prior
from reconrisk.statistics.intervals import student_interval
from reconrisk.studies.common.attacked_updates import AttackedUpdate, AttackOnUpdates, choose_records
from reconrisk.studies.common.plan import AloneOnce
from reconrisk.studies.common.subjects.model_updates import Client, client_for
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, UpdateRecipe
from reconrisk.studies.prior_value.result import LeakageOverPrior, OverPrior

_OF_THE_RECORD = ("labels", "record_norms", "batch_statistics")  # all else is of the model, the release or the defense


def _pairs_of(updates: int) -> list[Tensor]:
    """Places of updates, two and two; of an odd number the last three are together.

    >>> _pairs_of(5)
    [tensor([0, 1]), tensor([2, 3, 4])]
    """
    places, whole = torch.arange(updates), updates - updates % 2
    pairs = list(places[:whole].split(2))
    return pairs if whole == updates else [*pairs[:-1], places[whole - 2 :]]


def with_update_of(another: Observation, own: Observation) -> Observation:
    """What was released of another record, how, and the side information of the record itself.

    Noise, the values that were kept and the forward map come with the release: a defense may choose all three by it.
    """
    return replace(another, **{name: getattr(own, name) for name in _OF_THE_RECORD})


@dataclass(frozen=True, eq=False)
class _Met:
    """An observation, the randomness at its hand, and what the attack made of both."""

    observation: Observation
    device: torch.device
    state: Tensor
    found: Reconstruction


@dataclass(frozen=True, eq=False)
class AlsoOnAnother:
    """An attack that meets ``updates`` one after the other, and then the pairs of them the other way round.

    ``made`` has, for each update of a whole pair, the estimates from the other one's.

    Guarantee: an attack that does not read the update makes the same of both where anything is known of the record:
    side information and randomness are the same. Where nothing is known, what it made of the other is used again.
    """

    attack: Attack
    updates: int
    made: list[Tensor] = field(default_factory=list)
    _pair: list[_Met] = field(default_factory=list)

    @property
    def needs(self) -> ThreatModel:
        """Those of the attack."""
        return self.attack.needs

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """What the attack makes of ``observation``; the last of a pair is followed by the exchange."""
        state = rng.get_state()
        found = check_reconstruction(name_of(self.attack), self.attack(observation, rng=rng), observation)
        self._pair.append(_Met(observation, rng.device, state, found))
        ends = {int(pair[-1]) + 1 for pair in _pairs_of(self.updates)}
        if found.status.ending is not Ending.INTERRUPTED and len(self.made) + len(self._pair) in ends:
            self.made.extend([self._exchanged(place) for place in range(len(self._pair))])
            self._pair.clear()
        return found

    def _exchanged(self, place: int) -> Tensor:
        own, another = self._pair[place], self._pair[place - 1]
        if all(getattr(own.observation, name) is None for name in _OF_THE_RECORD):  # nothing is known of the record
            return another.found.estimates
        rng = torch.Generator(own.device).set_state(own.state)
        found = self.attack(with_update_of(another.observation, own.observation), rng=rng)
        if found.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        return found.estimates

    def __repr__(self) -> str:
        """The attack."""
        return repr(self.attack)


_LEAST = 4  # updates: two pairs, of which the spread can be seen


def leakage_over_prior(
    attack: Attack,
    prior: Prior,
    model: nn.Module,
    dataset: Dataset,
    *,
    records: Sequence[int] | None = None,
    update: UpdateRecipe = ONE_GRADIENT,
    knows: Iterable[Knows] = (),
    defense: Defense | None = None,
    metrics: Metric | Sequence[Metric] | None = None,
    confidence: float = 0.95,
    rng: torch.Generator,
) -> LeakageOverPrior:
    r"""How much nearer an attack comes with the update of a record than with its prior alone, or with another's update.

    .. math:: s(A(y_i), x_i) - s(\mathrm{E}[X], x_i), \qquad s(A(y_i), x_i) - s(A(y_j), x_i)

    ``records`` of ``dataset`` are attacked, by default all, in updates as ``update`` says. The prior alone is its mean
    (:func:`reconrisk.attacks.baselines.prior_alone`). "Another" is the other of a pair of updates of the same model
    under the same defense: the attack gets that release, with the labels, norms and statistics of the record's own
    batch where the threat knows them, and is scored against the record. Pairs, which have nothing in common, are what
    that interval is over. ``metrics`` are PSNR and mean squared error unless stated; the first decides the verdict.

    Assumes: records are drawn from whom the numbers speak of, enough for the normal limit of a mean of updates.
    Guarantee: neither baseline sees anything of the update of the record that it is scored against; all three are
    matched and scored alike. Both differences are paired, which takes the difficulty of each record out of them. An
    attack that reads side information and no update is as near with another's update, and so has leaked nothing.
    Edge cases: interrupted, the updates that are done are compared. An attack or a prior by name is refused: what the
    name stands for depends on public records, and the baseline might be that of another prior. An infinite score
    leaves the extremes as interval.
    Reference: intervals of Student (1908) over updates, since records of one update depend on each other.

    >>> from reconrisk.attacks.analytic.attack import analytic
    >>> from reconrisk.priors.gaussian import gaussian
    >>> prior = gaussian(torch.full((3,), 0.5), 0.02 * torch.eye(3))
    >>> data = Dataset("toy", prior.draw(6, torch.Generator().manual_seed(1)).float().clamp(0, 1), torch.arange(6) % 2)
    >>> found = leakage_over_prior(analytic(), prior, nn.Linear(3, 2), data, rng=torch.Generator().manual_seed(0))
    >>> found.leaks
    True
    """
    check_configured(attack)
    attack = attack_from_function(attack)
    _check_held(attack, prior)
    chosen_records = range(len(dataset)) if records is None else records
    batch_size = update.batch_size
    _check_batches(chosen_records, batch_size)
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)", "0.95 is usual.")
    targets = choose_records(dataset, chosen_records)
    chosen: tuple[Metric, ...] = (psnr(data_range=dataset.data_range), mse())
    if metrics is not None:
        chosen = (metrics,) if isinstance(metrics, Metric) else tuple(metrics)
    known = tuple(knows)
    seed = int(torch.randint(2**62, (1,), generator=rng))

    def run(configured: Attack, client: Client) -> list[AttackedUpdate]:
        """Under noise that is the same for both."""
        threat = configured.needs.knowing(*known, Knows.PRIOR)
        attacked = AttackOnUpdates(configured, client, defense, threat, chosen)
        return attacked.run(targets, batch_size, rng=torch.Generator().manual_seed(seed))

    guess = AloneOnce(prior_alone(prior))
    alone = run(guess, client_for(guess, model, targets, update))
    paired = AlsoOnAnother(attack, len(targets) // batch_size)
    attacked = run(paired, client_for(attack, model, targets, update))  # with the layer that it plants
    updates = min(len(attacked), len(alone), len(paired.made))
    if updates < _LEAST:
        raise invalid_input("updates", updates, f">= {_LEAST} that are done", "Let it run longer.")
    compared = _Compared(batch_size, updates, confidence)
    rows = tuple(compared.row(metric, attacked, alone, targets.inputs, paired.made) for metric in chosen)
    sent = "none" if defense is None else repr(defense)
    return LeakageOverPrior(repr(attack), prior.name, sent, updates, batch_size, rows)


def check_configured(attack: object) -> None:
    """Refuse the name of an attack where a configured one is needed, and what cannot be called.

    >>> check_configured("dlg")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected attack='dlg' to be a configured attack. Pass rr.attacks.dlg().
    """
    if callable(attack):
        return
    takes = isinstance(attack, str) and attack in ATTACKS and bool(ATTACKS[attack].priors)
    called = f"rr.attacks.{attack}({'prior' if takes else ''})" if attack in ATTACKS else "one of rr.attacks"
    raise invalid_input("attack", attack, "to be a configured attack", f"Pass {called}.")


@dataclass(frozen=True)
class _Compared:
    """Scores of records as means over updates."""

    batch_size: int
    updates: int
    confidence: float

    def row(
        self,
        metric: Metric,
        attacked: Sequence[AttackedUpdate],
        alone: Sequence[AttackedUpdate],
        targets: Tensor,
        others: Sequence[Tensor],
    ) -> OverPrior:
        """Compare the scores by one metric; ``others`` are the estimates from the other update of each pair."""
        mine, guess = (
            torch.cat([update.values[metric.name] for update in each[: self.updates]]).double()
            for each in (attacked, alone)
        )
        batches = targets[: self.batch_size * self.updates].split(self.batch_size)
        pairs = zip(others[: self.updates], batches, strict=True)
        other = torch.cat([score(each, batch, metric)[metric.name] for each, batch in pairs]).double()
        sign = 1.0 if metric.higher_is_better else -1.0
        return OverPrior(
            repr(metric),
            metric.name,
            self._mean(mine),
            self._mean(guess),
            self._mean_of_pairs(other),
            self._mean(sign * _difference(mine, guess)),
            self._mean_of_pairs(sign * _difference(mine, other)),
        )

    def _mean(self, values: Tensor) -> Estimate:
        means = [float(update.mean()) for update in values.split(self.batch_size)]
        return student_interval(means, self.confidence, over="updates")

    def _mean_of_pairs(self, values: Tensor) -> Estimate:
        """The mean over updates; those of a pair share their updates, so that pairs make the interval."""
        means = values.view(self.updates, -1).mean(1)
        by_pair = [float(means[pair].mean()) for pair in _pairs_of(self.updates)]
        found = student_interval(by_pair, self.confidence, over="pairs of updates")
        return replace(found, value=float(means.mean()))


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """One minus the other; two equal infinities differ by nothing."""
    return torch.where(one == other, 0.0, one - other)


def _check_held(attack: Attack, prior: Prior) -> None:
    """Refuse the baseline of another prior than that of the attack."""
    given: object = prior
    if not is_prior(given):
        remedy = "Pass one of rr.priors, such as rr.priors.fit_gaussian(public_records)."
        raise invalid_input("prior", given if isinstance(given, str) else type(given).__name__, "to be a prior", remedy)
    held = getattr(attack, "prior", None)
    if is_prior(held) and held is not prior and held.fingerprint != prior.fingerprint:
        raise invalid_input(
            "prior", prior.name, f"to be that of the attack, {held.name}", "Pass the same object to both."
        )


def _check_batches(records: Sequence[int], batch_size: int) -> None:
    size, count = check_whole("batch_size", batch_size), len(records)
    if len(set(records)) < count:
        repeated = next(record for place, record in enumerate(records) if record in records[:place])
        raise invalid_input("records", repeated, "to be named once", "Another record's update is a baseline.")
    if count % size:
        raise invalid_input("batch_size", size, f"to divide {count}, the number of records")
    if count < _LEAST * size:
        remedy = "Another record's update is a baseline, and intervals are over pairs."
        raise invalid_input("records", count, f">= {_LEAST * size}, {_LEAST} updates", remedy)
