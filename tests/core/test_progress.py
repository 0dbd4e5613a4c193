import io

import pytest

from reconrisk.core import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watch(monkeypatch, stream):
    # inside the test, since pytest puts its own stream back between set-up and call
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0.0)
    return stream


def test_items_pass_unchanged_and_the_bar_names_its_task(monkeypatch):
    terminal = watch(monkeypatch, Terminal())
    assert list(progress.track(range(5), "Shadow models")) == [0, 1, 2, 3, 4]
    assert "Shadow models" in terminal.getvalue()


def test_nothing_is_drawn_where_nobody_looks_or_nobody_has_to_wait(monkeypatch):
    file = watch(monkeypatch, io.StringIO())
    assert list(progress.track(range(5), "steps")) == [0, 1, 2, 3, 4]
    assert file.getvalue() == ""
    terminal = watch(monkeypatch, Terminal())
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 1000.0)
    assert list(progress.track(range(5), "steps")) == [0, 1, 2, 3, 4]
    assert terminal.getvalue() == ""


def test_leaving_the_loop_clears_the_bar(monkeypatch):
    terminal = watch(monkeypatch, Terminal())
    tracked = progress.track(range(5), "steps")
    assert [next(tracked), next(tracked)] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        tracked.throw(KeyboardInterrupt)
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_pushed_bar_appears_and_goes_at_its_end_or_when_closed(monkeypatch):
    for turns, closes in ((3, False), (2, True)):
        terminal = watch(monkeypatch, Terminal())
        bar = progress.ProgressBar("Training", total=3)
        for _ in range(turns):
            bar.advance()
        if closes:
            bar.close()
        assert "Training" in terminal.getvalue()
        assert terminal.getvalue().endswith("\x1b[2K")
        drawn = terminal.getvalue()
        bar.advance()
        assert terminal.getvalue() == drawn


def test_a_pushed_bar_is_silent_where_nobody_looks(monkeypatch):
    file = watch(monkeypatch, io.StringIO())
    bar = progress.ProgressBar("Training", total=2)
    bar.advance()
    bar.close()
    assert file.getvalue() == ""


def test_a_bar_that_is_wanted_at_once_does_not_wait(monkeypatch):
    for at_once in (True, False):
        terminal = watch(monkeypatch, Terminal())
        monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 1000.0)
        bar = progress.ProgressBar("Audit", total=3, at_once=at_once)
        bar.advance()
        bar.close()
        assert ("Audit" in terminal.getvalue()) == at_once


def test_of_bars_inside_each_other_the_outermost_is_shown(monkeypatch):
    terminal = watch(monkeypatch, Terminal())
    outer = progress.ProgressBar("Audit", total=2)
    assert list(progress.track(range(3), "inner steps")) == [0, 1, 2]
    outer.advance()
    outer.advance()
    assert "Audit" in terminal.getvalue()
    assert "inner steps" not in terminal.getvalue()


def test_an_inner_bar_that_closes_does_not_let_others_in(monkeypatch):
    terminal = watch(monkeypatch, Terminal())
    outer = progress.ProgressBar("Audit", total=9)
    for _ in range(2):
        list(progress.track(range(2), "inner steps"))
    outer.close()
    assert "inner steps" not in terminal.getvalue()
    assert list(progress.track(range(2), "Afterwards")) == [0, 1]
    assert "Afterwards" in terminal.getvalue()


def test_a_bar_that_was_dropped_unclosed_does_not_silence_others(monkeypatch):
    terminal = watch(monkeypatch, Terminal())
    dropped = progress.ProgressBar("dropped")
    del dropped
    assert list(progress.track(range(2), "Next")) == [0, 1]
    assert "Next" in terminal.getvalue()
