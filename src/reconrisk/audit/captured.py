"""Attack an update that was captured without its records: there is no score, only the attacker's own objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from reconrisk.attacks.beliefs import Beliefs, configured_attack, name_of
from reconrisk.audit.client import Client, client_for
from reconrisk.audit.rebuild import Rebuilt, check_reads_updates
from reconrisk.audit.rebuild_report import RebuildReport
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Account, Ending, Reconstruction
from reconrisk.core.validation import check_whole, refuse
from reconrisk.data.dataset import Dataset
from reconrisk.releases.captured import Tensors, observe_captured
from reconrisk.releases.state import LossFunction

_EXPLAINED = 0.01  # of the squared norm of an update: what even weak attacks leave open of one that they explain
_MISFIT = "Check batch_size, local steps, learning rate and that the update is of this model; or search longer"


def rebuild_captured(
    attack: str | Attack,
    model: nn.Module | None,
    *,
    input_shape: Sequence[int],
    gradient: Tensors | None = None,
    before: Tensors | None = None,
    after: Tensors | None = None,
    learning_rate: float | None = None,
    local_steps: int | None = None,
    batch_size: int = 1,
    labels: Sequence[int] | Tensor | None = None,
    noise_std: float | None = None,
    data_range: tuple[float, float] = (0.0, 1.0),
    settings: Mapping[str, object] | None = None,
    loss_fn: LossFunction | None = None,
    public: Dataset | None = None,
    model_name: str | None = None,
    rng: torch.Generator,
) -> Rebuilt:
    """Rebuild the records behind a captured update: a gradient at ``model``, or the weights before and after training.

    The update is that of :func:`reconrisk.releases.captured.observe_captured`, the attack as in
    :func:`reconrisk.audit.rebuild.rebuild`. ``public`` records are what the adversary believes, if anything, and the
    candidates of best_candidate(). ``labels`` are stated where they are known.

    Assumes: without ``loss_fn`` the client's loss is that of :func:`reconrisk.audit.training_loss.training_loss` for
    class labels, or for those of ``public``. A server that chooses the model planted the layer that the attack plants.
    Edge cases: tensors that do not fit the model are refused by their name. There are no scores.

    >>> model, record = nn.Linear(2, 2), torch.tensor([[0.25, 0.5]])
    >>> nn.functional.cross_entropy(model(record), torch.tensor([1])).backward()
    >>> gradient = {name: value.grad for name, value in model.named_parameters()}
    >>> rebuild_captured("analytic", model, input_shape=(2,), gradient=gradient, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.5000]])
    """
    check_reads_updates(attack)
    if gradient is not None and (local_steps, learning_rate) != (None, None):
        given = (local_steps, learning_rate)
        raise refuse("(local_steps, learning_rate)", given, "to be left out with a gradient", "They go with after=.")
    shape = tuple(check_whole("input_shape", side) for side in input_shape)
    example = _example(shape, data_range, public)
    columns = None if public is None else public.columns
    beliefs = Beliefs(shape, check_whole("batch_size", batch_size), public, public, columns, data_range=data_range)
    configured, believed = configured_attack(attack, settings, beliefs)
    client = client_for(configured, model, example, loss_fn=loss_fn)
    observation = observe_captured(
        client.model,
        client.loss_fn,
        input_shape=shape,
        gradient=gradient,
        before=before,
        after=after,
        learning_rate=learning_rate,
        steps=local_steps,
        batch_size=batch_size,
        labels=labels,
        noise_std=noise_std,
        threat=configured.needs.knowing(*believed),
        data_range=data_range,
    )
    reconstruction = _told_of_misfit(configured(observation, rng=rng), observation)
    name = attack if isinstance(attack, str) else name_of(configured)
    trained = client if gradient is not None else Client(client.model, client.loss_fn, local_steps or 1, learning_rate)
    report = _report(observation, reconstruction.account, trained, name=name, seed=rng.initial_seed())
    return Rebuilt(replace(report, model=model_name or type(model).__name__), reconstruction.estimates, None)


def _told_of_misfit(reconstruction: Reconstruction, observation: Observation) -> Reconstruction:
    """Say what may be wrong where the estimates do not explain the update: nobody can score them."""
    status, labels = reconstruction.status, reconstruction.labels
    if status.is_failure or labels is None or observation.noise_std is not None or observation.kept is not None:
        return reconstruction
    caused = observation.forward(reconstruction.estimates, torch.tensor(labels))
    pairs = [(observation.released[name].double(), value.detach().double()) for name, value in caused.items()]
    size = sum(float(observed.square().sum()) for observed, _ in pairs)
    off = sum(float((observed - value).square().sum()) for observed, value in pairs)
    if off <= _EXPLAINED * size:
        return reconstruction
    cause = f"{status.cause}; the estimates' update differs from the captured one by {(off / size) ** 0.5:.0%}"
    told = replace(status, ending=_without_exact(status.ending), cause=cause, remedy=_MISFIT)
    return replace(reconstruction, account=replace(reconstruction.account, status=told))


def _without_exact(ending: Ending) -> Ending:
    return Ending.CONVERGED if ending is Ending.EXACT else ending


def _example(shape: tuple[int, ...], data_range: tuple[float, float], public: Dataset | None) -> Dataset:
    """A record that the client might have, by which model and loss are tried."""
    if public is None:
        record = torch.full((1, *shape), data_range[0], dtype=torch.float32)
        return Dataset("captured", record, torch.tensor([0]), data_range)
    if public.shape != shape or public.data_range != data_range:
        raise refuse("public", public, f"to hold records of shape {shape} in {data_range}")
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
