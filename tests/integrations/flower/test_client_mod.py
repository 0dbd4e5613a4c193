"""The Flower modifier, driven by Flower's own messages, client app and strategy."""

import importlib.util
import logging
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.mechanism import Neighbouring, PureDP
from reconrisk.defenses import clip, clip_and_noise, gaussian_noise, optimal_noise
from reconrisk.defenses.local import local_optimal_noise
from reconrisk.defenses.refreshed import refreshed
from reconrisk.integrations.flower.client_mod import flower_mod

flwr = pytest.importorskip("flwr", reason="flwr is not installed: the Flower integration is NOT tested here")
from flwr.app import (  # noqa: E402 - after the check that it is there
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The noise is drawn from a seeded generator")

EXAMPLE = Path(__file__).parents[3] / "examples" / "federated.py"
PRIVATE = clip_and_noise(noise_multiplier=2.0, clip_norm=0.5)


@pytest.fixture(autouse=True)
def _identity():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def small_model(batch_norm=False):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5) if batch_norm else nn.Tanh(), nn.Linear(5, 3))


def context(node=1):
    return Context(7, node, {}, RecordDict(), {})


def message(model, kind="train", positional=False):
    arrays = [value.numpy() for value in model.state_dict().values()] if positional else model.state_dict()
    content = {"arrays": ArrayRecord(arrays), "config": ConfigRecord({"server-round": 1})}
    return Message(RecordDict(content), dst_node_id=1, message_type=kind)


def client(mod, change, *, metrics=True, positional=False):
    """A client app that returns what it received, changed."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(received, _):
        arrays = received.content["arrays"]
        if positional:
            new = [change(str(place), each.numpy()) for place, each in enumerate(arrays.values())]
            content = RecordDict({"arrays": ArrayRecord([np.asarray(each) for each in new])})
        else:
            state = arrays.to_torch_state_dict()
            new = OrderedDict((name, change(name, value)) for name, value in state.items())
            content = RecordDict({"arrays": ArrayRecord(new)})
        if metrics:
            content["metrics"] = MetricRecord({"num-examples": 10, "loss": 0.5})
        return Message(content, reply_to=received)

    @app.evaluate()
    def evaluate(received, _):
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.5})}), reply_to=received)

    @app.query()
    def query(received, _):
        return Message(RecordDict({"mine": received.content["arrays"]}), reply_to=received)

    return app


def moved(name, value):
    return value + 0.3 if value.is_floating_point() else value + 1


def weights(reply):
    return reply.content["arrays"].to_torch_state_dict()


class Doubling:
    """A defense without chance whose effect is easily seen."""

    mechanism = None

    def __call__(self, released, *, rng):
        self.seen = released
        return {name: 2 * value for name, value in released.items()}

    def replay(self, released):
        return released


def test_the_defense_gets_the_update_by_name_and_its_answer_is_what_leaves():
    model, defense = small_model(), Doubling()
    reply = client(flower_mod(defense, model, prior_success=0.1), moved)(message(model), context())
    assert set(defense.seen) == {name for name, _ in model.named_parameters()}
    for name, value in model.state_dict().items():
        # differences of single precision numbers of size one, kept in double precision
        torch.testing.assert_close(defense.seen[name], torch.full_like(value, 0.3).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(weights(reply)[name], value + 0.6)
        assert weights(reply)[name].dtype == value.dtype


def test_what_leaves_is_the_mechanism_s_and_not_the_client_s():
    model = small_model()
    sent = []
    for node in range(200):
        app = client(flower_mod(PRIVATE, model, prior_success=0.1, seed=node), lambda _, value: value + 50.0)
        reply = weights(app(message(model), context()))
        sent.append(torch.cat([(reply[name] - value).flatten() for name, value in model.state_dict().items()]))
    sent = torch.stack(sent)
    count = sent.shape[1]
    # clipped to norm 0.5 along all ones, under noise of 1: mean of 200 within five standard errors
    assert float((sent.mean(0) - 0.5 / count**0.5).abs().max()) < 5 / 200**0.5
    assert float(sent.std()) == pytest.approx(1.0, abs=5 / (2 * sent.numel()) ** 0.5)


def test_metrics_are_added_to_those_of_the_client():
    model = small_model()
    mod = flower_mod(PRIVATE, model, prior_success=1e-3, data_range=(0.0, 1.0))
    metrics = client(mod, moved)(message(model), context()).content["metrics"]
    assert (metrics["num-examples"], metrics["loss"]) == (10, 0.5)
    reported = {name.removeprefix("reconrisk-"): value for name, value in metrics.items() if "reconrisk-" in name}
    assert reported.pop("sent-norm") > 0
    assert reported == mod.risk.after_rounds([2.0])


def test_metrics_get_a_record_where_the_client_has_none():
    model = small_model()
    reply = client(flower_mod(PRIVATE, model, prior_success=0.1), moved, metrics=False)(message(model), context())
    assert reply.content["metrics"]["reconrisk-rounds"] == 1


def test_the_report_is_a_function_of_what_is_sent():
    model = small_model()
    mod = flower_mod(PRIVATE, model, prior_success=1e-3, seed=0)
    replies = [client(mod, lambda _, v, by=by: v + by)(message(model), context()) for by in (1.0, 1000.0)]
    # both are clipped to the same: nothing of the length before may show
    first, second = (reply.content["metrics"] for reply in replies)
    assert first["reconrisk-sent-norm"] == pytest.approx(second["reconrisk-sent-norm"], rel=1e-4)
    assert {k: v for k, v in first.items() if "sent" not in k} == {k: v for k, v in second.items() if "sent" not in k}


def test_sent_norm_is_that_of_the_update_that_leaves():
    model = small_model()
    reply = client(flower_mod(PRIVATE, model, prior_success=0.1), moved)(message(model), context())
    left = torch.cat([(weights(reply)[name] - value).flatten() for name, value in model.state_dict().items()])
    assert reply.content["metrics"]["reconrisk-sent-norm"] == pytest.approx(float(left.norm()), rel=1e-5)


def test_private_numbers_stay_in_the_client_s_own_state():
    model, own = small_model(), context()
    client(flower_mod(PRIVATE, model, prior_success=0.1), moved)(message(model), own)
    kept = own.state["reconrisk"]
    length = 0.3 * sum(value.numel() for value in model.parameters()) ** 0.5
    assert kept["update-norm"] == pytest.approx(length, rel=1e-5)
    assert kept["clipped-share"] == pytest.approx(1 - 0.5 / length, rel=1e-5)
    assert kept["noise-multipliers"] == [2.0]


def test_rounds_add_up_also_after_a_restart():
    model, own = small_model(), context()
    for number in range(1, 4):
        mod = flower_mod(PRIVATE, model, prior_success=1e-3)  # a new process has a new one
        metrics = client(mod, moved)(message(model), own).content["metrics"]
        assert metrics["reconrisk-rounds"] == number
        assert metrics["reconrisk-success-so-far"] == mod.risk.after_rounds([2.0] * number)["success-so-far"]


def test_clients_are_counted_apart():
    model = small_model()
    app = client(flower_mod(PRIVATE, model, prior_success=1e-3), moved)
    for node in (1, 2):
        assert app(message(model), context(node)).content["metrics"]["reconrisk-rounds"] == 1


def test_a_heuristic_says_so():
    model = small_model()
    metrics = client(flower_mod(gaussian_noise(0.1), model, prior_success=0.1), moved)(message(model), context())
    assert metrics.content["metrics"]["reconrisk-heuristic"] == 1
    assert metrics.content["metrics"]["reconrisk-success-so-far"] == 1.0


def test_noise_differs_between_clients_and_rounds_and_repeats_by_seed_only():
    model = small_model()

    def sent(seed, node, rounds=1):
        app, own = client(flower_mod(PRIVATE, model, prior_success=0.1, seed=seed), moved), context(node)
        replies = [app(message(model), own) for _ in range(rounds)]
        return weights(replies[-1])["0.weight"]

    assert torch.equal(sent(5, 1), sent(5, 1))
    for other in (sent(6, 1), sent(5, 2), sent(5, 1, rounds=2), sent(None, 1)):
        assert not torch.allclose(sent(5, 1), other)
    assert not torch.allclose(sent(None, 1), sent(None, 1))


def test_arrays_without_names_go_by_the_order_of_the_state():
    model, defense = small_model(), Doubling()
    app = client(flower_mod(defense, model, prior_success=0.1), lambda _, value: value + 0.3, positional=True)
    reply = app(message(model, positional=True), context())
    assert set(defense.seen) == set(model.state_dict())
    assert list(reply.content["arrays"]) == ["0", "1", "2", "3"]
    for array, value in zip(reply.content["arrays"].values(), model.state_dict().values(), strict=True):
        np.testing.assert_allclose(array.numpy(), value.numpy() + 0.6, rtol=1e-5)


def test_a_numpy_client_is_defended_too():
    from flwr.client import NumPyClient

    model, defense = small_model(), Doubling()

    class Client(NumPyClient):
        def fit(self, parameters, config):
            return [each + 0.3 for each in parameters], 10, {"mine": 1.0}

    app = ClientApp(lambda context: Client().to_client(), mods=[flower_mod(defense, model, prior_success=0.1)])
    values = [value.numpy() for value in model.state_dict().values()]
    content = {"fitins.parameters": ArrayRecord(values), "fitins.config": ConfigRecord({})}
    reply = app(Message(RecordDict(content), dst_node_id=1, message_type="train"), context())
    for array, value in zip(reply.content["fitres.parameters"].values(), values, strict=True):
        np.testing.assert_allclose(array.numpy(), value + 0.6, rtol=1e-5)
    metrics = reply.content["fitres.metrics"]
    assert (metrics["mine"], metrics["reconrisk-rounds"]) == (1.0, 1)


def test_whole_numbers_survive_and_statistics_are_withheld_or_refused():
    model = small_model(batch_norm=True)
    with pytest.raises(InvalidInput, match=r"running_mean.*group_norm.*withhold"):
        client(flower_mod(PRIVATE, model, prior_success=0.1), moved)(message(model), context())
    mod = flower_mod(PRIVATE, model, prior_success=0.1, buffers="withhold")
    sent = weights(client(mod, moved)(message(model), context()))
    assert sent["1.num_batches_tracked"] == 1
    assert sent["1.num_batches_tracked"].dtype == torch.int64
    for name in ("1.running_mean", "1.running_var"):
        assert torch.equal(sent[name], model.state_dict()[name])
    assert not torch.allclose(sent["1.weight"], model.state_dict()["1.weight"] + 0.3)


def test_frozen_parameters_stay_and_may_not_be_trained():
    model = small_model()
    model[0].requires_grad_(False)
    mod = flower_mod(PRIVATE, model, prior_success=0.1)

    def last_alone(name, value):
        return value + 0.3 if name.startswith("2.") else value

    sent = weights(client(mod, last_alone)(message(model), context()))
    assert torch.equal(sent["0.weight"], model.state_dict()["0.weight"])
    with pytest.raises(InvalidInput, match=r"0\.weight.*trainable"):
        client(mod, moved)(message(model), context())


def test_refreshed_noise_follows_the_server_s_weights():
    model = small_model()
    inputs, labels = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    follows = refreshed(lambda m: clip(1.0) >> optimal_noise(m, like=1.0), cross_entropy, inputs, labels, probes=2)
    app, own = client(flower_mod(follows, model, prior_success=0.1), moved), context()
    first = app(message(model), own)
    other = small_model()
    with torch.no_grad():
        other[0].weight.mul_(2)
    second = app(message(other), own)
    assert follows.refreshes == 2
    noises = own.state["reconrisk"]["noise-multipliers"]
    assert noises[0] != noises[1]
    assert second.content["metrics"]["reconrisk-rounds"] == first.content["metrics"]["reconrisk-rounds"] + 1


# Other messages


def test_evaluation_passes_unchanged():
    model = small_model()
    app, own = client(flower_mod(PRIVATE, model, prior_success=0.1), moved), context()
    assert dict(app(message(model, kind="evaluate"), own).content["metrics"]) == {"accuracy": 0.5}
    assert not own.state


def test_arrays_in_other_replies_are_refused():
    model = small_model()
    with pytest.raises(InvalidInput, match="to be none in the reply to 'query'"):
        client(flower_mod(PRIVATE, model, prior_success=0.1), moved)(message(model, kind="query"), context())


def test_errors_of_the_client_pass():
    model, own = small_model(), context()
    app = ClientApp(mods=[flower_mod(PRIVATE, model, prior_success=0.1)])

    @app.train()
    def train(received, _):
        return Message(Error(code=1, reason="out of memory"), reply_to=received)

    assert app(message(model), own).has_error()
    assert not own.state


# What is refused


def test_weights_that_are_not_finite_do_not_leave():
    model, own = small_model(), context()
    app = client(flower_mod(PRIVATE, model, prior_success=0.1), lambda _, value: value * float("nan"))
    with pytest.warns(UserWarning, match="replaced by zero"):
        reply = app(message(model), own)
    sent = reply.content.array_records
    assert all(np.isfinite(value.numpy()).all() for record in sent.values() for value in record.values())


def test_other_arrays_than_the_server_s_are_refused():
    model = small_model()
    app = ClientApp(mods=[flower_mod(PRIVATE, model, prior_success=0.1)])

    @app.train()
    def train(received, _):
        state = received.content["arrays"].to_torch_state_dict()
        state.pop("0.bias")
        return Message(RecordDict({"arrays": ArrayRecord(state)}), reply_to=received)

    with pytest.raises(InvalidInput, match=r"0\.bias"):
        app(message(model), context())


def test_two_records_of_arrays_are_refused():
    model = small_model()
    app = ClientApp(mods=[flower_mod(PRIVATE, model, prior_success=0.1)])

    @app.train()
    def train(received, _):
        arrays = received.content["arrays"]
        return Message(RecordDict({"arrays": arrays, "more": arrays}), reply_to=received)

    with pytest.raises(InvalidInput, match="number of array records in the reply=2"):
        app(message(model), context())


def test_another_model_is_refused():
    with pytest.raises(InvalidInput, match="as in the model"):
        client(flower_mod(PRIVATE, nn.Linear(2, 2), prior_success=0.1), moved)(message(small_model()), context())


def test_settings_that_cannot_be_are_refused_at_once():
    model = small_model()
    with pytest.raises(InvalidInput, match="private records"):
        flower_mod(local_optimal_noise(like=1.0), model, prior_success=0.1)
    with pytest.raises(InvalidInput, match="private records"):
        flower_mod(clip(1.0) >> local_optimal_noise(like=1.0), model, prior_success=0.1)
    with pytest.raises(InvalidInput, match="refuse, withhold"):
        flower_mod(PRIVATE, model, prior_success=0.1, buffers="send")
    with pytest.raises(InvalidInput, match="seed"):
        flower_mod(PRIVATE, model, prior_success=0.1, seed=-1)
    with pytest.raises(InvalidInput, match="module"):
        flower_mod(PRIVATE, {}, prior_success=0.1)
    other = Doubling()
    other.mechanism = PureDP(1.0, Neighbouring.ADD_OR_REMOVE)
    with pytest.raises(InvalidInput, match="Gaussian or None"):
        flower_mod(other, model, prior_success=0.1)


def test_missing_flower_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(MissingExtra, match=r"flower_mod needs flwr.*reconrisk\[fl\]"):
        flower_mod(PRIVATE, small_model(), prior_success=0.1)


# The example


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("federated_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return module


def test_four_clients_learn_together_and_every_round_says_what_it_risks(example):
    result = example.simulate(example.defended())
    noise = example.defended().mechanism.noise_multiplier
    risk = flower_mod(PRIVATE, small_model(), prior_success=1e-9).risk
    for number in range(1, example.ROUNDS + 1):
        metrics = result.train_metrics_clientapp[number]
        for name, wanted in risk.after_rounds([noise] * number).items():
            # the mean over four clients that all took part in every round
            assert metrics[f"reconrisk-{name}"] == pytest.approx(wanted, rel=1e-9)
    reached = [result.evaluate_metrics_serverapp[number]["accuracy"] for number in (0, example.ROUNDS)]
    assert reached[0] < 0.2
    assert reached[1] > 0.5


def test_the_example_prints_its_rounds(example, capsys):
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + example.ROUNDS
    assert float(lines[-1].split()[1]) > 0.8
