import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import reconrisk.studies.leakage.leakage as module
from reconrisk.accounting.subsampled_fisher import subsampled_information
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, PoissonSampled
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data.dataset import Dataset
from reconrisk.studies.leakage.leakage import leakage
from reconrisk.studies.leakage.report import NOTICE

WIDTH = 6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def total(outputs, labels):
    return outputs.sum()


def toy(count=20, seed=1):
    return Dataset("toy", torch.rand(count, WIDTH, generator=generator(seed)), torch.zeros(count))


def plain():
    return nn.Linear(WIDTH, 1, bias=False)


def measured(data=None, model=None, **options):
    settings = {"noise_multiplier": 0.5, "clip_norm": 1.0, "loss_fn": total, "rng": generator(), **options}
    return leakage(plain() if model is None else model, toy() if data is None else data, **settings)


def exact_squares(inputs, clip_norm):
    """The gradient of the sum of outputs is the record: J is the identity, or the projection across it, shortened."""
    norms = inputs.double().norm(dim=1)
    squares = torch.where(norms > clip_norm, (WIDTH - 1) * (clip_norm / norms) ** 2, WIDTH)
    return squares, torch.where(norms > clip_norm, 0.0, 1.0), norms.clamp(max=clip_norm)


@pytest.mark.parametrize("rate", [1.0, 0.2, 0.9])
@pytest.mark.parametrize("clip_norm", [0.7, 1.4, 5.0])
def test_a_linear_model_leaks_what_the_closed_form_says(rate, clip_norm):
    data = toy()
    report = measured(data, clip_norm=clip_norm, sampling_probability=rate, relative_error=0.02)
    squares, radial, norms = exact_squares(data.inputs, clip_norm)
    std = 0.5 * clip_norm
    across, along = (torch.from_numpy(h) for h in subsampled_information((norms / std).numpy(), rate))
    exact = rate / std**2 * (across * squares + (along - across) * radial) / WIDTH
    found = torch.tensor(report.dfil, dtype=torch.float64)
    assert found.sub(exact).div(exact).abs().max() < 5 * 0.02  # five standard errors
    assert (torch.tensor(report.mse_lower_bounds) <= 1 / exact).all()
    inside = (torch.tensor(report.low) <= exact) & (exact <= torch.tensor(report.high))
    assert inside.sum() >= 15  # of 20 at 95 %: fewer has probability 3e-4
    assert report.mechanism == (
        Gaussian(0.5, clip_norm) if rate == 1 else PoissonSampled(Gaussian(0.5, clip_norm), rate)
    )


def test_sampling_counts_the_direction_of_the_gradient_by_its_own_factor():
    # a record of one value moves its gradient along itself only, and |J|^2 = 1 is known exactly from that
    data = Dataset("toy", torch.tensor([[0.9]]), torch.zeros(1))
    report = measured(data, nn.Linear(1, 1, bias=False), clip_norm=5.0, noise_multiplier=0.2, sampling_probability=0.1)
    along = float(subsampled_information(0.9, 0.1).along)
    assert report.low[0] == pytest.approx(0.1 * along, rel=1e-6)  # single precision of the norm
    assert report.dfil[0] == pytest.approx(0.1 * along, rel=5 * 0.05)


def test_the_squared_error_of_a_regression_leaks_what_the_closed_form_says():
    # g = 2 r x with r = <w,x> - y, so J = 2 (r 1 + x w^T) and |J|^2 = 4 (d r^2 + 2 r <w,x> + |x|^2 |w|^2)
    data = replace(toy(), labels=torch.linspace(-1, 1, 20))
    model = plain()
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, WIDTH)[None])
    report = measured(data, model, loss_fn=None, clip_norm=100.0, noise_multiplier=0.01, relative_error=0.05)
    product = (data.inputs @ model.weight[0]).detach()
    residual = product - data.labels
    exact = 4 * (
        WIDTH * residual**2 + 2 * residual * product + data.inputs.square().sum(1) * model.weight[0].square().sum()
    )
    assert torch.tensor(report.dfil).mul(WIDTH).sub(exact).div(exact).abs().max() < 5 * 0.05
    assert report.loss == "squared_error"


def test_the_standard_error_target_is_met():
    data = toy(200)
    report = measured(data, clip_norm=5.0, noise_multiplier=0.2, relative_error=0.1)
    errors = torch.tensor(report.dfil) - 1  # J is the identity and the noise is one
    assert 0.04 < errors.square().mean().sqrt() < 0.12
    assert set(report.probes) <= {64, 128, 256}


def test_more_records_are_at_the_right_end_and_in_the_right_order():
    lengths = torch.tensor([3.0, 1.1, 2.0, 6.0, 1.5])
    inputs = lengths[:, None] * torch.eye(WIDTH)[:5]
    data = Dataset("toy", inputs, torch.tensor([0, 1, 2, 3, 4]), data_range=(0.0, 6.0), classes=tuple("abcde"))
    report = measured(data, relative_error=0.05)
    # all are clipped, and a longer gradient is shortened more
    assert [row.record for row in report.most_exposed()] == [1, 4, 2, 0, 3]
    assert [row.label for row in report.least_exposed(2)] == ["d", "a"]
    assert report.records == (0, 1, 2, 3, 4)
    assert report.maximum == report.dfil[1]
    assert report.median == report.quantile(0.5) == report.dfil[2]
    assert report.quantile(1.0) == report.maximum
    assert report.quantile(0.0) == min(report.dfil)
    assert sum(count for _, _, count in report.histogram()) == 5
    assert report.guarantee.value == pytest.approx(min(*report.mse_lower_bounds, report.constant_guess_mse))


def test_half_the_noise_leaks_four_times_as_much():
    loud, quiet = measured(noise_multiplier=1.0), measured(noise_multiplier=0.5)
    np.testing.assert_allclose(quiet.dfil, 4 * np.array(loud.dfil), rtol=1e-12)


def test_sampling_never_leaks_more_than_taking_part_for_certain():
    certain, sampled = measured(), measured(sampling_probability=0.3)
    assert (np.array(sampled.dfil) < 0.5 * np.array(certain.dfil)).all()
    assert any("takes part" in each for each in sampled.guarantee.assumptions)
    assert not any("takes part" in each for each in certain.guarantee.assumptions)


def test_only_named_parameters_are_released():
    model = nn.Linear(WIDTH, 1)
    options = {"loss_fn": None, "clip_norm": 100.0, "noise_multiplier": 0.01}
    report = measured(model=model, parameters=["bias"], **options)
    # the gradient by the bias is 2 (<w,x> + b - y), so its derivative is 2 w for every record
    exact = 4 * float(model.weight.detach().square().sum()) / WIDTH
    np.testing.assert_allclose(report.dfil, exact, rtol=5 * 0.05)
    assert report.parameters == ("bias",)
    assert "only the parameters bias" in str(report)
    assert report.median < measured(model=model, **options).median


def test_a_record_that_leaks_nothing_visible_has_no_infinite_bound():
    report = measured(loss_fn=lambda outputs, labels: 0 * outputs.sum())
    assert set(report.dfil) == {0.0}
    # single precision resolves derivatives down to 2^-23, so 1/(d (2^-23/0.5)^2 / d)
    assert report.mse_lower_bounds[0] == pytest.approx(0.25 * 2**46)
    assert report.guarantee.value == report.constant_guess_mse == 0.25
    assert report.histogram() == ()
    assert "zero or infinite" in str(report)


def test_a_derivative_that_is_not_finite_leaks_without_limit():
    data = Dataset("toy", torch.tensor([[0.0] * WIDTH, [0.5] * WIDTH]), torch.zeros(2))
    model = plain()
    nn.init.ones_(model.weight)
    report = measured(data, model, loss_fn=lambda outputs, labels: outputs.abs().sqrt().sum())
    assert report.dfil[0] == report.high[0] == math.inf
    assert report.mse_lower_bounds[0] == report.guarantee.value == 0
    assert 0 < report.dfil[1] < math.inf
    assert from_json(to_json(report)) == report


def test_smooth_clipping_counts_its_longer_gradients_as_less_noise():
    report = measured(smooth_clipping=True)
    assert report.mechanism.noise_multiplier == pytest.approx(0.5 / 1.1153)
    assert report.mechanism.clip_norm == pytest.approx(1.1153)
    assert report.clipping == "smooth"
    assert report.dfil != measured().dfil


def test_records_are_drawn_at_random_and_the_same_for_the_same_seed():
    first, again, other = (measured(records=5, rng=generator(seed)) for seed in (3, 3, 4))
    assert first == again
    assert len(first.records) == first.requested == 5
    assert list(first.records) == sorted(first.records)
    assert first.records != other.records
    assert first.seed == 3


def test_the_report_reads_back_and_says_that_it_is_private():
    report = measured(sampling_probability=0.5, records=3)
    text = to_json(report)
    assert from_json(text) == report
    plain_report = json.loads(text)
    assert plain_report["version"] == 1
    assert plain_report["notice"] == NOTICE
    assert "do not publish" in NOTICE
    assert str(report).startswith(NOTICE)


def test_a_report_of_another_version_or_with_missing_columns_is_refused():
    stored = json.loads(to_json(measured(records=2)))
    with pytest.raises(
        InvalidInput, match="Expected leakage-report of version 1, the only one that this reconrisk reads"
    ):
        from_json(json.dumps({**stored, "version": 2}))
    with pytest.raises(InvalidInput, match=r"Expected len\(low\)=1 to be 2"):
        from_json(json.dumps({**stored, "low": stored["low"][:1]}))


@pytest.fixture
def interrupted_after(monkeypatch):
    def arm(calls):
        probe, left = module.probe_clipped_gradients, [calls]

        def probing(*words, **options):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return probe(*words, **options)

        monkeypatch.setattr(module, "probe_clipped_gradients", probing)
        monkeypatch.setattr(module, "_CHUNK", 4)

    return arm


def test_an_interrupted_run_gives_what_is_done(interrupted_after):
    whole = measured(relative_error=0.9)
    interrupted_after(3)  # 64 probes suffice for each chunk
    report = measured(relative_error=0.9)
    assert not report.is_complete
    assert whole.is_complete
    assert (len(report.records), report.requested) == (12, 20)
    assert set(report.records) != set(range(12))  # a random sample, not the first
    assert "INTERRUPTED: 12 of 20 records, a random sample of them, are done." in str(report)
    assert from_json(to_json(report)) == report


def test_an_unfinished_chunk_does_not_count(interrupted_after):
    interrupted_after(2)
    with pytest.raises(KeyboardInterrupt):  # 1/sqrt(3 k) < 0.02 needs more than two rounds
        measured(relative_error=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": 0.0}, "Expected noise_multiplier=0.0 > 0."),
        ({"clip_norm": -1.0}, "Expected clip_norm=-1.0 > 0."),
        ({"sampling_probability": 0.0}, "Expected sampling_probability=0.0 > 0."),
        ({"sampling_probability": 1.5}, "Expected sampling_probability=1.5 in"),
        ({"relative_error": 0.001}, "Expected relative_error=0.001 in [0.005, 1)."),
        ({"relative_error": 1.0}, "Expected relative_error=1.0 in [0.005, 1)."),
        ({"confidence": 0.1}, "Expected confidence=0.1 in [0.5, 1)."),
        ({"records": 0}, "Expected records=0 >= 1."),
        ({"records": 21}, "Expected records=21 <= 20, the number of records."),
        ({"parameters": ["head"]}, "Expected parameters='head' to name one of weight."),
        ({"data": replace(toy(), labels=None)}, "Expected dataset='toy' to have labels."),
        ({"model": nn.Linear(5, 1)}, "Expected a model that takes records of shape (6,)"),
        ({"model": nn.Sequential(plain(), nn.Dropout())}, "Expected 1.training=True to be False for Dropout."),
    ],
)
def test_bad_settings_are_refused_before_anything_is_computed(options, message, monkeypatch):
    monkeypatch.delattr(module, "probe_clipped_gradients")
    with pytest.raises(InvalidInput) as caught:
        measured(**options)
    assert str(caught.value).startswith(message)


def test_records_may_be_a_pair_of_tensors_as_in_audits():
    pair = torch.rand(3, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0])
    settings = {"noise_multiplier": 1.0, "clip_norm": 1.0}
    model = nn.Linear(2, 2)
    found = leakage(model, pair, **settings, rng=torch.Generator().manual_seed(0))
    same = leakage(model, Dataset("records", *pair), **settings, rng=torch.Generator().manual_seed(0))
    assert found.to_rows() == same.to_rows()
    with pytest.raises(InvalidInput, match="a pair of tensors"):
        leakage(model, 3, **settings, rng=torch.Generator())
