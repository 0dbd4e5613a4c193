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
