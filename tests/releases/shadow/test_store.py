import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.store import models_per_part, train_shadow_models
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import UpdateRule, adam, sgd

MODELS = 11
ROW = 23  # parameters of the perceptron below
THREE = 3 * 4 * 4 * ROW  # bytes for parts of three models: four copies of float32 rows


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def perceptron(stream=None):
    with torch.random.fork_rng():
        torch.manual_seed(0 if stream is None else int(torch.randint(999, (), generator=stream)))
        return nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 1), nn.Linear(1, 1))


def problem(seed=0, **settings):
    inputs = torch.rand(9 + MODELS, 3, generator=rng(seed))
    labels = torch.rand(9 + MODELS, 1, generator=rng(seed + 1))
    shared = {"steps": 4, "loss_fn": nn.functional.mse_loss, "private": Gaussian(0.1), "batches": RandomBatches(4)}
    shared.update(draw_start=perceptron)
    training = ShadowTraining(perceptron(), inputs[:9], labels[:9], **{**shared, **settings})
    return training, inputs[9:], labels[9:]


def run(store, **settings):
    return train_shadow_models(*problem(**settings), store=store, memory=THREE, rng=rng())


def killed(store, where):
    """Run in a process that kills itself in the training of a part, or between its rows and the index."""
    script = f"""
import os, signal, sys
from reconrisk.releases.shadow import store as shadow_store, training as shadow_training
from tests.releases.shadow.test_store import run
calls = 0
def deadly(work, at):
    def wrapped(*given, **named):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*given, **named)
    return wrapped
{where}
run(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", script, str(store)], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGKILL


def finished(store):
    return sorted(int(begin) for begin in json.loads((store / "index.json").read_text())["done"])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_killed_twice_the_result_is_the_same_to_the_last_bit(tmp_path):
    whole = run(None)
    store = tmp_path / "store"
    patch = "shadow_training.ShadowTraining.train_seeded = deadly(shadow_training.ShadowTraining.train_seeded, at=2)"
    killed(store, patch)
    assert finished(store) == [0]
    killed(store, "shadow_store._write_index = deadly(shadow_store._write_index, at=2)")
    assert finished(store) == [0, 3]  # the rows of the third part were written, the index was not
    resumed = run(store)
    assert finished(store) == [0, 3, 6, 9]
    assert torch.equal(resumed.rows, whole.rows)
    assert sorted(path.name for path in store.iterdir()) == ["index.json", "models.bin"]


@pytest.mark.parametrize("left", [["tmpabc.json"], ["index.json"], ["index.json", "tmpabc.bin"]])
def test_a_kill_before_the_first_part_leaves_what_can_be_taken_up(tmp_path, left):
    run(tmp_path / "other")
    begun = json.loads((tmp_path / "other" / "index.json").read_text())
    (tmp_path / "store").mkdir()
    for name in left:
        (tmp_path / "store" / name).write_text(json.dumps({**begun, "done": {}}))
    assert torch.equal(run(tmp_path / "store").rows, run(None).rows)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["index.json", "models.bin"]


def test_what_is_done_is_not_trained_again(tmp_path, monkeypatch):
    first = run(tmp_path / "store")
    calls = []
    monkeypatch.setattr(ShadowTraining, "train_seeded", lambda *given, **named: calls.append(given))
    again = run(tmp_path / "store")
    assert torch.equal(again.rows, first.rows)
    assert not calls


def test_an_interrupt_keeps_what_is_done(tmp_path, monkeypatch):
    train, calls = ShadowTraining.train_seeded, []

    def interrupted(*given, **named):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*given, **named)

    monkeypatch.setattr(ShadowTraining, "train_seeded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "store")
    monkeypatch.undo()
    assert finished(tmp_path / "store") == [0, 3]
    assert torch.equal(run(tmp_path / "store").rows, run(None).rows)


def test_the_part_of_a_begun_store_outlasts_another_memory_limit(tmp_path):
    first = run(tmp_path / "store")
    again = train_shadow_models(*problem(), store=tmp_path / "store", memory=2**20, rng=rng())
    assert torch.equal(again.rows, first.rows)


def test_models_are_those_of_the_training(tmp_path):
    training, inputs, labels = problem()
    models = run(tmp_path / "store")
    torch.testing.assert_close(models.rows, training.train(inputs, labels, rng=rng()), rtol=0, atol=1e-6)
    assert (len(models), models.names, models.shapes) == (MODELS, training.names, training.shapes)
    assert torch.equal(models.columns(["0"]), torch.arange(16))


def test_starts_are_cut_into_parts_too(tmp_path):
    training, inputs, labels = problem(draw_start=None, private=None, batches=None)
    starts = torch.randn(MODELS, training.size, generator=rng())
    expected = training.train(inputs, labels, starts=starts)
    for given, wanted in ((starts, expected), (starts[0], training.train(inputs, labels, starts=starts[0]))):
        store = tmp_path / str(given.ndim)
        found = train_shadow_models(training, inputs, labels, store=store, memory=THREE, starts=given)
        torch.testing.assert_close(found.rows, wanted, rtol=0, atol=1e-6)


def test_rows_read_from_disk_cannot_change_the_store(tmp_path):
    models = run(tmp_path / "store")
    before = models.rows.clone()
    models.rows.zero_()
    assert torch.equal(run(tmp_path / "store").rows, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": adam(0.1)}, "optimizer"),
        ({"optimizer": sgd(0.2, 0.8)}, "optimizer"),
        ({"steps": 5}, "steps"),
        ({"private": Gaussian(0.2)}, "private"),
        ({"batches": RandomBatches(5)}, "batches"),
        ({"draw_start": None}, "draw_start"),
        ({"loss_fn": nn.functional.l1_loss}, "loss_fn"),
    ],
)
def test_a_store_of_other_settings_is_refused(tmp_path, change, message):
    run(tmp_path / "store")
    with pytest.raises(InvalidInput, match=f"same settings, but it differs in {message}. Pass another folder"):
        run(tmp_path / "store", **change)


def test_a_store_of_other_records_or_draws_is_refused(tmp_path):
    run(tmp_path / "store")
    with pytest.raises(InvalidInput, match="differs in rng"):
        train_shadow_models(*problem(), store=tmp_path / "store", rng=rng(1))
    with pytest.raises(InvalidInput, match="differs in fixed_inputs, fixed_labels, inputs, labels"):
        run(tmp_path / "store", seed=0) if False else train_shadow_models(
            *problem(seed=5), store=tmp_path / "store", rng=rng()
        )
    training, inputs, labels = problem()
    with pytest.raises(InvalidInput, match="differs in precision, inputs"):
        train_shadow_models(training, inputs.double(), labels, store=tmp_path / "store", rng=rng())


@pytest.mark.parametrize("part", ["optimizer", "loss_fn", "draw_start"])
def test_settings_without_a_repr_of_their_own_are_known_again(tmp_path, part):
    class Loss:
        def __call__(self, outputs, labels):
            return nn.functional.mse_loss(outputs, labels)

    class Draw:
        def __call__(self, stream):
            return perceptron(stream)

    class Rule(UpdateRule):
        def step(self, parameters, gradients, state):
            return {name: value - 0.1 * gradients[name] for name, value in parameters.items()}, state

    made = {"optimizer": Rule, "loss_fn": Loss, "draw_start": Draw}[part]
    first = run(tmp_path / "store", private=None, **{part: made()})
    assert torch.equal(run(tmp_path / "store", private=None, **{part: made()}).rows, first.rows)


def test_losses_that_look_alike_are_told_apart(tmp_path):
    run(tmp_path / "store", private=None, loss_fn=nn.SmoothL1Loss(beta=1.0))
    with pytest.raises(InvalidInput, match="differs in loss_fn"):
        run(tmp_path / "store", private=None, loss_fn=nn.SmoothL1Loss(beta=0.5))


def drawn(spread):
    def network(stream):
        made = perceptron(stream)
        made[0].weight.data.mul_(spread)
        return made

    return network


@pytest.mark.parametrize(
    ("part", "first", "other"),
    [
        ("draw_start", drawn(0.1), drawn(5.0)),
        ("loss_fn", lambda made, wanted: (made - wanted).square().mean(), lambda made, wanted: (made - wanted).mean()),
    ],
)
def test_functions_of_one_name_are_told_apart(tmp_path, part, first, other):
    assert first.__qualname__ == other.__qualname__
    settings = {"private": None, "batches": None}
    rows = run(tmp_path / "store", **settings, **{part: first}).rows
    assert torch.equal(run(tmp_path / "store", **settings, **{part: first}).rows, rows)
    with pytest.raises(InvalidInput, match=f"differs in {part}"):
        run(tmp_path / "store", **settings, **{part: other})


def test_the_same_batches_in_another_container_are_the_same(tmp_path):
    settings = {"private": None, "draw_start": None, "steps": None}
    rows = run(tmp_path / "store", **settings, batches=[[0, 1, 9], [2, 3]]).rows
    tensors = [torch.tensor([0, 1, 9]), torch.tensor([2, 3])]
    assert torch.equal(run(tmp_path / "store", **settings, batches=tensors).rows, rows)


def test_a_store_of_another_model_is_refused(tmp_path):
    training, inputs, labels = problem(draw_start=None, private=None, batches=None)
    train_shadow_models(training, inputs, labels, store=tmp_path / "store")
    training.model[0].weight.data.mul_(1.5)
    with pytest.raises(InvalidInput, match="differs in model"):
        train_shadow_models(training, inputs, labels, store=tmp_path / "store")


def test_a_store_that_was_changed_is_refused(tmp_path):
    run(tmp_path / "store")
    rows = tmp_path / "store" / "models.bin"
    content = rows.read_bytes()
    rows.write_bytes(content[:400] + bytes([content[400] ^ 1]) + content[401:])
    with pytest.raises(InvalidFile, match=r"models 3 to 5: They do not match their checksum"):
        run(tmp_path / "store")
    rows.write_bytes(content[:-4])
    with pytest.raises(InvalidFile, match="bytes instead of"):
        run(tmp_path / "store")
    rows.unlink()
    with pytest.raises(InvalidFile, match="0 bytes instead of"):
        run(tmp_path / "store")


def test_a_store_of_an_earlier_version_is_refused_and_not_touched(tmp_path):
    run(tmp_path / "store")
    index = tmp_path / "store" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "format": 2}))
    before = {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    with pytest.raises(
        InvalidFile, match=r"version 2, written by an earlier reconrisk.*Choose a new path.*Nothing was"
    ):
        run(tmp_path / "store")
    assert {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()} == before


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": 3}'])
def test_an_index_that_is_none_is_refused(tmp_path, content):
    run(tmp_path / "store")
    (tmp_path / "store" / "index.json").write_text(content)
    with pytest.raises(InvalidFile, match=r"index\.json"):
        run(tmp_path / "store")


def test_a_store_of_another_version_is_refused(tmp_path):
    run(tmp_path / "store")
    index = tmp_path / "store" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "format": 2}))
    with pytest.raises(InvalidFile, match="written by an earlier reconrisk"):
        run(tmp_path / "store")


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InvalidFile, match="other files than shadow models"):
        run(tmp_path)
    with pytest.raises(InvalidFile, match="other files than shadow models"):
        run(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_bad_targets_leave_no_models(tmp_path):
    training, inputs, labels = problem()
    with pytest.raises(InvalidInput, match="inputs to be finite"):
        train_shadow_models(training, inputs * torch.nan, labels, store=tmp_path / "store", rng=rng())
    with pytest.raises(InvalidInput, match="at least one"):
        train_shadow_models(training, inputs[:0], labels[:0], store=tmp_path / "store", rng=rng())
    assert not (tmp_path / "store").exists()


def test_memory_bounds_the_parts():
    training, inputs, labels = problem()
    assert models_per_part(training, inputs, THREE) == 3
    assert models_per_part(training, inputs, 2**40) >= 128
    with pytest.raises(InvalidInput, match="which training one model takes"):
        train_shadow_models(training, inputs, labels, memory=4 * ROW, rng=rng())
    with pytest.raises(InvalidInput, match="the size of the models"):
        train_shadow_models(training, inputs.repeat(9, 1), labels.repeat(9, 1), memory=THREE, rng=rng())
