"""Attack an update that was captured without its records, so that only the attack's own objective is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.baselines import constant_guess, prior_alone
from reconrisk.attacks.knowledge import PublicKnowledge, attack_name, configure_attack
from reconrisk.attacks.prior_choice import ResolvedPrior
from reconrisk.attacks.with_prior.unknown_noise import count_sent_values, squared_residual
from reconrisk.core.observation import Attack, Observation, check_reconstruction
from reconrisk.core.reconstruction import AttackReport, Ending, Reconstruction
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.releases.updates.captured import Tensors, observe_captured
from reconrisk.releases.updates.gradient import ONE_GRADIENT, UpdateRecipe, check_recipe
from reconrisk.studies.common.plan import alone
from reconrisk.studies.common.subjects.model_updates import Client, client_for
from reconrisk.studies.rebuild.report import Misfit, RebuildReport
from reconrisk.studies.rebuild.updates import PRIOR_ALONE, Rebuilt, check_reads_updates, prior_to_beat

_LARGEST_MISFIT = 0.01  # squared residual over squared norm of the update; even weak attacks on the right setting pass
_SEED, _STEPS = 0, 20  # of draws from a prior: 20 steps give plausible records, and quality does not matter here
_MISFIT_REMEDY = "Check batch_size, local steps, learning rate and that the update is of this model; or search longer"


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
    """Reconstruct the records behind a captured update: a gradient, or the weights before and after training.

    There are no scores. Instead the report compares the captured update with the updates of the estimates and of a
    baseline. The baseline is the prior alone for an attack with a generative prior, otherwise a constant guess. An
    attack reduces this misfit whatever was captured, so only a much smaller misfit indicates a leak.
    Pass either ``gradient``, or ``before`` and ``after``.

    Args:
        attack: Name of an attack, or a configured one.
        model: The client's network; None only for attacks that plant a whole model of their own.
        input_shape: Shape of one record, without the batch dimension.
        gradient: Captured gradient, taken at the weights of ``model`` or of ``before``.
        before: Weights before local training, or the weights at which ``gradient`` was taken.
        after: Weights after local training.
        update: Training of the client: number of records, training loss, and the local SGD steps between
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
        InvalidInput: If settings contradict each other, or tensors do not fit the model; errors name the tensor.
        InvalidFile: If a file cannot be read.

    Assumes: without ``update.loss_fn`` the client's loss is that of
    :func:`reconrisk.studies.common.subjects.model_updates.training_loss` for class labels, or for those of ``public``.
    A server that chooses the model planted the layer that the attack plants.
    Edge cases: the error for a tensor that does not fit the model names the tensor.

    >>> model, record = nn.Linear(2, 2), torch.tensor([[0.25, 0.5]])
    >>> nn.functional.cross_entropy(model(record), torch.tensor([1])).backward()
    >>> gradient = {name: value.grad for name, value in model.named_parameters()}
    >>> rebuild_captured("analytic", model, input_shape=(2,), gradient=gradient, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.5000]])
    """
    check_reads_updates(attack)
    check_recipe(update)
    shape = tuple(check_whole("input_shape", side) for side in input_shape)
    example = _example_dataset(shape, data_range, public)
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
        threat=configured.needs.with_knowledge(*derived),
        data_range=data_range,
    )
    baselines = _Baselines.compute(prior_to_beat(configured, knowledge), observation)
    name = attack if isinstance(attack, str) else attack_name(configured)
    found = check_reconstruction(name, configured(observation, rng=rng), observation)
    reconstruction = _flag_misfit(found, observation)
    report = _build_report(observation, reconstruction.account, client, name=name, seed=rng.initial_seed())
    report = replace(report, model=model_name or type(model).__name__)
    report = baselines.add_to_report(report, reconstruction, observation)
    return Rebuilt(report, reconstruction.estimates, None, baselines.guesses)


@dataclass(frozen=True, eq=False)
class _Baselines:
    """Estimates that ignore the update, for comparison: a plausible record is easily mistaken for a leaked one.

    Attributes:
        prior: Generative prior of the attack; None without one.
        guesses: Mean of the prior, or a constant guess.
        drawn: Records drawn from the prior; None without one.
    """

    prior: ResolvedPrior | None
    guesses: Tensor
    drawn: Tensor | None

    @classmethod
    def compute(cls, prior: ResolvedPrior | None, observation: Observation) -> _Baselines:
        """Compute the baselines with a separate generator, so that the attack's randomness does not change."""
        seen = replace(observation, threat=observation.threat.with_knowledge(Knows.PRIOR))
        if prior is None:
            return cls(None, constant_guess()(seen, rng=torch.Generator()).estimates, None)
        rng = torch.Generator().manual_seed(_SEED)
        drawn = prior_alone(prior.value, guess="draw", steps=_STEPS)(seen, rng=rng).estimates
        return cls(prior, alone(prior.value)(seen, rng=rng).estimates, drawn)

    def add_to_report(self, report: RebuildReport, found: Reconstruction, observation: Observation) -> RebuildReport:
        """Return the report with the prior, and with the misfits of estimates and baselines."""
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
    """Return the distance between the records' update and the captured one.

    The unit is the norm of the captured update, or with known noise the root mean square in standard deviations.
    """
    whole = sum(float(value.double().square().sum()) for value in observation.released.values())
    unit = whole if observation.noise_std is None else float(count_sent_values(observation))
    # ulp(0) is the smallest positive float: a captured update of zeros must not divide by zero
    return math.sqrt(squared_residual(observation, records, labels) / max(unit, math.ulp(0.0)))


def _flag_misfit(reconstruction: Reconstruction, observation: Observation) -> Reconstruction:
    """Add a cause and a remedy to the status if the estimates' update is far from the captured one."""
    status, labels = reconstruction.status, reconstruction.labels
    if status.is_failure or labels is None or observation.noise_std is not None or observation.kept is not None:
        return reconstruction
    off = _misfit(observation, reconstruction.estimates, torch.tensor(labels))
    if off**2 <= _LARGEST_MISFIT:
        return reconstruction
    cause = f"{status.cause}; the estimates' update differs from the captured one by {off:.0%}"
    ending = Ending.CONVERGED if status.ending is Ending.EXACT else status.ending  # "exact" would contradict the cause
    flagged = replace(status, ending=ending, cause=cause, remedy=_MISFIT_REMEDY)
    return replace(reconstruction, account=replace(reconstruction.account, status=flagged))


def _example_dataset(shape: tuple[int, ...], data_range: tuple[float, float], public: Dataset | None) -> Dataset:
    """Return a data set with one possible record of the client, to try model and loss with."""
    if public is None:
        record = torch.full((1, *shape), data_range[0], dtype=torch.float32)
        return Dataset("captured", record, torch.tensor([0]), data_range)
    if public.shape != shape or public.data_range != data_range:
        raise invalid_input("public", public, f"to hold records of shape {shape} in {data_range}")
    return public.subset([0])


def _build_report(
    observation: Observation, account: AttackReport, client: Client, *, name: str, seed: int
) -> RebuildReport:
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
