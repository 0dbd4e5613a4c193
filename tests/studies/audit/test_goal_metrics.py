"""Goals in metrics beyond the usual ones: measured when they are named, also of trials that are stored already."""

import sys
from dataclasses import dataclass

import pytest
import torch

import reconrisk as rr
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.metrics.lpips import _LAYERS, Convolution
from reconrisk.releases.release import ForwardRelease
from tests.offered_plugins import offer_plugins

INPUTS = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(6) % 2)
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, INPUTS, DATA.labels)

SOURCE = """
from reconrisk.core.metric import Metric

def largest_error():
    return Metric("largest", lambda one, other: (one - other).double().abs().flatten(1).amax(1), 0.0, float("inf"))
"""


@dataclass(eq=False)
class Reader:
    """Reads the record off a release that is the record, and counts its calls."""

    calls: int = 0
    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __repr__(self) -> str:
        return "reader()"

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        self.calls += 1
        account = AttackReport("reader()", Status(Ending.EXACT, "read"), (0.0,), Cost(0.0, 1))
        return Reconstruction((observation.released["y"] + 0.01)[None].clamp(0, 1), account)


def run(goals, reader=None, **settings):
    return rr.audit(RELEASE, DATA, attacks=[reader or Reader()], goals=goals, trials=3, budget=None, **settings)


@pytest.fixture
def largest_error(tmp_path, monkeypatch):
    points = {"reconrisk.metrics": {"largest_error": "stand_in_metric:largest_error"}}
    offer_plugins(tmp_path / "plugin", monkeypatch, points, SOURCE, module="stand_in_metric")


def test_a_goal_in_a_metric_of_a_plugin_is_measured(largest_error):
    near, nearer = run(["largest_error<=0.011", "largest_error<=0.001"]).lines
    assert (near.success.value, nearer.success.value) == (1.0, 0.0)
    assert str(near.goal) == "largest_error<=0.011"
    assert near.comparisons == ()  # no mean squared error corresponds to it


def test_stored_trials_without_the_metric_are_run_again_and_others_are_not(largest_error, tmp_path):
    store = tmp_path / "store.sqlite"
    first, again, third = Reader(), Reader(), Reader()
    run("psnr>=30", first, store=store)
    line = run(["largest_error<=0.011"], again, store=store).lines[0]
    run(["psnr>=30", "ssim>=0.5"], third, store=store)
    assert (first.calls, again.calls, third.calls) == (3, 3, 0)
    assert line.success.value == 1.0


def test_a_goal_in_lpips_takes_the_weights_of_torchvision(monkeypatch):
    rng = torch.Generator().manual_seed(5)
    weights = tuple(
        Convolution(torch.randn(layer.shape, generator=rng) / 10, torch.zeros(layer.shape[0])) for layer in _LAYERS
    )
    monkeypatch.setattr(sys.modules["reconrisk.metrics.lpips"], "torchvision_alexnet", lambda: weights)
    near, nearer = run(["lpips<=0.2", "lpips<=1e-9"]).lines
    assert (near.success.value, nearer.success.value) == (1.0, 0.0)


def test_a_goal_in_a_metric_of_images_is_refused_for_rows():
    rows = Dataset("rows", INPUTS[:, 0, 0], DATA.labels)
    release = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, rows.inputs, rows.labels)
    with pytest.raises(rr.InvalidInput, match="to use one of psnr, mse, ncc for records of shape"):
        rr.audit(release, rows, goals="lpips<=0.2")


def test_a_metric_that_raises_is_refused_with_what_it_raised(tmp_path, monkeypatch):
    source = "from reconrisk.core.metric import Metric\ndef raises(): return Metric('raises', max, 0.0, 1.0)\n"
    points = {"reconrisk.metrics": {"raises": "stand_in_metric:raises"}}
    offer_plugins(tmp_path, monkeypatch, points, source, module="stand_in_metric")
    with pytest.raises(rr.InvalidInput, match=r"^Expected scores of what .* A metric raised this\.$"):
        run("raises<=0.5")
