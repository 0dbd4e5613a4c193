from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.attacks import average_observations
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import STRONGEST, Sees, ThreatModel


def seen(values, std=None, kept=None, **options):
    released = {"w": torch.tensor(values, dtype=torch.float64)}
    noise = None if std is None else {"w": torch.tensor(std, dtype=torch.float64)}
    sent = None if kept is None else {"w": torch.tensor(kept)}
    return Observation(released, dict, STRONGEST, (2,), (0.0, 1.0), noise_std=noise, kept=sent, **options)


def test_known_noise_weighs_the_updates():
    both = average_observations([seen([1.0, 1.0], [1.0, 2.0]), seen([3.0, 3.0], [1.0, 1.0])])
    torch.testing.assert_close(both.released["w"], torch.tensor([2.0, (0.25 + 3) / 1.25]).double())
    torch.testing.assert_close(both.noise_std["w"], torch.tensor([0.5, 0.8]).double().sqrt())


def test_values_that_were_not_sent_do_not_count():
    both = average_observations([seen([1.0, 0.0], kept=[True, False]), seen([0.0, 0.0], kept=[False, False])])
    assert both.released["w"].tolist() == [1.0, 0.0]
    assert both.kept["w"].tolist() == [True, False]
    assert both.noise_std is None


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=2), min_size=1, max_size=6))
def test_without_known_noise_it_is_the_mean_in_any_order(values):
    several = [seen(each) for each in values]
    mean = average_observations(several).released["w"]
    torch.testing.assert_close(mean, torch.tensor(values, dtype=torch.float64).mean(0))
    torch.testing.assert_close(average_observations(several[::-1]).released["w"], mean)


def test_what_does_not_match_is_refused():
    one, norms = seen([1.0, 1.0]), [torch.tensor([1.0]), torch.tensor([2.0])]
    curious = replace(one, threat=ThreatModel(Sees.ONE_UPDATE))
    for observations, message in (
        ([], "observations with at least one element"),
        ([curious, curious], "threat.sees='one-update' to be every-update"),
        ([one, replace(one, data_range=(0.0, 2.0))], r"data_range=\(0.0, 2.0\) to be \(0.0, 1.0\)"),
        ([one, seen([1.0])], "names and shapes of the first"),
        ([replace(one, record_norms=norm) for norm in norms], r"record_norms=\[2.0\] to be \[1.0\]"),
        ([one, seen([1.0, 1.0], [1.0, 1.0])], "noise_std is known for some of the observations only"),
    ):
        with pytest.raises(InvalidInput, match=message):
            average_observations(observations)
    assert average_observations([curious]).released["w"].tolist() == [1.0, 1.0]
