"""Four clients train together with Flower, each defending its updates; every round says what it risks.

Run it with ``python examples/federated.py``: the clients take turns in this process, through Flower's own messages,
strategy and client app. With Ray installed (``pip install 'flwr[simulation]'``) the same two apps run in parallel:
``flwr.simulation.run_simulation(server_app(rounds), client_app(mod), num_supernodes=4)``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn.functional import cross_entropy

import reconrisk as rr

CLIENTS, ROUNDS, PUBLIC = 4, 5, 100
DIGITS = rr.load_dataset("digits")  # 8x8 images, part of scikit-learn
ORDER = torch.randperm(len(DIGITS.inputs), generator=torch.Generator().manual_seed(0))
IMAGES, LABELS = DIGITS.inputs[ORDER].float(), DIGITS.labels[ORDER]
TEST = slice(PUBLIC, PUBLIC + 400)


def small_model() -> nn.Module:
    """What is trained: 650 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def defended() -> rr.Defense:
    """Clipping, then for each layer the noise that hides most for its cost, as a hundred public images say."""
    moments = rr.sensitivity.reference_moments(small_model(), cross_entropy, IMAGES[:PUBLIC], LABELS[:PUBLIC])
    return rr.defenses.clip(1.0) >> rr.defenses.optimal_noise(moments.by_layer(), like=0.25)


def client_app(defense: rr.Defense) -> ClientApp:
    """A client like any other but for the modifier: it trains on its own images and returns its weights."""
    mod = rr.integrations.flower_mod(defense, small_model(), prior_success=1e-9)
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = small_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        own = slice(TEST.stop + int(context.node_config["partition-id"]), None, CLIENTS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            cross_entropy(model(IMAGES[own]), LABELS[own]).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(LABELS[own])}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """How many of the test images the server's model names rightly."""
    model = small_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": float((model(IMAGES[TEST]).argmax(1) == LABELS[TEST]).float().mean())})


def average(grid: Grid, rounds: int) -> Result:
    """Flower's federated averaging."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    first = ArrayRecord(small_model().state_dict())
    return strategy.start(grid, first, num_rounds=rounds, evaluate_fn=accuracy)


def server_app(rounds: int) -> ServerApp:
    """The same for Flower's own simulation and deployment."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        average(grid, rounds)

    return app


class TakingTurns(Grid):
    """A grid whose nodes answer one after the other in this process."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # Flower's processes set these
        self.app = app
        self.contexts = {
            node + 1: Context(0, node + 1, {"partition-id": node}, RecordDict(), {}) for node in range(nodes)
        }

    def get_node_ids(self) -> list[int]:
        """The nodes."""
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The answers to the messages."""
        return [self.app(message, self.contexts[message.metadata.dst_node_id]) for message in messages]

    def set_run(self, run: object) -> None:
        """There is one run."""

    run = property(lambda self: None)

    def create_message(self, *arguments: object, **named: object) -> Message:
        """Strategies make messages themselves."""
        raise NotImplementedError

    push_messages = pull_messages = create_message


def simulate(defense: rr.Defense, rounds: int = ROUNDS) -> Result:
    """Train for some rounds."""
    return average(TakingTurns(client_app(defense), CLIENTS), rounds)


def main() -> None:
    """Print what each round reached and what it risks."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    undefended = simulate(rr.defenses.clip(1.0))
    result = simulate(defended())
    print("round  accuracy undefended  defended  success at most: this round  so far  epsilon so far")
    for number, metrics in result.train_metrics_clientapp.items():
        reached = [each.evaluate_metrics_serverapp[number]["accuracy"] for each in (undefended, result)]
        risks = [metrics[f"reconrisk-{name}"] for name in ("success-this-round", "success-so-far", "epsilon-so-far")]
        print(f"{number:5d}{reached[0]:21.3f}{reached[1]:10.3f}{risks[0]:29.2g}{risks[1]:8.2g}{risks[2]:16.1f}")


if __name__ == "__main__":
    main()
