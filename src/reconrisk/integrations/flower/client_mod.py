"""A modifier for Flower clients: the update is defended before it leaves, and the risk of the rounds is reported."""

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
from reconrisk.defenses.refreshed import defense_at
from reconrisk.integrations.flower.arrays import changed_arrays, one_record, tensors_by_name, updates_of
from reconrisk.integrations.flower.risk import HEURISTIC, FederatedRisk

PREFIX = "reconrisk-"
"""What the names of all reported metrics begin with."""

STATE = "reconrisk"
"""The record of the client's own context that keeps the rounds; it stays on the client."""

_BUFFERS = ("refuse", "withhold")


@dataclass(frozen=True, eq=False)
class FlowerMod:
    """The modifier that :func:`flower_mod` makes: called by Flower with message, context and what comes next."""

    defense: Defense
    model: nn.Module
    risk: FederatedRisk
    buffers: str
    seed: int | None

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Let the client train, then send its update as the defense does."""
        trains = message.metadata.message_type.split(".")[0] == "train"
        # a copy: the client may write into what it received
        received = tensors_by_name(one_record(message.content, "message"), self.model) if trains else {}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if not trains:
            if reply.content.array_records:
                expected = f"to be none in the reply to {message.metadata.message_type!r}"
                remedy = "Only updates of training are defended; put other arrays nowhere."
                raise invalid_input("arrays", list(reply.content.array_records), expected, remedy)
            return reply
        trained = tensors_by_name(one_record(reply.content, "reply"), self.model)
        update = updates_of(received, trained, self.model, withhold=self.buffers == "withhold")
        current = self._present(received)
        kept = context.state.metric_records.get(STATE)
        rounds: list[float] = [] if kept is None else list(kept["noise-multipliers"])
        sent = current({name: value.double() for name, value in update.items()}, rng=self._rng(context, len(rounds)))
        rounds = [*rounds, _noise_multiplier(current.mechanism)]
        _remember(context, rounds, update, current)
        changed_arrays(reply.content, received, trained, sent)
        norm = float(total_square(sent).sqrt())
        _report(reply.content, {**self.risk.of(rounds), "sent-norm": norm})
        return reply

    def _present(self, received: Mapping[str, Tensor]) -> Defense:
        """The defense of this round: one that follows the model sees what the server sent."""
        model = copy.deepcopy(self.model)
        model.load_state_dict({name: value for name, value in received.items() if name in model.state_dict()})
        return defense_at(self.defense, model.eval())

    def _rng(self, context: Any, rounds: int) -> torch.Generator:
        """Fresh noise for each client and round, which must not repeat where processes are copied."""
        rng = torch.Generator()
        if self.seed is None:
            rng.seed()
            return rng
        text = f"{self.seed}/{context.run_id}/{context.node_id}/{rounds}"
        return rng.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


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
    r"""A Flower client modifier that defends the update before it leaves, and reports the risk of the rounds so far.

    .. math:: w_\text{server} + D(w_\text{trained} - w_\text{server})

    Use it as ``ClientApp(mods=[rr.integrations.flower_mod(clip(1.0) >> gaussian_noise(0.5), model, prior_success=1e-6)])``. The
    reply's metrics get, each with the prefix ``reconrisk-``: ``rounds``, ``success-this-round`` and ``success-so-far``
    (the most that any adversary who succeeds with ``prior_success`` without the updates can reach), ``epsilon-so-far``
    at ``delta``, of the client's presence, and ``record-epsilon-so-far``, of one record among its others,
    ``mse-so-far`` (the least error of unbiased estimates, with ``data_range``), ``heuristic`` (1 where the defense
    names no mechanism) and ``sent-norm``, of the defended update.

    Assumes: ``model`` has the client's names and shapes; its trainable parameters are what is defended. Metrics that
    the client itself adds, and counters of whole numbers, leave as they are.
    Guarantee: what is reported follows from the defense and from what is sent, so that the report tells nothing more.
    How long the update was and how much of it was clipped is private: ``context.state["reconrisk"]`` keeps it on the
    client, together with the noise of all rounds, which a restarted client goes on from.
    Edge cases: without a mechanism the bounds are the trivial ones. Changed buffers of real numbers, such as the
    statistics of batch norm, are refused; ``buffers="withhold"`` sends the server's instead. Arrays without names
    (``NumPyClient``) go by the order of the model's state. Arrays in replies to other messages than training are
    refused, and so are defenses chosen by the private records, which a modifier does not see. ``seed`` makes the noise
    of a simulation repeatable; where it counts, leave it out.
    Reference: :class:`~reconrisk.integrations.flower.risk.FederatedRisk`.

    >>> import pytest
    >>> _ = pytest.importorskip("flwr")
    >>> from reconrisk.defenses.noise import clip_and_noise
    >>> mod = flower_mod(clip_and_noise(noise_multiplier=1.0, clip_norm=1.0), nn.Linear(2, 1), prior_success=1e-6)
    >>> mod.risk.of([1.0] * 4)["success-so-far"] < 3e-3
    True
    """
    try:
        import flwr.app  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra("flwr", "fl", "flower_mod") from error
    if any(getattr(part, "is_local", False) for part in getattr(defense, "parts", (defense,))):
        remedy = "Take the global form, which public records choose."
        raise invalid_input("defense", str(defense), "not to be chosen by the private records", remedy)
    if buffers not in _BUFFERS:
        raise invalid_input("buffers", buffers, f"to be one of {', '.join(_BUFFERS)}")
    if not isinstance(model, nn.Module):
        raise invalid_input("model", type(model).__name__, "to be a module", "Pass the network that clients train.")
    _noise_multiplier(defense.mechanism)
    risk = FederatedRisk(prior_success, delta, data_range)
    return FlowerMod(
        defense, copy.deepcopy(model), risk, buffers, None if seed is None else check_whole("seed", seed, minimum=0)
    )


def _noise_multiplier(mechanism: Mechanism | None) -> float:
    """That of a round; what is not a Gaussian mechanism cannot be added up with others here."""
    if mechanism is None:
        return HEURISTIC
    if not isinstance(mechanism, Gaussian):
        raise invalid_input("defense.mechanism", mechanism, "to be Gaussian or None", "Write clip(C) >> noise.")
    return mechanism.noise_multiplier


def _remember(context: Any, rounds: list[float], update: Mapping[str, Tensor], defense: Defense) -> None:
    """Keep the rounds, and what is private about this one, on the client."""
    from flwr.app import MetricRecord

    full = float(total_square(update).sqrt())
    left = float(total_square(defense.replay(update)).sqrt())
    context.state[STATE] = MetricRecord(
        {"noise-multipliers": rounds, "update-norm": full, "clipped-share": 1 - left / full if full else 0.0}
    )


def _report(content: Any, numbers: Mapping[str, float]) -> None:
    """Add the numbers to the metrics of the reply."""
    from flwr.app import MetricRecord

    named: dict[str, Any] = {PREFIX + name: value for name, value in numbers.items()}
    legacy = content.config_records.get("fitres.metrics")
    if legacy is not None:
        legacy.update(named)
    elif content.metric_records:
        next(iter(content.metric_records.values())).update(named)
    else:
        content["metrics"] = MetricRecord(named)
