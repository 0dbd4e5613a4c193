import itertools

import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.integrations.fisher_accountant.ledger import InformationLedger

VALUES = torch.tensor([[9.0, 1.0, 4.0], [2.0, 6.0, 5.0], [1.0, 3.0, 0.0], [7.0, 2.0, 2.0], [3.0, 8.0, 1.0]]).double()


def every_outcome(monkeypatch, steps, records=3, block=2, values=VALUES, probes=((0.0,), (0.0,))):
    """Ledgers after ``steps`` for each sequence of random orders, all equally likely."""
    cycles = -(-steps // -(-records // block))
    for orders in itertools.product(itertools.permutations(range(records)), repeat=cycles):
        coming = iter(orders)
        monkeypatch.setattr(torch, "randperm", lambda *_, coming=coming, **__: torch.tensor(next(coming)))
        ledger = InformationLedger(records, block)
        for step in range(steps):
            chosen = ledger.next_block(torch.Generator())
            ledger.add(values[step, chosen] + torch.tensor(probes).double())
        yield ledger


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_the_expectation_is_exact_after_any_number_of_steps_with_unequal_blocks(monkeypatch, steps):
    totals = torch.stack([ledger.totals() for ledger in every_outcome(monkeypatch, steps)])
    torch.testing.assert_close(totals.mean(0), VALUES[:steps].sum(0), rtol=1e-12, atol=0)


def test_finished_cycles_never_promise_a_smaller_variance_than_they_have(monkeypatch):
    ledgers = list(every_outcome(monkeypatch, 6, values=VALUES[[0, 1, 2, 3, 4, 0]]))
    promised = torch.stack([ledger.standard_errors().square() for ledger in ledgers]).mean(0)
    actual = torch.stack([ledger.totals() for ledger in ledgers]).var(0, unbiased=False)
    assert (promised >= actual * (1 - 1e-12)).all()


def test_an_odd_number_of_cycles_counts_the_last_one_too(monkeypatch):
    calm = torch.tensor([[1.0, 1.0, 1.0]] * 4 + [[0.0, 5.0, 1.0], [9.0, 0.0, 1.0]]).double()
    ledgers = list(every_outcome(monkeypatch, 6, values=calm))
    promised = torch.stack([ledger.standard_errors().square() for ledger in ledgers]).mean(0)
    actual = torch.stack([ledger.totals() for ledger in ledgers]).var(0, unbiased=False)
    assert (actual[:2] > 1).all()
    assert (promised >= actual * (1 - 1e-12)).all()


def test_records_not_evaluated_in_an_unfinished_cycle_keep_their_prediction():
    ledger, rng = InformationLedger(4, 1), torch.Generator().manual_seed(0)
    for _ in range(13):
        ledger.next_block(rng)
        ledger.add(torch.full((2, 1), 3.0))
    torch.testing.assert_close(ledger.totals(), torch.full((4,), 39.0, dtype=torch.float64))
    assert (ledger.standard_errors() == 0).all()


def test_nothing_is_known_of_the_error_before_three_cycles():
    ledger, rng = InformationLedger(4, 2), torch.Generator().manual_seed(0)
    for step in range(1, 7):
        ledger.next_block(rng)
        ledger.add(torch.full((2, 2), 3.0))
        assert ledger.standard_errors().isinf().all() == (step < 6)


def test_records_evaluated_at_every_step_have_the_error_of_their_probes():
    ledger, samples = InformationLedger(2, 5), torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    for _ in range(3):
        ledger.next_block(torch.Generator())
        ledger.add(samples)
    assert ledger.totals().tolist() == [6.0, 15.0]
    torch.testing.assert_close(ledger.standard_errors(), torch.tensor([3.0, 0.0]).double().sqrt())  # 3 * 2/2
    assert ledger.degrees == 3


def test_values_that_are_not_finite_make_the_record_infinite_for_good():
    ledger, rng = InformationLedger(3, 1), torch.Generator().manual_seed(0)
    for _ in range(9):
        block = ledger.next_block(rng)
        ledger.add(torch.full((2, 1), torch.nan if int(block) == 1 else 1.0))
    assert ledger.totals().tolist() == [9.0, torch.inf, 9.0]
    assert ledger.standard_errors().tolist() == [0.0, torch.inf, 0.0]


@pytest.mark.parametrize("cut", range(8))
def test_restored_anywhere_it_goes_on_identically(cut):
    def go(ledger, rng, steps):
        for step in steps:
            block = ledger.next_block(rng)
            ledger.add(torch.stack([block + step, block * step]))

    rng = torch.Generator().manual_seed(3)
    whole = InformationLedger(7, 3)
    go(whole, rng, range(8))
    rng = torch.Generator().manual_seed(3)
    first, second = InformationLedger(7, 3), InformationLedger(7, 3)
    go(first, rng, range(cut))
    second.restore(first.tensors())
    go(second, rng, range(cut, 8))
    for name, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[name]), name


def test_a_foreign_state_is_refused_and_changes_nothing():
    ledger, other = InformationLedger(3, 1), InformationLedger(4, 1)
    with pytest.raises(InvalidInput, match="of an accountant of the same records"):
        ledger.restore(other.tensors())
    assert ledger.records == 3
