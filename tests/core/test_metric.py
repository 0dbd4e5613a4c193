import math

import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric

ERROR = Metric("error", lambda a, b: (a - b).abs().flatten(1).amax(1), best=0.0, worst=math.inf)


def test_direction_follows_from_best_and_worst():
    assert not ERROR.higher_is_better
    assert Metric("quality", ERROR.function, best=1.0, worst=-1.0).higher_is_better


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_gives_its_record_the_worst_score_and_leaves_the_others(bad):
    targets = torch.zeros(3, 4)
    estimates = torch.full((3, 4), 0.5)
    estimates[1, 2] = bad
    assert ERROR(estimates, targets).tolist() == [0.5, math.inf, 0.5]


def test_bad_input_is_refused():
    with pytest.raises(InvalidInput, match="match_records"):
        ERROR(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(InvalidInput, match=r"type\(estimates\)='list' to be a torch tensor"):
        ERROR([0.0], torch.zeros(1))
    with pytest.raises(InvalidInput, match="targets with at least one"):
        ERROR(torch.zeros(0, 3), torch.zeros(0, 3))
    with pytest.raises(InvalidInput, match="targets to be finite"):
        ERROR(torch.zeros(1, 1), torch.full((1, 1), math.nan))


def test_a_function_that_reduces_or_returns_nan_is_caught():
    with pytest.raises(InvalidInput, match="one per record"):
        Metric("mean", lambda a, b: (a - b).mean(), best=0.0, worst=1.0)(torch.zeros(2, 2), torch.ones(2, 2))
    with pytest.raises(InvalidInput, match="ratio to be numbers"):
        Metric("ratio", lambda a, b: (a / b).sum(1), best=0.0, worst=1.0)(torch.zeros(1, 1), torch.zeros(1, 1))


def test_repr_shows_every_setting():
    assert repr(Metric("psnr", ERROR.function, 1.0, 0.0, (("data_range", 1.0),))) == "psnr(data_range=1.0)"
