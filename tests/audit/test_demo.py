import pytest
import torch

from reconrisk.audit.demo import run_demo
from reconrisk.audit.self_check import self_check
from reconrisk.core.errors import InvalidInput


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_self_check_inverts_the_layer_whatever_its_weights(seed):
    assert self_check(seed=seed) < 1e-5


def test_the_self_check_notices_a_wrong_gradient(monkeypatch):
    exact = torch.func.grad

    def wrong(function):
        return lambda values: {name: value + 1e-3 for name, value in exact(function)(values).items()}

    monkeypatch.setattr(torch.func, "grad", wrong)
    assert self_check() > 1e-5


def test_the_demo_refuses_records_it_does_not_have():
    with pytest.raises(InvalidInput, match=r"record=100000 < 1000"):
        run_demo(record=100_000)
    with pytest.raises(InvalidInput, match="seed"):
        run_demo(seed=-1)
