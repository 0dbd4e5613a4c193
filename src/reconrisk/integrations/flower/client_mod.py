"""Client modifier for Flower: defends the update before it leaves and reports the risk of the rounds so far."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.defense import Defense
from reconrisk.core.errors import MissingExtra
from reconrisk.core.mechanism import Gaussian, Mechanism
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.defenses.clipping import total_square
from reconrisk.defenses.refreshed import defense_for_model
from reconrisk.integrations.flower.arrays import compute_update, single_record, tensors_by_name, write_arrays
from reconrisk.integrations.flower.risk import HEURISTIC, FederatedRisk
from reconrisk.releases.float_safe_noise import SystemGenerator, protecting_generator

PREFIX = "reconrisk-"
"""Prefix of the names of all reported metrics."""

STATE = "reconrisk"
"""Record of the client's own context that stores the rounds; it stays on the client."""

_BUFFERS = ("refuse", "withhold")


@dataclass(frozen=True, eq=False)
class FlowerMod:
    """Client modifier, as returned by :func:`flower_mod`. Flower calls it with message, context and the next handler.

    Attributes:
        defense: Defense of the update.
        model: Copy of the network of the clients.
        risk: Calculator of the reported numbers.
        buffers: ``"refuse"`` or ``"withhold"``.
        seed: Seed of the noise, or None.
    """

    defense: Defense
    model: nn.Module
    risk: FederatedRisk
    buffers: str
    seed: int | None

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Run the training of the client, then replace its update by the defended one."""
        trains = message.metadata.message_type.split(".")[0] == "train"
        # copied before training: the client may write into the received arrays
        received = tensors_by_name(single_record(message.content, "message"), self.model) if trains else {}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if not trains:
            if reply.content.array_records:
                expected = f"to be none in the reply to {message.metadata.message_type!r}"
                remedy = "Return no arrays in such replies: only training updates are defended."
                raise invalid_input("arrays", list(reply.content.array_records), expected, remedy)
            return reply
        trained = tensors_by_name(single_record(reply.content, "reply"), self.model)
        update = compute_update(received, trained, self.model, withhold=self.buffers == "withhold")
        current = self._current_defense(received)
        # rounds so far, from the client's own context: a restarted client continues its budget
        kept = context.state.metric_records.get(STATE)
        rounds: list[float] = [] if kept is None else list(kept["noise-multipliers"])
        sent = current({name: value.double() for name, value in update.items()}, rng=self._rng(context, len(rounds)))
        rounds = [*rounds, _noise_multiplier(current.mechanism)]
        _store_rounds(context, rounds, update, current)
        write_arrays(reply.content, received, trained, sent)
        norm = float(total_square(sent).sqrt())
        _add_metrics(reply.content, {**self.risk.after_rounds(rounds), "sent-norm": norm})
        return reply

    def _current_defense(self, received: Mapping[str, Tensor]) -> Defense:
        """Return the defense of this round, configured for the weights from the server if it depends on them."""
        model = copy.deepcopy(self.model)
        model.load_state_dict({name: value for name, value in received.items() if name in model.state_dict()})
        return defense_for_model(self.defense, model.eval())

    def _rng(self, context: Any, rounds: int) -> torch.Generator:
        """Return a generator that is different for each client and round."""
        if self.seed is None:
            return SystemGenerator()
        # hashed, so that neighbouring seeds, clients and rounds get unrelated noise; 7 bytes fit into an int64
        text = f"{self.seed}/{context.run_id}/{context.node_id}/{rounds}"
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


def flower_mod(
    defense: Defense,
    model: nn.Module,
    *,
    prior_success: float | PriorSuccess,
    delta: float = 1e-5,
    data_range: tuple[float, float] | None = None,
    buffers: str = "refuse",
    seed: int | None = None,
) -> FlowerMod:
    r"""Create a Flower client modifier that defends each update and reports the risk of the rounds so far.

    .. math:: w_\text{server} + D(w_\text{trained} - w_\text{server})

    Here w are weights and D is the defense. Pass
    ``mods=[flower_mod(clip(1.0) >> gaussian_noise(0.5), model, prior_success=1e-6)]`` to ``ClientApp``. The mod adds
    these metrics to the reply, each with the prefix ``reconrisk-``:

    * ``rounds``, and ``sent-norm``, the norm of the defended update;
    * ``success-this-round`` and ``success-so-far``, upper bounds on the success of any adversary;
    * ``epsilon-so-far`` for the presence of the client, and ``record-epsilon-so-far`` for one record among its others;
    * ``mse-so-far``, the smallest error of unbiased estimates, if ``data_range`` is given;
    * ``heuristic``, 1 if the defense names no mechanism.

    Args:
        defense: Defense of the update. Its settings must not depend on private records, which a modifier does not see.
        model: Network of the clients, with their names and shapes. Its trainable parameters are defended.
        prior_success: Success probability of the adversary without the updates.
        delta: Delta of the reported epsilons.
        data_range: Range of the records, for ``mse-so-far``; None to leave it out.
        buffers: ``"refuse"`` raises an error if a floating-point buffer changed, such as the statistics of batch norm.
            ``"withhold"`` sends the server's value instead.
        seed: Seed for repeatable noise in simulations; a warning says that it protects nothing. None draws the bits of
            the noise from the operating system.

    Returns:
        The modifier, for ``ClientApp(mods=[...])``.

    Raises:
        MissingExtra: If Flower is not installed.
        InvalidInput: If an argument is out of range, private records choose the defense, or its mechanism is not
            Gaussian.

    Assumes: metrics that the client itself adds, and whole-number counters, are sent unchanged.
    Guarantee: the report is a function of the defense and the sent update, so it reveals nothing more. Length and
    clipped share of the original update are private: ``context.state["reconrisk"]`` keeps them on the client, together
    with the noise of all rounds, from which a restarted client continues.
    Edge cases: without a mechanism the bounds are the trivial ones. Arrays without names (``NumPyClient``) follow the
    order of the model's state. Arrays in replies to other messages than training are refused.
    Reference: :class:`~reconrisk.integrations.flower.risk.FederatedRisk`.

    >>> import pytest
    >>> _ = pytest.importorskip("flwr")
    >>> from reconrisk.defenses.noise import clip_and_noise
    >>> mod = flower_mod(clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), nn.Linear(2, 1), prior_success=1e-6)
    >>> mod.risk.after_rounds([1.0] * 4)["success-so-far"] < 3e-3
    True
    """
    try:
        import flwr.app  # noqa: F401 - checks that it is installed
    except ImportError as error:
        raise MissingExtra("flwr", "fl", "flower_mod") from error
    if any(getattr(part, "is_local", False) for part in getattr(defense, "parts", (defense,))):
        remedy = "Use the global form, which public records choose."
        raise invalid_input("defense", str(defense), "not to be chosen by the private records", remedy)
    if buffers not in _BUFFERS:
        raise invalid_input("buffers", buffers, f"to be one of {', '.join(_BUFFERS)}")
    if not isinstance(model, nn.Module):
        raise invalid_input(
            "type(model)", type(model).__name__, "to be a module", "Pass the network that clients train."
        )
    _noise_multiplier(defense.mechanism)  # refuses mechanisms that cannot be composed, before any training
    risk = FederatedRisk(prior_success, delta, data_range)
    if seed is not None:
        protecting_generator(torch.Generator())  # warns
    return FlowerMod(
        defense, copy.deepcopy(model), risk, buffers, None if seed is None else check_whole("seed", seed, minimum=0)
    )


def _noise_multiplier(mechanism: Mechanism | None) -> float:
    """Return the noise multiplier of a round; only Gaussian mechanisms can be composed here."""
    if mechanism is None:
        return HEURISTIC
    if not isinstance(mechanism, Gaussian):
        raise invalid_input(
            "defense.mechanism",
            mechanism,
            "to be Gaussian or None",
            "Pass clip(C) >> gaussian_noise(std), for instance.",
        )
    return mechanism.noise_multiplier


def _store_rounds(context: Any, rounds: list[float], update: Mapping[str, Tensor], defense: Defense) -> None:
    """Store the noise of all rounds and the private facts about this one in the client's own context."""
    from flwr.app import MetricRecord

    # private: norms before noise never leave the client
    full = float(total_square(update).sqrt())
    left = float(total_square(defense.replay(update)).sqrt())
    context.state[STATE] = MetricRecord(
        {"noise-multipliers": rounds, "update-norm": full, "clipped-share": 1 - left / full if full else 0.0}
    )


def _add_metrics(content: Any, numbers: Mapping[str, float]) -> None:
    """Add the numbers to the metrics of the reply."""
    from flwr.app import MetricRecord

    named: dict[str, Any] = {PREFIX + name: value for name, value in numbers.items()}
    # clients of the older API (NumPyClient) return their metrics as a config record
    legacy = content.config_records.get("fitres.metrics")
    if legacy is not None:
        legacy.update(named)
    elif content.metric_records:
        next(iter(content.metric_records.values())).update(named)
    else:
        content["metrics"] = MetricRecord(named)
