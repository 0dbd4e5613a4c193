import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics.goals import psnr_at_least
from reconrisk.studies.audit.demo import TRIALS, run_demo, self_check
from reconrisk.studies.audit.result import Verdict


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_self_check_inverts_the_layer_whatever_its_weights(seed):
    assert self_check(seed=seed) < 1e-5


def test_the_self_check_notices_a_wrong_gradient(monkeypatch):
    exact = torch.func.grad

    def wrong(function):
        return lambda values: {name: value + 1e-3 for name, value in exact(function)(values).items()}

    monkeypatch.setattr(torch.func, "grad", wrong)
    assert self_check() > 1e-5


def test_the_demo_refuses_settings_before_it_works():
    with pytest.raises(InvalidInput, match=r"trials=0 >= 1"):
        run_demo(trials=0)
    with pytest.raises(InvalidInput, match="seed"):
        run_demo(seed=-1)


def test_the_demo_rebuilds_digits_unless_noise_forbids_it_and_repeats_itself():
    threads, plans = torch.get_num_threads(), []
    done = run_demo(trials=1, show_plan=plans.append)
    result = done.audit
    assert torch.get_num_threads() == threads
    assert done.accuracy > 0.85  # one pass over 4,000 digits
    assert len(plans) == 1
    assert result.is_complete
    assert result.subject.is_bundled
    assert [line.verdict for line in result.lines if line.goal == psnr_at_least(20)] == [
        Verdict.LEAKS,
        Verdict.NO_GAIN,
        Verdict.NO_GAIN,
        Verdict.LEAKS,
    ]
    assert result.lines[0].worst_score > 40
    equal, optimal = (
        next(each for each in result.lines[place].comparisons if each.is_compared).guarantee.value for place in (1, 2)
    )
    assert 0 < equal == optimal < 0.5  # the same mechanism
    assert len(result.pictures) == 4
    assert result.signature == "reconrisk demo --seed 0 --trials 1"
    assert run_demo(trials=1).audit.exposures == result.exposures


def test_the_command_has_the_number_of_trials_of_the_library():
    from reconrisk.cli.app import app

    (demo,) = [item.callback for item in app.registered_commands if item.callback.__name__ == "demo"]
    assert demo.__kwdefaults__ is None
    assert TRIALS in demo.__defaults__
