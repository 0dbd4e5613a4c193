import numpy as np
import pytest
from PIL import Image

from reconrisk.core.errors import InvalidInput
from reconrisk.reports.leakage import write_leakage

DARK, BRIGHT = np.zeros((1, 8, 8), np.float32), np.ones((1, 8, 8), np.float32)


def rows(first, second, count=3):
    return [("most exposed", [("a\n1", first)] * count), ("least exposed", [("b\n0.1", second)] * count)]


def grey(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("L")).astype(int)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_most_exposed_are_above_the_least(tmp_path, channels):
    first, second = (np.repeat(picture, channels, axis=0) for picture in (DARK, BRIGHT))
    pixels = grey(write_leakage(tmp_path / "new" / "x.png", rows(first, second), data_range=(0.0, 1.0), note="n"))
    above, below = pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]
    assert (above == 0).mean() > 0.3 > (below == 0).mean()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.png"]


def test_captions_and_the_note_are_drawn(tmp_path):
    with_words = grey(write_leakage(tmp_path / "a.png", rows(BRIGHT, BRIGHT), data_range=(0.0, 1.0), note="private"))
    assert (with_words[:40] < 128).any()
    assert (with_words[-30:] < 200).any()


def test_the_data_range_is_the_scale(tmp_path):
    middle = grey(write_leakage(tmp_path / "a.png", rows(DARK, DARK), data_range=(-1.0, 1.0), note=""))
    assert ((middle > 120) & (middle < 135)).mean() > 0.3


def test_tables_are_drawn_as_bars_from_the_low_end(tmp_path):
    def share(value, data_range):
        record = np.full(10, value, np.float32)
        path = write_leakage(tmp_path / "bars.png", rows(record, record), data_range=data_range, note="")
        with Image.open(path) as picture:
            colours = np.asarray(picture.convert("RGB")).astype(int)
        return (np.abs(colours - (31, 119, 180)).max(-1) < 40).mean()  # matplotlib's tab:blue

    full = share(1.0, (0.0, 1.0))
    assert full > 0.3
    assert share(0.5, (0.0, 1.0)) == pytest.approx(full / 2, rel=0.1)
    assert share(0.0, (-1.0, 1.0)) == pytest.approx(full / 2, rel=0.1)


def test_rows_may_differ_in_length(tmp_path):
    uneven = [("most exposed", [("a", DARK)] * 3), ("least exposed", [("b", DARK)])]
    pixels = grey(write_leakage(tmp_path / "x.png", uneven, data_range=(0.0, 1.0), note=""))
    above, below = pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]
    assert (above == 0).sum() > 2 * (below == 0).sum()


@pytest.mark.parametrize("empty", [[], [("most exposed", [])]])
def test_nothing_to_draw_is_refused_and_nothing_written(tmp_path, empty):
    with pytest.raises(InvalidInput, match="at least one"):
        write_leakage(tmp_path / "out" / "x.png", empty, data_range=(0.0, 1.0), note="")
    assert list(tmp_path.iterdir()) == []


def test_records_are_drawn_for_their_owner_alone(tmp_path):
    path = write_leakage(tmp_path / "x.png", rows(DARK, DARK, 1), data_range=(0.0, 1.0), note="")
    assert path.stat().st_mode & 0o777 == 0o600
