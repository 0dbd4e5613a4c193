import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.integrations.fisher_accountant.state import read_account

INPUTS = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 2
STEP = {"noise_multiplier": 1.5, "clip_norm": 0.5, "sampling_probability": 0.2}


def saved(path, **settings):
    """An accountant with these settings after a few steps, in a file."""
    accountant = FisherAccountant(nn.Linear(4, 2), INPUTS, LABELS, **settings)
    for _ in range(7):
        accountant.step(**STEP)
    accountant.save(path)
    return accountant.account()


@pytest.mark.parametrize(
    "settings",
    [
        {"relative_error": 0.1},
        {"probes": 2, "records": [7, 3]},
        {"probes": 2, "records_per_step": 5, "clip": "smooth"},
        {"probes": 2, "subsampling": "guo2022", "delta": 1e-3},
        {"probes": 2, "subsampling": "none"},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_an_account_is_read_without_its_settings_and_model(tmp_path, settings):
    path = tmp_path / "account.safetensors"
    account = saved(path, **settings)
    again = read_account(path, INPUTS, LABELS)
    for name, value in vars(account).items():
        other = getattr(again, name)
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name
    assert again.mechanism() == account.mechanism()


def test_an_account_of_other_records_or_labels_is_refused(tmp_path):
    path = tmp_path / "account.safetensors"
    saved(path, probes=2)
    for inputs, labels in ((INPUTS / 2, LABELS), (INPUTS, 1 - LABELS), (INPUTS[:6], LABELS[:6])):
        with pytest.raises(InvalidInput):
            read_account(path, inputs, labels)
    with pytest.raises(InvalidFile, match="There is no such file"):
        read_account(tmp_path / "absent", INPUTS, LABELS)


@pytest.mark.parametrize(
    "text", [b"", b"3", b"[1, 2]", b"\xff", b'["exact", null, ["hard"], null]', b'["a", null, "hard", 1]']
)
def test_damaged_settings_are_refused(tmp_path, text):
    path = tmp_path / "account.safetensors"
    saved(path, probes=2)
    state = {**load_file(path), "settings": torch.tensor(list(text), dtype=torch.uint8)}
    save_file(state, path)
    with pytest.raises(InvalidInput, match=r"settings|subsampling"):
        read_account(path, INPUTS, LABELS)
    del state["settings"]
    save_file(state, path)
    with pytest.raises(InvalidInput, match="to include 'settings'"):
        read_account(path, INPUTS, LABELS)


def test_an_account_without_steps_is_refused(tmp_path):
    FisherAccountant(nn.Linear(4, 2), INPUTS, LABELS).save(tmp_path / "a")
    with pytest.raises(InvalidInput, match="Expected at least one accounted step, got 0"):
        read_account(tmp_path / "a", INPUTS, LABELS)
