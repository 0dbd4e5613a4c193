import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reconrisk as rr
from reconrisk.attacks.baselines import prior_mean
from reconrisk.attacks.best_candidate import best_candidate
from reconrisk.attacks.gauss_newton.attack import gauss_newton
from reconrisk.core.version import VERSION
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.studies.common.identity import (
    environment,
    hash_of_data,
    hash_of_model,
    hash_of_tensors,
    is_bundled,
    settings_in_full,
)


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(2, 3)


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=6), st.integers(0, 5), st.floats(0.5, 2, width=32))
def test_any_changed_value_changes_the_hash(values, place, change):
    tensor = torch.tensor(values)
    other = tensor.clone()
    other[place % len(values)] += change
    assert hash_of_tensors([("a", tensor)]) == hash_of_tensors([("a", tensor.clone())])
    assert hash_of_tensors([("a", tensor)]) != hash_of_tensors([("a", other)])
    assert hash_of_tensors([("a", tensor)]) != hash_of_tensors([("b", tensor)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_types_and_shapes_count_too(dtype):
    zeros = torch.zeros(4)
    assert hash_of_tensors([("a", zeros)]) != hash_of_tensors([("a", zeros.to(dtype))])
    assert hash_of_tensors([("a", zeros)]) != hash_of_tensors([("a", zeros.reshape(2, 2))])
    assert hash_of_tensors([("a", torch.zeros(()).to(dtype))])


def test_layout_in_memory_does_not_count():
    matrix = torch.arange(6.0).reshape(2, 3)
    assert hash_of_tensors([("a", matrix.T)]) == hash_of_tensors([("a", matrix.T.contiguous())])


def test_weights_layers_and_mode_tell_models_apart():
    assert hash_of_model(linear()) == hash_of_model(linear())
    assert hash_of_model(linear()) != hash_of_model(linear(seed=1))
    assert hash_of_model(linear()) != hash_of_model(linear().eval())
    assert hash_of_model(nn.Sequential(nn.ReLU())) != hash_of_model(nn.Sequential(nn.Tanh()))


def test_records_labels_and_range_tell_data_apart():
    inputs, labels = torch.rand(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
    hashes = [
        hash_of_data(dataset)
        for dataset in (
            Dataset("a", inputs, labels),
            Dataset("a", inputs.flip(0), labels),
            Dataset("a", inputs, 1 - labels),
            Dataset("a", inputs),
            Dataset("a", inputs, labels, data_range=(0.0, 2.0)),
        )
    ]
    assert len(set(hashes)) == len(hashes)
    assert hash_of_data(Dataset("another name", inputs, labels)) == hashes[0]


def test_attacks_with_other_tensors_are_other_attacks_though_they_print_alike():
    one, other = torch.zeros(3, 2), torch.ones(3, 2)
    assert repr(best_candidate(one)) == repr(best_candidate(other))
    assert settings_in_full(best_candidate(one)) != settings_in_full(best_candidate(other))
    assert settings_in_full(best_candidate(one)) == settings_in_full(best_candidate(one.clone()))
    warm = [gauss_newton(warm_start=prior_mean(mean)) for mean in (one[0], other[0])]
    assert settings_in_full(warm[0]) != settings_in_full(warm[1])


def test_only_records_of_the_package_are_bundled():
    digits = load_dataset("digits")
    changed = digits.inputs.clone()
    changed[0, 0, 0, 0] += 0.5
    assert is_bundled(digits.subset(range(5)))
    assert not is_bundled(Dataset("digits", changed.clamp(0, 1), digits.labels))
    assert not is_bundled(Dataset("mine", digits.inputs, digits.labels))
    assert not is_bundled(Dataset("digits", torch.zeros(2, 3)))


def test_the_environment_names_what_computes():
    versions = dict(environment().versions)
    assert versions["reconrisk"] == VERSION
    assert versions["torch"].startswith(torch.__version__.split("+")[0])
    assert environment().threads == torch.get_num_threads()


def test_tensors_within_tables_and_chains_are_told_apart():
    def masked(seed):
        like = {"w": torch.zeros(5000)}
        mask = rr.defenses.random_pruning(0.5, seed=seed).masked(like)
        return rr.defenses.clip(1.0) >> mask

    assert settings_in_full(masked(0)) == settings_in_full(masked(0))
    assert settings_in_full(masked(0)) != settings_in_full(masked(1))
