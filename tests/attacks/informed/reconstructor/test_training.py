import dataclasses

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.informed.reconstructor.network import (
    dense_reconstructor,
    patch_discriminator,
    transposed_reconstructor,
)
from reconrisk.attacks.informed.reconstructor.settings import (
    ReconstructorSettings,
    balle2022_reconstructor,
    residual_reconstructor,
)
from reconrisk.attacks.informed.reconstructor.training import (
    ShadowPairs,
    build_seeded,
    read_header_and_tensors,
    train_network,
    write_checkpoint,
    write_tensors,
)
from reconrisk.core.errors import InvalidFile

SETTINGS = ReconstructorSettings(start="none", network="dense", hidden=(16,), epochs=6, batch_size=10)


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def pairs(shape=(4,), count=60):
    features = torch.randn(count, 5, generator=drawn(1))
    mix = torch.randn(5, torch.Size(shape).numel(), generator=drawn(2))
    targets = torch.sigmoid(features @ mix).reshape(count, *shape)
    return ShadowPairs(features, targets, torch.arange(10), (0.0, 1.0))


def dense(seed=3, shape=(4,)):
    return build_seeded(lambda: dense_reconstructor(5, shape, (0.0, 1.0), (16,)), drawn(seed))


class Stop(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_a_run_that_is_killed_twice_ends_as_one_that_is_not(tmp_path, monkeypatch, optimizer):
    settings = dataclasses.replace(SETTINGS, optimizer=optimizer)
    whole = train_network(dense(), pairs(), settings, rng=drawn(4))
    path = tmp_path / "run.safetensors"
    kind = {"rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam}[optimizer]
    real = kind.step
    for steps in (8, 13):  # of 5 in an epoch: within the second, then within the third that follows it
        left = steps

        def step(self, *given):
            nonlocal left
            left -= 1
            if left < 0:
                raise Stop
            return real(self, *given)

        monkeypatch.setattr(kind, "step", step)
        with pytest.raises(Stop):
            train_network(dense(), pairs(), settings, rng=drawn(4), checkpoint=path)
    monkeypatch.setattr(kind, "step", real)
    resumed = train_network(dense(), pairs(), settings, rng=drawn(4), checkpoint=path)
    assert resumed.error == whole.error
    assert resumed.epochs == whole.epochs == 6
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name])


def test_a_resumed_run_with_a_discriminator_is_the_same(tmp_path, monkeypatch):
    settings = dataclasses.replace(SETTINGS, adversarial=0.1, epochs=2)
    shape = (1, 24, 24)
    data = pairs(shape, count=14)
    whole = train_network(dense(shape=shape), data, settings, rng=drawn(4))
    path = tmp_path / "run.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("reconrisk.attacks.informed.reconstructor.training.write_checkpoint", stop_after(path))
        with pytest.raises(Stop):
            train_network(dense(shape=shape), data, settings, rng=drawn(4), checkpoint=path)
    again = train_network(dense(shape=shape), data, settings, rng=drawn(4), checkpoint=path)
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])


def stop_after(path):
    def write(where, state):
        write_checkpoint(where, state)
        raise Stop

    return write


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    train_network(dense(), pairs(), SETTINGS, rng=drawn(4), checkpoint=path)
    with pytest.raises(InvalidFile, match="other settings or shadow models"):
        train_network(dense(), pairs(), dataclasses.replace(SETTINGS, epochs=9), rng=drawn(4), checkpoint=path)
    with pytest.raises(InvalidFile, match="other settings or shadow models"):
        train_network(dense(seed=8), pairs(), SETTINGS, rng=drawn(4), checkpoint=path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InvalidFile, match="cannot be read"):
        train_network(dense(), pairs(), SETTINGS, rng=drawn(4), checkpoint=path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    train_network(dense(), pairs(), SETTINGS, rng=drawn(4), checkpoint=path)
    tensors, header = read_header_and_tensors(path, "")
    write_tensors(path, tensors, {**header, "format": 1})
    with pytest.raises(InvalidFile, match="written by another version"):
        train_network(dense(), pairs(), SETTINGS, rng=drawn(4), checkpoint=path)


def test_the_best_epoch_on_held_out_targets_is_kept_and_those_do_not_train():
    data = pairs()
    absurd = dataclasses.replace(data, targets=data.targets.clone())
    absurd.targets[:10] = 1 - absurd.targets[:10]  # the more it learns, the worse it does on what is held out
    done = train_network(dense(), absurd, dataclasses.replace(SETTINGS, epochs=40), rng=drawn(4))
    assert done.epoch < 10
    assert done.epochs == 40
    patient = train_network(dense(), absurd, dataclasses.replace(SETTINGS, epochs=40, patience=3), rng=drawn(4))
    assert patient.epochs < 40
    assert patient.error == done.error


def test_held_out_targets_do_not_train():
    data = pairs()
    other = dataclasses.replace(data, targets=data.targets.clone())
    other.targets[:10] = 0.5
    once = dataclasses.replace(SETTINGS, epochs=1)
    one, two = (train_network(dense(), each, once, rng=drawn(4)) for each in (data, other))
    assert one.epoch == two.epoch == 1
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, two.network.state_dict()[name])


def test_the_perceptual_distance_and_the_discriminator_enter_the_loss():
    shape = (1, 24, 24)
    data, once = pairs(shape, count=14), dataclasses.replace(SETTINGS, epochs=1)
    plain = train_network(dense(shape=shape), data, once, rng=drawn(4))
    with_distance = dataclasses.replace(once, perceptual=5.0)

    def distance(estimates, targets):
        return (estimates.mean((1, 2, 3)) - 1).square()

    pushed = train_network(dense(shape=shape), data, with_distance, rng=drawn(4), perceptual=distance)
    assert pushed.error != plain.error
    with pytest.raises(rr.InvalidInput, match="to be a metric of images"):
        train_network(dense(shape=shape), data, with_distance, rng=drawn(4))
    judged = train_network(dense(shape=shape), data, dataclasses.replace(once, adversarial=1.0), rng=drawn(4))
    assert judged.error != plain.error


def test_the_networks_have_the_sizes_of_the_tables():
    with torch.device("meta"):  # shapes alone: the second has 226 million weights
        perceptron = dense_reconstructor(7960, (1, 28, 28), (0.0, 1.0))
        transposed = transposed_reconstructor(55_208, (3, 32, 32), (0.0, 1.0))
    dense_parameters = sum(value.numel() for value in perceptron.parameters())
    assert dense_parameters == pytest.approx(9.7e6, rel=0.01)  # Table V: 9.7M
    assert sum(value.numel() for value in transposed.parameters()) == pytest.approx(226e6, rel=0.01)  # section VI-B
    layers = [layer for layer in patch_discriminator((3, 32, 32)) if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in layers] == [64, 128, 256, 512, 1]  # Table VIII


def test_outputs_lie_in_the_range_of_the_data():
    network = build_seeded(lambda: dense_reconstructor(5, (4,), (-2.0, 3.0), (16,)), drawn(3))
    values = network(100 * torch.randn(50, 5, generator=drawn(0))).detach()
    assert float(values.min()) >= -2
    assert float(values.max()) <= 3
    assert float(values.max() - values.min()) > 4


def test_names_stand_for_settings():
    assert balle2022_reconstructor().hidden == (1000, 1000)
    assert balle2022_reconstructor(colour=True).network == "transposed"
    assert residual_reconstructor(7).epochs == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": "none"}, 'not to be "none" with start="none"'),
        ({"network": "transposed"}, 'to be "dense" or "none" with start="linear"'),
        ({"network": "deep"}, "one of none, dense, transposed"),
        ({"absolute": 0.0, "squared": 0.0}, "if absolute is 0"),
        ({"held_out": 1.0}, r"held_out=1.0 in \(0, 1\)"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0.5}, "whole number"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 > 0"),
        ({"perceptual": -1.0}, ">= 0"),
        ({"hidden": (0,)}, "hidden=0"),
        ({"patience": 0}, "patience=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(rr.InvalidInput, match=message):
        ReconstructorSettings(**given)


def test_images_that_networks_cannot_make_are_refused():
    with pytest.raises(rr.InvalidInput, match="multiples of 4"):
        transposed_reconstructor(5, (1, 6, 8), (0.0, 1.0))
    with pytest.raises(rr.InvalidInput, match="sides >= 24"):
        patch_discriminator((1, 8, 8))
