"""Epsilon at delta 1e-5 of subsampled training: q=.01, T=10,000, sigma=1."""

from __future__ import annotations

from collections.abc import Callable

from reconrisk.accounting.subsampled import _compose_cached, epsilon_of_training
from reconrisk.core.mechanism import dp_sgd

RUN = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=10_000)
DELTA = 1e-5


def ours() -> Callable[[], object]:
    """Both directions, certified."""

    def work() -> float:
        _compose_cached.cache_clear()
        return epsilon_of_training(RUN, DELTA)

    return work


def dp_accounting() -> Callable[[], object]:
    """The PLD accountant of dp-accounting."""
    import dp_accounting as dp

    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 10_000)
    return lambda: float(dp.pld.PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(DELTA))


def opacus_prv() -> Callable[[], object]:
    """The PRV accountant of opacus."""
    from opacus.accountants import PRVAccountant

    def work() -> float:
        accountant = PRVAccountant()
        accountant.history = [(1.0, 0.01, 10_000)]
        return float(accountant.get_epsilon(DELTA))

    return work


def opacus_rdp() -> Callable[[], object]:
    """The RDP accountant of opacus."""
    from opacus.accountants import RDPAccountant

    def work() -> float:
        accountant = RDPAccountant()
        accountant.history = [(1.0, 0.01, 10_000)]
        return float(accountant.get_epsilon(DELTA))

    return work


CONTENDERS = {
    "reconrisk": ours,
    "dp-accounting": dp_accounting,
    "opacus, PRV": opacus_prv,
    "opacus, RDP": opacus_rdp,
}
