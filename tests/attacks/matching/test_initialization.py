"""Soft labels: the models they support, and that the models are not changed."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.matching.variables import count_classes


def test_counting_classes_leaves_the_statistics_of_batch_norm_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, torch.rand(2, 3), torch.tensor([0, 1]))
    assert count_classes(rr.observe(release)) == 5
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_regression_has_no_classes_to_vary() -> None:
    release = rr.releases.GradientRelease(nn.Linear(3, 1), nn.functional.mse_loss, torch.rand(1, 3), torch.rand(1, 1))
    with pytest.raises(rr.InvalidInput, match=r"outputs=\(1,\).*Knows.LABELS"):
        rr.attacks.dlg(steps=1)(rr.observe(release), rng=torch.Generator())
