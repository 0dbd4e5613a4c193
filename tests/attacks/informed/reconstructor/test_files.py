import dataclasses
import json
import struct

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks import (
    ReconstructorSettings,
    ShadowKnowledge,
    load_reconstructor,
    reconstructor,
    save_reconstructor,
)
from reconrisk.core.errors import InvalidFile
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd

SETTINGS = {
    "linear": ReconstructorSettings(),
    "residual": ReconstructorSettings(network="dense", hidden=(8,), epochs=2),
    "network": ReconstructorSettings(start="none", network="dense", hidden=(8,), epochs=2),
}


def drawn(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=SETTINGS)
def made(request, tmp_path):
    inputs = torch.rand(80, 4, generator=drawn(0))
    labels = (inputs[:, 0] > 0.5).long()
    training = ShadowTraining(nn.Linear(4, 2), inputs[:10], labels[:10], sgd(0.1), steps=4)
    knowledge = ShadowKnowledge(training, inputs[10:60], labels[10:60])
    attack = reconstructor(knowledge, SETTINGS[request.param], rng=drawn(1))
    return attack, training.train(inputs[60:], labels[60:]), tmp_path / "attack.safetensors"


def test_what_was_saved_estimates_the_same(made):
    attack, rows, path = made
    save_reconstructor(attack, path)
    loaded = load_reconstructor(path)
    assert torch.equal(loaded.estimates(rows), attack.estimates(rows))
    assert repr(loaded) == repr(attack)
    assert (loaded.error, loaded.needs, loaded.settings) == (attack.error, attack.needs, attack.settings)
    assert torch.equal(loaded.relative_distance(rows), attack.relative_distance(rows))


def rewritten(path, change):
    """The file with its header changed by ``change``, lengths in order."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def attack_settings(header, **changed):
    plain = json.loads(header["__metadata__"]["reconrisk"])
    header["__metadata__"]["reconrisk"] = json.dumps({**plain, **changed})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: attack_settings(header, format="x"), "Its format is 'x'"),
        (
            lambda header: attack_settings(header, format=1),
            "version 1, written by an earlier reconrisk; this one reads",
        ),
        (lambda header: attack_settings(header, format=7), "version 7, written by a later reconrisk.*Update reconrisk"),
        (lambda header: attack_settings(header, settings={"start": "none"}), "does not describe a reconstructor"),
        (lambda header: attack_settings(header, shapes=[[1]]), "does not describe a reconstructor"),
        (lambda header: header.pop("__metadata__"), "not written by reconrisk"),
        (lambda header: header.__setitem__("__metadata__", {"reconrisk": "[1]"}), "not a table of named values"),
        (lambda header: header.__setitem__("__metadata__", {"reconrisk": "{"}), "cannot be read"),
    ],
)
def test_a_file_whose_header_is_not_right_is_refused(made, change, message):
    attack, _, path = made
    save_reconstructor(attack, path)
    rewritten(path, change)
    with pytest.raises(InvalidFile, match=message):
        load_reconstructor(path)


def test_damaged_files_are_refused(made):
    attack, _, path = made
    save_reconstructor(attack, path)
    content = path.read_bytes()
    for damaged in (content[:-7], content[:20], b"", b"nonsense" * 9):
        path.write_bytes(damaged)
        with pytest.raises(InvalidFile, match=r"attack\.safetensors"):
            load_reconstructor(path)
    scaling = dataclasses.replace(attack.scaling, mean=attack.scaling.mean * torch.nan)
    save_reconstructor(dataclasses.replace(attack, scaling=scaling), path)
    with pytest.raises(InvalidFile, match="not finite"):
        load_reconstructor(path)
    with pytest.raises(InvalidFile, match="no such file"):
        load_reconstructor(path.with_name("absent.safetensors"))


def test_a_failed_save_leaves_what_was_there(made, monkeypatch):
    attack, rows, path = made
    save_reconstructor(attack, path)

    def fail(*given, **named):
        raise OSError("disk full")

    monkeypatch.setattr("reconrisk.attacks.informed.reconstructor.training.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_reconstructor(attack, path)
    assert torch.equal(load_reconstructor(path).estimates(rows), attack.estimates(rows))
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert isinstance(attack, rr.attacks.Reconstructor)
