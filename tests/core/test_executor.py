import threading
import time

import pytest

from reconrisk.core.errors import InvalidInput
from reconrisk.core.executor import IN_PROCESS, InProcessExecutor, check_executor
from reconrisk.core.progress import Cancelled, CancelToken, ProgressBar, check_cancelled, track


def work(seconds):
    """Compute as an attack does: in small steps, each of which asks whether to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check_cancelled()
        time.sleep(0.002)


def test_a_task_ends_when_its_time_is_up():
    token, begun = CancelToken(0.1), time.monotonic()
    with pytest.raises(Cancelled), token.active():
        work(30)
    assert time.monotonic() - begun < 10
    assert token.is_cancelled


def test_whoever_ends_in_time_is_left_alone():
    token = CancelToken(0.05)
    with token.active():
        pass
    work(0.1)
    assert token.seconds_left < 0
    assert CancelToken().seconds_left == float("inf")


def test_a_cancelled_task_is_interrupted_once_so_that_it_can_conclude():
    token = CancelToken()
    token.cancel()
    with token.active():
        with pytest.raises(Cancelled):
            check_cancelled()
        check_cancelled()
        with token.active():  # the same token inside does not interrupt again
            check_cancelled()
    with token.active(), pytest.raises(Cancelled):
        check_cancelled()


def test_an_outer_token_reaches_tasks_under_an_inner_one():
    outer = CancelToken()
    with outer.active(), CancelToken().active():
        check_cancelled()
        outer.cancel()
        with pytest.raises(Cancelled):
            check_cancelled()


def test_tasks_in_other_threads_keep_their_budget():
    ended = []

    def run():
        try:
            with CancelToken(0.05).active():
                work(30)
        except Cancelled:
            ended.append(True)

    begun = time.monotonic()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=20)
    assert ended == [True]
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("loop", [lambda: list(track(range(3), "steps")), lambda: ProgressBar("steps").advance()])
def test_loops_with_a_bar_ask_whether_to_stop(loop):
    token = CancelToken()
    token.cancel()
    with token.active(), pytest.raises(Cancelled):
        loop()


def test_tasks_run_in_their_order_and_none_begins_after_a_stop():
    token, begun = CancelToken(), []

    def square(number):
        begun.append(number)
        if number == 2:
            token.cancel()
        return number**2

    assert list(IN_PROCESS.run(square, range(5), token=token)) == [(0, 0), (1, 1), (2, 4)]
    assert begun == [0, 1, 2]


def test_tasks_are_read_when_they_are_needed():
    asked = []

    def tasks():
        for number in range(3):
            asked.append(number)
            yield number

    for task, outcome in IN_PROCESS.run(abs, tasks(), token=CancelToken()):
        assert (task, outcome) == (asked[-1], asked[-1])
        if task == 1:
            break
    assert asked == [0, 1]


def test_an_error_of_a_task_reaches_whoever_runs_it():
    with pytest.raises(ZeroDivisionError):
        list(IN_PROCESS.run(lambda number: 1 / number, [1, 0], token=CancelToken()))


def deaf_work(seconds):
    """Compute as code of somebody else does, which never asks whether to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.002)


@pytest.mark.parametrize("stop", ["budget", "cancel"])
def test_code_that_never_asks_is_interrupted_too(stop):
    token, begun = CancelToken(0.1 if stop == "budget" else None), time.monotonic()
    if stop == "cancel":
        threading.Timer(0.1, token.cancel).start()
    with pytest.raises(Cancelled):
        list(IN_PROCESS.run(deaf_work, [30.0], token=token))
    assert time.monotonic() - begun < 15


def test_nothing_is_raised_after_a_task_has_ended():
    token = CancelToken(0.2)
    assert [task for task, _ in IN_PROCESS.run(deaf_work, [0.3], token=token)] == [0.3]
    deaf_work(1.5)  # longer than the grace in which a task may notice by itself


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (InProcessExecutor, r"Pass InProcessExecutor\(\)"),
        (4, r"method run\(function, tasks, \*, token\)"),
        (None, "None"),
    ],
)
def test_what_is_no_executor_is_refused(executor, message):
    with pytest.raises(InvalidInput, match=message):
        check_executor(executor)
    assert check_executor(IN_PROCESS) is IN_PROCESS
