"""Attack an update that was captured without its records: there is no score, only the attacker's own objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.baselines import constant_guess, prior_alone
from reconrisk.attacks.knowledge import PublicKnowledge, configure_attack, name_of
from reconrisk.attacks.plain_function import check_reconstruction
from reconrisk.attacks.prior_choice import StatedPrior
from reconrisk.attacks.with_prior.unknown_noise import sent_values, squared_residual
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Account, Ending, Reconstruction
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.releases.updates.captured import Tensors, observe_captured
from reconrisk.releases.updates.recipe import ONE_GRADIENT, UpdateRecipe, check_recipe
from reconrisk.studies.common.plan import alone
from reconrisk.studies.common.subjects.model_updates import Client, client_for
from reconrisk.studies.rebuild.report import Misfit, RebuildReport
from reconrisk.studies.rebuild.updates import PRIOR_ALONE, Rebuilt, check_reads_updates, prior_to_beat

_EXPLAINED = 0.01  # of the squared norm of an update: what even weak attacks leave open of one that they explain
_SEED, _STEPS = 0, 20  # of what is drawn from a prior: plausible records, not the best
_MISFIT = "Check batch_size, local steps, learning rate and that the update is of this model; or search longer"


def rebuild_captured(
    attack: str | Attack,
    model: nn.Module | None,
    *,
    input_shape: Sequence[int],
    gradient: Tensors | None = None,
    before: Tensors | None = None,
    after: Tensors | None = None,
    update: UpdateRecipe = ONE_GRADIENT,
    labels: Sequence[int] | Tensor | None = None,
    noise_std: float | None = None,
    data_range: tuple[float, float] = (0.0, 1.0),
    settings: Mapping[str, object] | None = None,
    public: Dataset | None = None,
    model_name: str | None = None,
    rng: torch.Generator,
) -> Rebuilt:
    """Reconstruct the records behind a captured update; there is nothing to score the estimates against.

    Pass either ``gradient``, or ``before`` and ``after``.

    Args:
        attack: Name of an attack, or a configured one.
        model: The client's network; None only for attacks that plant a whole model of their own.
        input_shape: Shape of one record, without the batch dimension.
        gradient: Captured gradient, taken at the weights of ``model`` or of ``before``.
        before: Weights before local training, or those at which ``gradient`` was taken.
        after: Weights after local training.
        update: How the client computed the update: number of records, loss, and the local SGD steps between
            ``before`` and ``after``.
        labels: Labels of the records, if the adversary knows them.
        noise_std: Standard deviation of the noise on every value that was sent, if the adversary knows it.
        data_range: Smallest and largest value of a record, which are public.
        settings: Settings of a named attack.
        public: Public records: the adversary's prior, and the candidates of best_candidate().
        model_name: Name of the model in the report; its class by default.
        rng: Generator of the attack.

    Returns:
        The estimates with a report.

    Raises:
        InvalidInput: If settings do not belong together, or tensors do not fit the model; errors name the tensor.
        InvalidFile: If a file cannot be read.

    Assumes: without ``update.loss_fn`` the client's loss is that of
    :func:`reconrisk.studies.common.subjects.model_updates.training_loss` for class labels, or for those of ``public``.
    A server that chooses the model planted the layer that the attack plants.
    Edge cases: there are no scores. The report gives the distance from the update of the estimates to the captured one,
    and the same distance for a guess (for attacks with a generative prior: of that prior alone). Every attack lowers
    this distance, so only a much smaller one indicates a leak.

    >>> model, record = nn.Linear(2, 2), torch.tensor([[0.25, 0.5]])
    >>> nn.functional.cross_entropy(model(record), torch.tensor([1])).backward()
    >>> gradient = {name: value.grad for name, value in model.named_parameters()}
    >>> rebuild_captured("analytic", model, input_shape=(2,), gradient=gradient, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.5000]])
    """
    check_reads_updates(attack)
    check_recipe(update)
    shape = tuple(check_whole("input_shape", side) for side in input_shape)
    example = _example(shape, data_range, public)
    columns = None if public is None else public.columns
    knowledge = PublicKnowledge(
        shape, update.batch_size, public, public, columns, data_range=data_range, is_captured=True
    )
    configured, derived = configure_attack(attack, settings, knowledge)
    client = client_for(configured, model, example, update)
    observation = observe_captured(
        client.model,
        input_shape=shape,
        gradient=gradient,
        before=before,
        after=after,
        update=replace(update, loss_fn=client.loss_fn),
        labels=labels,
        noise_std=noise_std,
        threat=configured.needs.knowing(*derived),
        data_range=data_range,
    )
    beside = _Beside.of(prior_to_beat(configured, knowledge), observation)
    name = attack if isinstance(attack, str) else name_of(configured)
    found = check_reconstruction(name, configured(observation, rng=rng), observation)
    reconstruction = _told_of_misfit(found, observation)
    report = _report(observation, reconstruction.account, client, name=name, seed=rng.initial_seed())
    report = beside.told(replace(report, model=model_name or type(model).__name__), reconstruction, observation)
    return Rebuilt(report, reconstruction.estimates, None, beside.guesses)


@dataclass(frozen=True, eq=False)
class _Beside:
    """What is guessed without a look at the update, made before the attack: plausible is easily taken for leaked."""

    prior: StatedPrior | None
    guesses: Tensor
    drawn: Tensor | None

    @classmethod
    def of(cls, prior: StatedPrior | None, observation: Observation) -> _Beside:
        """A constant, or the mean of a prior and draws of it, by chance of their own."""
        seen = replace(observation, threat=observation.threat.knowing(Knows.PRIOR))
        if prior is None:
            return cls(None, constant_guess()(seen, rng=torch.Generator()).estimates, None)
        rng = torch.Generator().manual_seed(_SEED)
        drawn = prior_alone(prior.value, guess="draw", steps=_STEPS)(seen, rng=rng).estimates
        return cls(prior, alone(prior.value)(seen, rng=rng).estimates, drawn)

    def told(self, report: RebuildReport, found: Reconstruction, observation: Observation) -> RebuildReport:
        """The report with the prior, and with how well estimates and guesses explain the update."""
        labels = observation.labels
        if labels is None and found.labels is not None:
            labels = torch.tensor(found.labels)  # as the attack inferred them
        if self.prior is not None:
            report = replace(report, guesser=PRIOR_ALONE, prior=self.prior.said)
        if labels is None or found.status.is_failure or len(found.estimates) != len(labels):
            return report
        guess = _misfit(observation, self.guesses, labels)
        draw = None if self.drawn is None else _misfit(observation, self.drawn, labels)
        own, in_noise = _misfit(observation, found.estimates, labels), observation.noise_std is not None
        return replace(report, misfit=Misfit(own, guess, draw, in_noise))


def _misfit(observation: Observation, records: Tensor, labels: Tensor) -> float:
    """The distance of the update of these records to the captured one, in its norm or in deviations of the noise."""
    whole = sum(float(value.double().square().sum()) for value in observation.released.values())
    unit = whole if observation.noise_std is None else float(sent_values(observation))
    return math.sqrt(squared_residual(observation, records, labels) / max(unit, math.ulp(0.0)))


def _told_of_misfit(reconstruction: Reconstruction, observation: Observation) -> Reconstruction:
    """Say what may be wrong where the estimates do not explain the update: nobody can score them."""
    status, labels = reconstruction.status, reconstruction.labels
    if status.is_failure or labels is None or observation.noise_std is not None or observation.kept is not None:
        return reconstruction
    off = _misfit(observation, reconstruction.estimates, torch.tensor(labels))
    if off**2 <= _EXPLAINED:
        return reconstruction
    cause = f"{status.cause}; the estimates' update differs from the captured one by {off:.0%}"
    ending = Ending.CONVERGED if status.ending is Ending.EXACT else status.ending
    told = replace(status, ending=ending, cause=cause, remedy=_MISFIT)
    return replace(reconstruction, account=replace(reconstruction.account, status=told))


def _example(shape: tuple[int, ...], data_range: tuple[float, float], public: Dataset | None) -> Dataset:
    """A record that the client might have, by which model and loss are tried."""
    if public is None:
        record = torch.full((1, *shape), data_range[0], dtype=torch.float32)
        return Dataset("captured", record, torch.tensor([0]), data_range)
    if public.shape != shape or public.data_range != data_range:
        raise invalid_input("public", public, f"to hold records of shape {shape} in {data_range}")
    return public.subset([0])


def _report(observation: Observation, account: Account, client: Client, *, name: str, seed: int) -> RebuildReport:
    size = observation.batch_size
    known = observation.labels
    noise = None if observation.noise_std is None else float(next(iter(observation.noise_std.values())).flatten()[0])
    return RebuildReport(
        attack=name,
        settings=account.attack,
        model="",
        data="captured",
        release=f"captured {client}",
        defense="not known" if noise is None else f"noise of standard deviation {noise:g}",
        threat=observation.threat,
        shape=observation.input_shape,
        data_range=observation.data_range,
        batch_size=size,
        requested=size,
        records=tuple(range(size)),
        updates=(0,) * size,
        labels=("?",) * size if known is None else tuple(f"{label:g}" for label in known.tolist()),
        inferred=() if account.labels is None else tuple(str(label) for label in account.labels),
        objective=account.objective,
        scores=(),
        accounts=(account,),
        seed=seed,
    )
