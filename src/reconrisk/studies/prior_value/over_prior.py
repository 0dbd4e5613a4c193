"""Leakage over a prior: the information that an attack gains from the release beyond its prior.

The attack is compared with its prior alone, and with itself on another record's update
(:class:`AttackOnExchangedUpdates`), given the same side information. So a plausible record is not mistaken for a
leaked one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.baselines import prior_alone
from reconrisk.attacks.knowledge import attack_name
from reconrisk.attacks.plain_function import attack_from_function
from reconrisk.attacks.registry import ATTACKS
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Attack, Observation, check_reconstruction
from reconrisk.core.reconstruction import Ending, Reconstruction
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_probability, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse, psnr, score
from reconrisk.priors.prior import Prior, is_prior
from reconrisk.statistics.intervals import student_interval
from reconrisk.studies.common.attacked_updates import AttackedUpdate, AttackOnUpdates, choose_records
from reconrisk.studies.common.plan import CachedPriorGuess
from reconrisk.studies.common.subjects.model_updates import Client, client_for
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, UpdateRecipe
from reconrisk.studies.prior_value.result import LeakageOverPrior, OverPrior

_SIDE_INFORMATION = ("labels", "record_norms", "batch_statistics")  # of the record; all else is of the release


def _pair_updates(updates: int) -> list[Tensor]:
    """Return the indices of updates in pairs; the last three of an odd number form one group.

    >>> _pair_updates(5)
    [tensor([0, 1]), tensor([2, 3, 4])]
    """
    places, whole = torch.arange(updates), updates - updates % 2
    pairs = list(places[:whole].split(2))
    return pairs if whole == updates else [*pairs[:-1], places[whole - 2 :]]


def exchange_update(another: Observation, own: Observation) -> Observation:
    """Return the release of another record with the side information of the record itself.

    Noise, kept values and the forward map belong to the release: a defense may choose all three by the update.

    Args:
        another: Observation with the release.
        own: Observation with the side information.

    Returns:
        The combined observation.
    """
    return replace(another, **{name: getattr(own, name) for name in _SIDE_INFORMATION})


@dataclass(frozen=True, eq=False)
class _AttackedObservation:
    """An observation, the state of its random generator, and the reconstruction."""

    observation: Observation
    device: torch.device
    state: Tensor
    found: Reconstruction


@dataclass(frozen=True, eq=False)
class AttackOnExchangedUpdates:
    """Wrapper that runs an attack on each update, and on each pair of updates with their releases exchanged.

    Attributes:
        attack: The attack.
        updates: Number of updates.
        exchanged: Estimates from the other update of the pair, for each update of a finished pair.

    Guarantee: an attack that does not read the update returns the same estimates for both releases if it has side
    information: that and the randomness are the same. Without side information the estimates from the other update are
    used again.
    """

    attack: Attack
    updates: int
    exchanged: list[Tensor] = field(default_factory=list)
    _pair: list[_AttackedObservation] = field(default_factory=list)

    @property
    def needs(self) -> ThreatModel:
        """Requirements of the attack."""
        return self.attack.needs

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Attack an observation; the last one of a pair is followed by attacks on the exchanged releases."""
        state = rng.get_state()
        found = check_reconstruction(attack_name(self.attack), self.attack(observation, rng=rng), observation)
        self._pair.append(_AttackedObservation(observation, rng.device, state, found))
        ends = {int(pair[-1]) + 1 for pair in _pair_updates(self.updates)}  # numbers of updates that complete a pair
        if found.status.ending is not Ending.INTERRUPTED and len(self.exchanged) + len(self._pair) in ends:
            self.exchanged.extend([self._attack_exchanged(place) for place in range(len(self._pair))])
            self._pair.clear()
        return found

    def _attack_exchanged(self, place: int) -> Tensor:
        """Return the estimates of one update of the pair from the release of the other."""
        own, another = self._pair[place], self._pair[place - 1]  # -1 wraps around: each gets the one before it
        if all(getattr(own.observation, name) is None for name in _SIDE_INFORMATION):  # no side information to exchange
            return another.found.estimates
        rng = torch.Generator(own.device).set_state(own.state)  # the same randomness as on the record's own update
        found = self.attack(exchange_update(another.observation, own.observation), rng=rng)
        if found.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        return found.estimates

    def __repr__(self) -> str:
        """Show the attack itself."""
        return repr(self.attack)


_FEWEST_UPDATES = 4  # two pairs, the fewest with a standard deviation


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
    r"""Measure the gain of an attack over its prior alone, and over the same attack on another record's update.

    .. math:: s(A(y_i), x_i) - s(\mathrm{E}[X], x_i), \qquad s(A(y_i), x_i) - s(A(y_j), x_i)

    Here s is a metric, A the attack, :math:`y_i` the update of record :math:`x_i`, :math:`y_j` another update, and E[X]
    the mean of the prior. The sign is reversed for metrics where lower is better, so positive differences are gains.

    The prior alone is its mean (:func:`reconrisk.attacks.baselines.prior_alone`). For the second comparison, updates
    of the same model under the same defense form pairs. The attack gets the release of the other update in the pair,
    with the labels, norms and statistics of the record's own batch if the threat model knows them. The estimate is
    scored against the record. Pairs are independent of each other, so the interval is computed over pairs.

    Args:
        attack: Configured attack or plain function.
        prior: Prior of the attack.
        model: Model of the client.
        dataset: Records of the client.
        records: Indices of the attacked records, at least four updates; None for all.
        update: Batch size, loss and local training of the client.
        knows: Further knowledge of the adversary.
        defense: Defense of the updates; None for none.
        metrics: Metrics of the scores; None for PSNR and mean squared error. ``leaks`` is decided by the first one.
        confidence: Confidence of each interval.
        rng: Source of all randomness.

    Returns:
        Scores and paired gains by each metric, with intervals.

    Raises:
        InvalidInput: If the attack or the prior is a name, the attack has another prior, or the records do not
            form at least four whole updates.

    Assumes: records are drawn from the population of interest, enough for the normal limit of a mean over updates.
    Guarantee: neither baseline sees the update of the record that it is scored against. All three estimates are matched
    and scored alike. Both differences are paired, which removes the difficulty of each record. An attack that reads
    only side information does as well with another record's update, so its gain is 0 up to chance.
    Edge cases: after an interruption the finished updates are compared. An attack or a prior by name is rejected: a
    name fits its own prior to public records, which may differ from ``prior``. With an infinite score the interval
    is from the smallest to the largest value.
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
    _check_prior_matches(attack, prior)
    chosen_records = range(len(dataset)) if records is None else records
    batch_size = update.batch_size
    _check_batches(chosen_records, batch_size)
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)", "Pass 0.95, for instance.")
    targets = choose_records(dataset, chosen_records)
    chosen: tuple[Metric, ...] = (psnr(data_range=dataset.data_range), mse())
    if metrics is not None:
        chosen = (metrics,) if isinstance(metrics, Metric) else tuple(metrics)
    known = tuple(knows)
    seed = int(torch.randint(2**62, (1,), generator=rng))

    def run(configured: Attack, client: Client) -> list[AttackedUpdate]:
        """Attack all updates, with the same noise for every attack."""
        threat = configured.needs.with_knowledge(*known, Knows.PRIOR)
        attacked = AttackOnUpdates(configured, client, defense, threat, chosen)
        return attacked.run(targets, batch_size, rng=torch.Generator().manual_seed(seed))

    guess = CachedPriorGuess(prior_alone(prior))
    alone = run(guess, client_for(guess, model, targets, update))
    paired = AttackOnExchangedUpdates(attack, len(targets) // batch_size)
    attacked = run(paired, client_for(attack, model, targets, update))  # with the layer that it plants
    updates = min(len(attacked), len(alone), len(paired.exchanged))
    if updates < _FEWEST_UPDATES:
        raise invalid_input("number of finished updates", updates, f">= {_FEWEST_UPDATES}", "Let the study run longer.")
    comparison = _ScoreComparison(batch_size, updates, confidence)
    rows = tuple(comparison.row(metric, attacked, alone, targets.inputs, paired.exchanged) for metric in chosen)
    sent = "none" if defense is None else repr(defense)
    return LeakageOverPrior(repr(attack), prior.name, sent, updates, batch_size, rows)


def check_configured(attack: object) -> None:
    """Raise unless an attack is callable, with the call that configures a named one.

    Args:
        attack: Value of the argument ``attack``.

    Raises:
        InvalidInput: If it is a name or not callable.

    >>> check_configured("dlg")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected attack='dlg' to be a configured attack. Pass rr.attacks.dlg().
    """
    if callable(attack):
        return
    takes = isinstance(attack, str) and attack in ATTACKS and bool(ATTACKS[attack].priors)
    call = f"rr.attacks.{attack}({'prior' if takes else ''})" if attack in ATTACKS else "one of rr.attacks"
    raise invalid_input("attack", attack, "to be a configured attack", f"Pass {call}.")


@dataclass(frozen=True)
class _ScoreComparison:
    """Comparison of scores, as means over updates."""

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
        """Return the mean over updates with an interval over pairs: both scores of a pair use the same two updates."""
        means = values.view(self.updates, -1).mean(1)
        by_pair = [float(means[pair].mean()) for pair in _pair_updates(self.updates)]
        found = student_interval(by_pair, self.confidence, over="pairs of updates")
        return replace(found, value=float(means.mean()))


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """Return the difference; two equal infinities differ by 0."""
    return torch.where(one == other, 0.0, one - other)


def _check_prior_matches(attack: Attack, prior: Prior) -> None:
    """Raise if the prior is not that of the attack, since the baseline would be that of another prior."""
    given: object = prior
    if not is_prior(given):
        remedy = "Pass one of rr.priors, such as rr.priors.fit_gaussian(public_records)."
        raise invalid_input("prior", given if isinstance(given, str) else type(given).__name__, "to be a prior", remedy)
    held = getattr(attack, "prior", None)
    if is_prior(held) and held is not prior and held.fingerprint != prior.fingerprint:
        raise invalid_input(
            "prior", prior.name, f"to be the prior of the attack, {held.name}", "Pass the same object to both."
        )


def _check_batches(records: Sequence[int], batch_size: int) -> None:
    size, count = check_whole("batch_size", batch_size), len(records)
    if len(set(records)) < count:
        repeated = next(record for place, record in enumerate(records) if record in records[:place])
        raise invalid_input(
            "records",
            repeated,
            "to be listed once",
            "Remove repeated records: the update of another record is a baseline.",
        )
    if count % size:
        raise invalid_input("batch_size", size, f"to divide {count}, the number of records")
    if count < _FEWEST_UPDATES * size:
        remedy = (
            "Pass more records: the update of another record is a baseline, and intervals are over pairs of updates."
        )
        raise invalid_input("len(records)", count, f">= {_FEWEST_UPDATES * size}, {_FEWEST_UPDATES} updates", remedy)
