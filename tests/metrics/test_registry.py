"""Rows of metrics: they say of each metric what it says of itself, and load none."""

import inspect
import subprocess
import sys

import pytest
import torch

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric
from reconrisk.metrics.registry import METRICS, fitting_metrics, metric_by_name
from tests.offered_plugins import offer_plugins


@pytest.mark.parametrize("name", METRICS)
def test_a_row_says_what_its_metric_says_of_itself(name, random_backbone):
    row, build = METRICS[name], getattr(rr.metrics, name)
    assert row.load() is build
    parameters = inspect.signature(build).parameters
    arguments = {"backbone": random_backbone} if name == "lpips" else {}
    arguments |= {"judge": torch.nn.Identity().eval()} if name == "judge_kl" else {}
    arguments |= {"data_range": (0, 1)} if "data_range" in parameters else {}
    metric = build(**arguments)
    assert (metric.name, metric.best, metric.worst) == (row.name, row.best, row.worst)
    assert metric.higher_is_better == row.higher_is_better
    required = {key for key, each in parameters.items() if each.default is each.empty} - {"data_range"}
    assert row.is_goal == (not required)
    assert row.label
    assert row.summary.endswith(".")


def test_every_public_metric_has_its_row():
    constructors = {
        name for name in rr.metrics.__all__
        if inspect.signature(getattr(rr.metrics, name)).return_annotation in (Metric, "Metric")
    }  # fmt: skip
    assert constructors == set(METRICS)


@pytest.mark.parametrize("name", [name for name, row in METRICS.items() if row.smallest_image])
def test_records_that_a_row_does_not_fit_are_refused_by_the_metric(name, random_backbone):
    row = METRICS[name]
    metric = rr.metrics.lpips(random_backbone, data_range=1.0) if name == "lpips" else row.configure((0.0, 1.0))
    assert not row.fits((30,))
    with pytest.raises(InvalidInput, match="images"):
        metric(torch.zeros(2, 30), torch.zeros(2, 30))
    side = row.smallest_image
    assert row.fits((1, side, side))
    assert metric(torch.zeros(2, 1, side, side), torch.zeros(2, 1, side, side)).shape == (2,)
    assert not row.fits((1, side - 1, side))


def test_names_load_no_torch():
    program = "import sys, reconrisk.metrics.goals as found; found.psnr_at_least(20); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_those_that_fit_are_configured_once_and_in_order():
    names = ("ssim", "psnr", "mse", "psnr")
    assert [metric.name for metric in fitting_metrics(names, (1, 8, 8), (0.0, 255.0))] == ["ssim", "psnr", "mse"]
    assert [metric.name for metric in fitting_metrics(names, (64,), (0.0, 255.0))] == ["psnr", "mse"]
    assert repr(metric_by_name("psnr", data_range=(0.0, 255.0))) == "psnr(data_range=(0.0, 255.0))"


def test_a_metric_that_takes_more_than_a_name_is_refused():
    with pytest.raises(InvalidInput, match="metric='judge_kl' to need no further settings"):
        metric_by_name("judge_kl", data_range=(0.0, 1.0))
    with pytest.raises(InvalidInput, match=r"metric='pnsr' to be one of .* Did you mean psnr\?"):
        metric_by_name("pnsr", data_range=(0.0, 1.0))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def mine(): return 3", "metric='mine' to return a reconrisk.core.metric.Metric, found int"),
        ("mine = 3", "to be a function, stand_in_metric:mine is a int"),
    ],
)
def test_a_plugin_that_is_no_metric_is_refused(tmp_path, monkeypatch, source, message):
    points = {"reconrisk.metrics": {"not_a_metric": "stand_in_metric:mine"}}
    offer_plugins(tmp_path, monkeypatch, points, source, module="stand_in_metric")
    with pytest.raises(InvalidInput, match=message):
        metric_by_name("not_a_metric", data_range=(0.0, 1.0))


def test_a_plugin_is_configured_under_its_name_for_the_range(tmp_path, monkeypatch):
    source = (
        "from reconrisk.core.metric import Metric\n"
        "def mine(*, data_range): return Metric('other', lambda e, t: (e - t).double().flatten(1).abs().amax(1), 0.0, "
        "data_range[1])\n"
    )
    points = {"reconrisk.metrics": {"largest": "stand_in_metric:mine"}}
    offer_plugins(tmp_path, monkeypatch, points, source, module="stand_in_metric")
    metric = metric_by_name("largest", data_range=(0.0, 8.0))
    assert (metric.name, metric.worst) == ("largest", 8.0)
    assert metric(torch.ones(1, 2), torch.zeros(1, 2)).tolist() == [1.0]
