import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.studies.common.deadline import Deadline, seconds_from_budget


@given(st.floats(0.01, 1e5).map(lambda number: round(number, 3)))
def test_units_are_what_they_say(number):
    assert seconds_from_budget(number) == seconds_from_budget(str(number)) == number
    assert seconds_from_budget(f"{number} min") == pytest.approx(60 * number)
    assert seconds_from_budget(f"{number}H") == pytest.approx(3600 * number)


@pytest.mark.parametrize("budget", [None, "none"])
def test_no_budget_is_no_limit(budget):
    assert seconds_from_budget(budget) is None
    assert Deadline(seconds_from_budget(budget)).left == float("inf")


@pytest.mark.parametrize("budget", ["soon", "2 days", "1.2.3s", "", "-3s", 0, -1, float("nan"), "0min"])
def test_what_is_no_time_is_refused(budget):
    with pytest.raises(InvalidInput, match="budget"):
        seconds_from_budget(budget)


def wait(seconds):
    """Sleep as an attack computes: in small steps of Python, so that an interrupt is noticed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


def test_the_main_thread_is_interrupted_when_time_is_up():
    deadline = Deadline(0.1)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), deadline.watching():
        wait(30)
    assert time.monotonic() - begun < 10
    assert deadline.has_struck


def test_whoever_ends_in_time_is_left_alone():
    deadline = Deadline(0.2)
    with deadline.watching():
        pass
    wait(0.4)
    assert not deadline.has_struck
    assert deadline.left < 0


def test_a_strike_that_comes_too_late_does_nothing():
    deadline = Deadline(1000.0)
    with deadline.watching():
        pass
    deadline._strike()
    wait(0.05)
    assert not deadline.has_struck


def test_a_process_that_ignores_interrupts_keeps_its_budget_and_goes_on_ignoring_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), Deadline(0.1).watching():
            wait(30)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_not_interrupted():
    ended = []

    def work():
        with Deadline(0.05).watching():
            wait(0.3)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]
