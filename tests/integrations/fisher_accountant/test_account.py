import numpy as np
import pytest
import torch

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Composed, dp_sgd
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.integrations.fisher_accountant.account import FisherAccount, average_accounts
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.integrations.fisher_accountant.ledger import InformationLedger
from tests.integrations.fisher_accountant.clipped_linear import STEP, half_square, linear_task


def test_bounds_are_the_dimension_over_the_upper_limit_and_capped_by_a_constant_guess():
    model, inputs, labels = linear_task()
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=9, records=[3, 7])
    for _ in range(3):
        accountant.step(**STEP)
    upper = accountant.account().upper_traces(0.95)
    assert (upper > accountant.traces()).all()
    torch.testing.assert_close(accountant.mse_lower_bounds(), 20 / upper, rtol=1e-12, atol=0)
    torch.testing.assert_close(accountant.dfil(), accountant.traces() / 20)
    assert accountant.mse_lower_bounds(data_range=(0.0, 0.1)).tolist() == pytest.approx([0.0025] * 2)


def test_summary_tells_the_distribution_the_extremes_and_what_to_keep_secret():
    model, inputs, labels = linear_task(records=30)
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=4, records=range(5, 25))
    for _ in range(3):
        accountant.step(**STEP)
    summary, dfil = accountant.summary(data_range=(-4.0, 4.0)), accountant.dfil()
    assert summary.maximum == float(dfil.max())
    assert summary.median == float(np.sort(dfil.numpy())[9])
    assert summary.most_exposed[0].record == 5 + int(dfil.argmax())
    assert summary.least_exposed[0].record == 5 + int(dfil.argmin())
    assert [row.dfil for row in summary.most_exposed] == sorted(dfil.tolist(), reverse=True)[:10]
    assert sum(summary.histogram) + summary.not_positive == 20
    assert summary.edges[0] == pytest.approx(float(dfil.min()))
    assert summary.edges[-1] == pytest.approx(float(dfil.max()))
    run = dp_sgd(noise_multiplier=0.8, clip_norm=0.5, sampling_probability=0.25, steps=3)
    assert summary.rdp_bound == mse_lower_bound_from_rdp(replace_one_order_two(run), low=-4.0, high=4.0)
    assert summary.constant_guess_mse == 16
    assert summary.least_mse_lower_bound > summary.rdp_bound.value
    assert from_json(to_json(summary)) == summary
    text = str(summary)
    assert "do not publish" in text
    assert "average several runs" in text
    assert "constant guess" in text
    assert "Poisson" in text
    assert "approximate, by Student's distribution" in text


def test_runs_are_averaged_before_they_are_inverted():
    model, inputs, labels = linear_task()
    runs = []
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=2, records=[0, 1], rng=rng)
        accountant.step(**STEP)
        runs.append(accountant)
    together = average_accounts(runs)
    stacked = torch.stack([run.traces() for run in runs])
    torch.testing.assert_close(together.traces, stacked.mean(0))
    torch.testing.assert_close(together.standard_errors, stacked.std(0) / 2)
    assert (together.runs, together.degrees) == (4, 3)
    assert (20 / together.traces <= (20 / stacked).mean(0)).all()
    assert "average several runs" not in str(together.summary())
    runs[0].step(**STEP)
    with pytest.raises(InvalidInput, match="phases"):
        average_accounts(runs)


def test_the_mechanism_of_the_run_has_its_phases():
    model, inputs, labels = linear_task()
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=2, records=[0], clip="smooth")
    for noise in (1.0, 1.0, 2.0):
        accountant.step(noise_multiplier=noise, clip_norm=1.0, sampling_probability=0.5)
    one, other = accountant.account().mechanism().mechanisms
    assert isinstance(accountant.account().mechanism(), Composed)
    assert one.steps == 2
    assert one.mechanism.mechanism.noise_multiplier == pytest.approx(1 / 1.1153)
    assert other.mechanism.noise_std == pytest.approx(2.0)


def test_shuffled_batches_get_no_amplification_and_one_gaussian_step_per_epoch():
    model, inputs, labels = linear_task()
    shuffled, plain = (
        FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=3, records=[0], subsampling=kind)
        for kind in ("exact", "none")
    )
    for _ in range(9):
        shuffled.step(**STEP, poisson=False)
        plain.step(**STEP)
    assert torch.equal(shuffled.traces(), plain.traces())
    assert shuffled.account().mechanism() == dp_sgd(noise_multiplier=0.8, clip_norm=0.5, steps=3)  # 9 steps of 4
    assert "not Poisson samples" in str(shuffled.summary())


@pytest.mark.parametrize("cycles", [3, 4])
def test_upper_limits_miss_about_as_often_as_they_say(cycles):
    """Cycles of two blocks, two probes, each a mean of 19 squares: limits of the trace itself miss 6.3 % of four."""
    missed, rng, runs, records = 0.0, torch.Generator().manual_seed(0), 250, 40
    for _ in range(runs):
        ledger = InformationLedger(records, records // 2)
        for _ in range(2 * cycles):
            shape = (2, len(ledger.next_block(rng)), 19)
            ledger.add(torch.randn(shape, generator=rng, dtype=torch.float64).square().mean(-1))
        account = FisherAccount(
            traces=ledger.totals(),
            standard_errors=ledger.standard_errors(),
            least=ledger.finished,
            degrees=ledger.degrees,
            dimension=1,
            records=torch.arange(records),
            phases=(),
            overshoot=1.0,
            subsampling="exact",
        )
        upper = account.upper_traces(0.95)
        assert upper.isfinite().all()
        missed += float((upper < 2 * cycles).double().mean()) / runs
    # three standard deviations of a share of 5 % of 10000, less than what still separates the two ways
    assert missed < 0.05 + 3 * (0.05 * 0.95 / (runs * records)) ** 0.5 + 0.002
