"""Training as a function: single steps on values of parameters and buffers, never on the module itself.

:func:`make_checkpoints` makes reverse mode through a long training possible in little memory: a few states are kept,
and the steps between them run again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input
from reconrisk.releases.model_state import LossFunction, call_module, cast_tensors, is_random_layer
from reconrisk.releases.release import take_cotangent
from reconrisk.releases.training.optimizers import OptimizerState, UpdateRule, sgd

Named: TypeAlias = dict[str, Tensor]
Objective: TypeAlias = Callable[[Named], tuple[Tensor, Named]]
Gradient: TypeAlias = Callable[[Objective, Named], tuple[Named, Named]]

_REPEATED = 1e-3  # relative difference of two gradients: rounding is far below, dropout far above


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that training changes.

    Attributes:
        parameters: Trained parameters by name.
        statistics: Running statistics of batch norm by name.
        buffers: All other buffers by name.
        optimizer: Memory of the optimizer.
    """

    parameters: Named
    statistics: Named
    buffers: Named
    optimizer: OptimizerState

    def differentiable(self) -> list[Tensor]:
        """Return the tensors that derivatives flow through, in a fixed order."""
        averages = [value for group in self.optimizer.averages.values() for value in group.values()]
        return [*self.parameters.values(), *self.statistics.values(), *averages]

    def map(self, change: Callable[[Tensor], Tensor]) -> TrainingState:
        """Return the state with ``change`` applied to each of the differentiable tensors."""
        averages = {key: _map_values(change, group) for key, group in self.optimizer.averages.items()}
        return TrainingState(
            _map_values(change, self.parameters),
            _map_values(change, self.statistics),
            self.buffers,
            OptimizerState(self.optimizer.steps, averages),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """The records of one step.

    Attributes:
        fixed: Fixed records of the batch.
        private: Private records of the batch.
        labels: Labels, in the order of the batch.
        order: Permutation from fixed records followed by private ones to the order of the batch; None for none.
    """

    fixed: Tensor
    private: Tensor
    labels: Tensor
    order: Tensor | None

    def outputs(self, model: Callable[[Tensor], Tensor], apart: bool) -> Tensor:
        """Return the outputs of a model on the records, in the order of the batch.

        Args:
            model: Function from records to outputs.
            apart: Run the fixed records by themselves. A derivative with respect to the private records then never
                touches the inputs of the fixed ones, which are most.

        Returns:
            Outputs of all records, one row per record.
        """
        parts = [part for part in (self.fixed, self.private) if len(part)]
        parts = [model(part) for part in parts] if apart else parts
        rows = torch.cat(parts)
        rows = rows if self.order is None else rows[self.order]
        return rows if apart else model(rows)


@dataclass(frozen=True, eq=False)
class Trainee:
    """A copy of a module, prepared to be trained as a function.

    Attributes:
        model: The copy.
        tracked: Names of the batch norm layers whose running statistics follow the batches.
    """

    model: nn.Module
    tracked: tuple[str, ...]

    def start(self, dtype: torch.dtype) -> TrainingState:
        """Return the state of the copied module, in precision ``dtype``."""
        trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        buffers, shown = cast_tensors(dict(self.model.named_buffers()), dtype), set(self.changed_names())
        statistics = {name: value for name, value in buffers.items() if name in shown}
        others = {name: value for name, value in buffers.items() if name not in shown}
        return TrainingState(cast_tensors(trained, dtype), statistics, others, OptimizerState())

    def changed_names(self) -> tuple[str, ...]:
        """Return the names that training changes and a release shows: parameters and running statistics."""
        trained = [name for name, value in self.model.named_parameters() if value.requires_grad]
        return (*trained, *(f"{name}.{part}" for name in self.tracked for part in ("running_mean", "running_var")))

    def step(
        self,
        state: TrainingState,
        batch: Batch,
        loss_fn: LossFunction,
        optimizer: UpdateRule,
        gradient: Gradient,
        apart: bool,
    ) -> TrainingState:
        """Return the state after one update.

        Args:
            state: State before the update.
            batch: Records of the step.
            loss_fn: Loss of the outputs and labels of the batch.
            optimizer: Update rule.
            gradient: :func:`functional_gradient` or :func:`recorded_gradient`.
            apart: Run fixed and private records separately; see :meth:`Batch.outputs`.

        Returns:
            New parameters, statistics, buffers and memory of the optimizer. The given state is not changed.
        """
        untrained = {name: value for name, value in self.model.named_parameters() if not value.requires_grad}
        frozen = cast_tensors(untrained, batch.private.dtype)  # parameters that do not require gradients

        def objective(parameters: Named) -> tuple[Tensor, Named]:
            # Clones, because layers may count calls or update statistics in place.
            buffers = {name: value.clone() for name, value in {**state.buffers, **state.statistics}.items()}

            def call(inputs: Tensor) -> Tensor:
                return call_module(self.model, {**frozen, **buffers, **parameters}, inputs)

            with self._track_statistics(buffers):
                outputs = batch.outputs(call, apart)
            return loss_fn(outputs, batch.labels), buffers

        gradients, buffers = gradient(objective, state.parameters)
        parameters, memory = optimizer.step(state.parameters, gradients, state.optimizer)
        statistics = {name: buffers[name] for name in state.statistics}
        return TrainingState(parameters, statistics, {name: buffers[name] for name in state.buffers}, memory)

    def outputs(self, state: TrainingState, inputs: Tensor) -> Tensor:
        """Return the outputs in eval mode with the values of ``state``."""
        untrained = cast_tensors(dict(self.model.named_parameters()), inputs.dtype)
        values = {**untrained, **state.buffers, **state.statistics, **state.parameters}
        return call_module(self._eval_model, values, inputs)

    @cached_property
    def _eval_model(self) -> nn.Module:
        """A copy in eval mode whose batch norms can be differentiated with respect to their running statistics."""
        model = copy.deepcopy(self.model).eval()
        for name in self.tracked:
            model.get_submodule(name).__class__ = _RunningBatchNorm
        return model

    @contextmanager
    def _track_statistics(self, buffers: Named) -> Iterator[None]:
        """Update the running statistics in ``buffers`` whenever a tracked layer is called."""
        hooks = [
            layer.register_forward_pre_hook(_statistics_hook(name, layer.momentum, buffers))
            for name, layer in self.model.named_modules()
            if name in self.tracked and isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def prepare_trainee(model: nn.Module) -> Trainee:
    """Return a copy of a module that can be trained as a function, without changing the copy or the original.

    Batch norm in train mode normalises by the statistics of its batch, which are a function of the records. The running
    statistics are passed through the steps as values. Layers in eval mode stay in it.

    Args:
        model: The module.

    Returns:
        The prepared copy.

    Raises:
        InvalidInput: If a layer is random or has trained weight norm, or no parameter requires gradients.
    """
    _check_deterministic(model)
    _check_weight_norm(model)
    own = copy.deepcopy(model)
    if not any(value.requires_grad for value in own.parameters()):
        raise InvalidInput(
            "Expected a model with parameters to train, but none requires gradients. Call model.requires_grad_()."
        )
    tracked = []
    for name, layer in own.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training and layer.track_running_stats:
            tracked.append(name)
            # It would write to its buffers in place; _statistics_hook computes the same values as a function.
            layer.track_running_stats = False
    return Trainee(own, tuple(tracked))


def treats_records_apart(model: nn.Module, records: Tensor | None) -> bool:
    """Return True if splitting a batch leaves the outputs of a model the same: no layer mixes records or counts calls.

    Args:
        model: The module.
        records: Records to try, of which up to eight are used; with fewer than two the result is False.

    Returns:
        True if records can be run separately.
    """
    if records is None or len(records) < 2:
        return False
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training for layer in model.modules()):
        return False
    before = cast_tensors({**dict(model.named_parameters()), **dict(model.named_buffers())}, records.dtype)
    # Eight records: a layer that mixes a batch changes outputs by a tenth or more between 1 + 7 and 8.
    values, some = {name: value.clone() for name, value in before.items()}, records[:8]
    call = partial(call_module, model, values)
    with torch.random.fork_rng(), torch.no_grad():
        together, apart = call(some), torch.cat([call(some[:1]), call(some[1:])])
    if any(not torch.equal(value, before[name]) for name, value in values.items()):
        return False
    tolerance = torch.finfo(records.dtype).eps ** 0.5  # half the digits: far above rounding
    return together.shape == apart.shape and torch.allclose(together, apart, rtol=tolerance, atol=tolerance)


def check_repeatable(model: Trainee, batch: Batch, loss_fn: LossFunction) -> None:
    """Refuse a model or loss whose gradient is random, as with a functional dropout.

    The gradient reveals more than the outputs: a last layer that starts at zero hides a dropout before it.

    Args:
        model: The prepared module.
        batch: Records to try.
        loss_fn: Loss of the outputs and labels of the batch.

    Raises:
        InvalidInput: If two evaluations with different seeds differ.
    """
    found = []

    def gradient(objective: Objective, parameters: Named) -> tuple[Named, Named]:
        gradients, buffers = recorded_gradient(objective, parameters)
        found.append(torch.cat([value.flatten() for value in gradients.values()]))
        return gradients, buffers

    state = model.start(batch.private.dtype)
    for seed in (0, 1):
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            model.step(state, batch, loss_fn, sgd(1.0), gradient, apart=False)
    first, second = found
    if float((first - second).norm()) > _REPEATED * float(first.norm() + second.norm()):
        raise InvalidInput(
            "Expected model and loss_fn to give the same gradient each time, but two evaluations differ. "
            "Switch off their randomness: for dropout by torch.nn.functional call model.eval()."
        )


def functional_gradient(objective: Objective, parameters: Named) -> tuple[Named, Named]:
    """Compute a gradient with ``torch.func``, which can be differentiated forward, backward and in batches of tangents.

    Args:
        objective: Function from parameters to loss and buffers.
        parameters: Values by name.

    Returns:
        Gradients by name, and the buffers.
    """
    gradients: tuple[Named, Named] = torch.func.grad(objective, has_aux=True)(parameters)
    return gradients


def recorded_gradient(objective: Objective, parameters: Named) -> tuple[Named, Named]:
    """Compute a gradient with the autograd tape, for modules that ``torch.func`` cannot trace.

    It can be differentiated backward only. With gradients disabled, no graph outlives the step.

    Args:
        objective: Function from parameters to loss and buffers.
        parameters: Values by name.

    Returns:
        Gradients by name, and the buffers.
    """
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = {n: v if keep and v.requires_grad else v.detach().requires_grad_() for n, v in parameters.items()}
        loss, buffers = objective(leaves)
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=keep, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), buffers if keep else _map_values(torch.Tensor.detach, buffers)


class _RunningBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm by its running statistics, differentiable with respect to them, unlike torch's own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name in torch
        mean, var = self.running_mean, self.running_var
        shape = [1, -1, *[1] * (input.dim() - 2)]
        if mean is None or var is None:
            raise InvalidInput(
                "Expected batch norm with running statistics, but it has none. Use "
                "rr.models.group_norm(channels) instead."
            )
        # The affine map of eval mode, written out; F.batch_norm has no derivative by the running statistics.
        scale = (var + self.eps).rsqrt() * (1.0 if self.weight is None else self.weight)
        shift = -mean * scale + (0.0 if self.bias is None else self.bias)
        return input * scale.reshape(shape) + shift.reshape(shape)


def _statistics_hook(name: str, momentum: float | None, buffers: Named) -> Callable[[nn.Module, tuple[Tensor]], None]:
    """Return a hook that updates the running statistics in ``buffers`` as batch norm does."""
    mean_name, var_name, count_name = (
        f"{name}.{part}" for part in ("running_mean", "running_var", "num_batches_tracked")
    )

    def follow(_: nn.Module, arguments: tuple[Tensor]) -> None:
        (inputs,) = arguments
        axes = [axis for axis in range(inputs.dim()) if axis != 1]  # all but channels
        buffers[count_name] = buffers[count_name] + 1
        # momentum=None means the plain average over all batches
        weight = 1.0 / buffers[count_name].to(inputs.dtype) if momentum is None else momentum
        buffers[mean_name] = (1 - weight) * buffers[mean_name] + weight * inputs.mean(axes)
        # The running variance is unbiased, although the batch is normalised by the biased one.
        buffers[var_name] = (1 - weight) * buffers[var_name] + weight * inputs.var(axes)

    return follow


def _check_deterministic(model: nn.Module) -> None:
    """Refuse layers in training mode whose output is not a smooth deterministic function of the records."""
    for name, layer in model.named_modules():
        tracks = isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        # The power iteration of spectral norm updates its vectors outside of autograd.
        other = type(layer).__name__ == "_SpectralNorm"
        hooked = any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values())
        if layer.training and (is_random_layer(layer) or tracks or other or hooked):
            raise invalid_input(
                f"{name or 'model'}.training",
                True,
                f"to be False for {type(layer).__name__}{' with spectral_norm' if hooked else ''}",
                f"Call model.get_submodule({name!r}).eval(), or remove it: it is not a smooth function of the records.",
            )


def _check_weight_norm(model: nn.Module) -> None:
    """Refuse trained weight norm: the second derivative of ``torch._weight_norm`` is wrong, without an error."""
    for name, layer in model.named_modules():
        new = isinstance(layer, ParametrizationList) and any(type(part).__name__ == "_WeightNorm" for part in layer)
        old = any(isinstance(hook, WeightNorm) for hook in layer._forward_pre_hooks.values())
        if (new or old) and any(value.requires_grad for value in layer.parameters(recurse=False)):
            owner = (name.rpartition("parametrizations")[0].rstrip(".") if new else name) or "model"
            call = "parametrize.remove_parametrizations" if new else "remove_weight_norm"
            raise InvalidInput(
                f"Expected {owner} to have a plain weight, but it uses weight_norm, for which torch has a wrong "
                "second derivative. "
                f"Call torch.nn.utils.{call}, or write the product g * v / v.norm() yourself."
            )


def _map_values(change: Callable[[Tensor], Tensor], values: Mapping[str, Tensor]) -> Named:
    return {name: change(value) for name, value in values.items()}


Advance: TypeAlias = Callable[[TrainingState, range], TrainingState]
"""Training from a state through some steps, differentiable in the state and the records."""


@dataclass(frozen=True, eq=False)
class Checkpoints:
    """One training in parts: the state before each part, and after the last.

    Attributes:
        advance: Training from a state through some steps.
        parts: Steps of each part.
        states: The kept states, one more than parts.
    """

    advance: Advance
    parts: list[range]
    states: list[TrainingState]

    def pull(
        self, cotangents: Mapping[str, Tensor], shown: Callable[[TrainingState], Named], records: Tensor
    ) -> Tensor:
        """Return the gradient, with respect to the records, of a weighted sum of released tensors.

        Only the graph of one part exists at a time.

        Args:
            cotangents: Weights on the released tensors.
            shown: Function from the last state to the released tensors.
            records: The private records, a leaf that requires gradients.

        Returns:
            Gradient in the shape of ``records``.
        """
        with torch.enable_grad():
            last = self.states[-1].map(_leaf)
            terms = ((take_cotangent(name, cotangents, v) * v).sum() for name, v in shown(last).items())
            weighted = sum(terms, torch.zeros(()))
            weights = list(torch.autograd.grad(weighted, last.differentiable(), materialize_grads=True))
            total = torch.zeros_like(records)
            # Backward over the parts: weights on the end of a part become weights on its begin, plus the share of
            # the records that entered in it.
            for part, begin in zip(reversed(self.parts), reversed(self.states[:-1]), strict=True):
                state = begin.map(_leaf)
                ends = self.advance(state, part).differentiable()
                reached = [pair for pair in zip(ends, weights, strict=True) if pair[0].requires_grad]
                *weights, share = torch.autograd.grad(
                    [end for end, _ in reached],
                    [*state.differentiable(), records],
                    [weight for _, weight in reached],
                    materialize_grads=True,
                )
                total += share
        return total


def make_checkpoints(start: TrainingState, advance: Advance, steps: range, spacing: int) -> Checkpoints:
    """Train once without a graph and keep the state before every ``spacing``-th step.

    Args:
        start: State before the first step.
        advance: Training from a state through some steps.
        steps: All steps.
        spacing: Steps between two kept states.

    Returns:
        The kept states.
    """
    parts = [steps[first : first + spacing] for first in range(0, len(steps), spacing)]
    states = [start]
    with torch.no_grad():
        for part in parts:
            states.append(advance(states[-1], part))
    return Checkpoints(advance, parts, states)


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_()
