import importlib
import pkgutil
import re

import pytest
import torch
from torch.nn.functional import cross_entropy

import reproductions
from reconrisk.core.guarantee import Estimate
from reconrisk.data.dataset import Dataset
from reconrisk.models import guo2022_mnist
from reconrisk.releases.updates.clipping import HardClip, SmoothClip
from reproductions.frame import Drawing, Finding, need_data, reproduce
from reproductions.private_training import Setting, accuracy, clipped_sum, private_steps

FRAME = (
    "reproductions.chen2025.settings",
    "reproductions.frame",
    "reproductions.gradient_inversion",
    "reproductions.meng2025.guided",
    "reproductions.meng2025.settings",
    "reproductions.optimal_defenses",
    "reproductions.private_training",
    "reproductions.training_curves",
)

SCRIPTS = [
    info.name
    for info in pkgutil.walk_packages(reproductions.__path__, "reproductions.")
    if not info.ispkg and info.name not in FRAME
]


def half_a_pipe(scale):
    """Two findings."""
    return [
        Finding("first | of two", "0.5", Estimate(0.4, 0.3, 0.6, 0.95, 9, "test"), f"at scale {scale}"),
        Finding("second", "1", "2"),
    ]


half_a_pipe.__module__ = "reproductions.guo2022.figure2"


def test_findings_are_appended_row_by_row_beneath_one_header(tmp_path, capsys):
    results = tmp_path / "RESULTS.md"
    for scale in ("small", "paper"):
        assert reproduce(half_a_pipe, argv=["--scale", scale, "--results", str(results)]) == 0
    lines = results.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| guo2022")]
    assert len(rows) == 4
    assert lines.count("|---|---|---|---|---|---|---|---|") == 1
    assert rows[0].startswith(r"| guo2022 | first \| of two (at scale small) | 0.5 | 0.4 [0.3, 0.6]")
    assert "`python -m reproductions.guo2022.figure2 --scale paper`" in rows[2]
    assert capsys.readouterr().out.splitlines() == rows
    assert re.search(r"\| ([0-9a-f]{7,}(\+changes)?|no repository) \|$", rows[0])


def test_missing_data_is_said_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RECONRISK_DATA", raising=False)
    results = tmp_path / "RESULTS.md"
    assert reproduce(lambda scale: [need_data()], argv=["--results", str(results)]) == 2
    assert "RECONRISK_DATA" in capsys.readouterr().err
    assert not results.exists()


def with_a_drawing(scale):
    """One finding, one drawing."""
    return [Finding("first", "1", "2"), Drawing("figure.png", lambda path: path.write_text(scale))]


with_a_drawing.__module__ = "reproductions.guo2022.figure2"


def test_drawings_appear_only_in_the_folder_named(tmp_path):
    results, out = tmp_path / "RESULTS.md", tmp_path / "new" / "pictures"
    assert reproduce(with_a_drawing, argv=["--results", str(results)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["RESULTS.md"]
    assert reproduce(with_a_drawing, argv=["--results", str(results), "--out", str(out)]) == 0
    assert (out / "figure.png").read_text() == "small"
    assert results.read_text().count("| first |") == 2


def test_a_file_as_folder_for_drawings_is_refused_before_the_work(tmp_path):
    results = tmp_path / "RESULTS.md"
    results.write_text("kept")
    with pytest.raises(SystemExit):
        reproduce(with_a_drawing, argv=["--results", str(results), "--out", str(results)])
    assert results.read_text() == "kept"


def few_digits(count):
    rng = torch.Generator().manual_seed(3)
    return Dataset("few", torch.rand(count, 1, 28, 28, generator=rng), torch.arange(count) % 10)


@pytest.mark.parametrize("clip", [HardClip(3.0), SmoothClip(3.0)])
def test_sum_of_clipped_gradients_is_that_of_single_records(clip):
    model, few = guo2022_mnist(rng=torch.Generator().manual_seed(0)).double(), few_digits(6)
    inputs, expected = few.inputs.double(), [torch.zeros_like(parameter) for parameter in model.parameters()]
    for record, label in zip(inputs, few.labels, strict=True):
        gradient = torch.autograd.grad(cross_entropy(model(record[None]), label[None]), list(model.parameters()))
        norm = torch.cat([part.flatten() for part in gradient]).norm()
        expected = [total + clip.factor(norm) * part for total, part in zip(expected, gradient, strict=True)]
    for found, total in zip(clipped_sum(model, inputs, few.labels, clip), expected, strict=True):
        torch.testing.assert_close(found, total, rtol=1e-9, atol=1e-12)  # double precision, sums of 6


def test_an_empty_batch_has_sum_zero():
    few = few_digits(2)
    sums = clipped_sum(guo2022_mnist(), few.inputs[:0], few.labels[:0], HardClip(1.0))
    assert all(bool((total == 0).all()) for total in sums)


def test_without_clipping_and_noise_private_steps_are_those_of_sgd():
    few, rng = few_digits(8), torch.Generator().manual_seed(0)
    private, plain = (guo2022_mnist(rng=torch.Generator().manual_seed(1)) for _ in range(2))
    setting = Setting(noise_multiplier=1e-12, step_size=0.1, clip_norm=1e4, batch=8)
    assert list(private_steps(private, few, setting, steps=3, accountants=[], rng=rng)) == [1, 2, 3]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        # far below the clip norm smooth clipping multiplies by 1 / (1 + GELU(-1))
        (SmoothClip(1.0).factor(torch.tensor(0.0)) * cross_entropy(plain(few.inputs), few.labels)).backward()
        optimizer.step()
    for found, expected in zip(private.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)  # |g| / C is up to 1e-3


def test_noise_of_a_private_step_has_the_stated_size():
    few, setting = few_digits(4), Setting(noise_multiplier=1000.0, step_size=1.0, clip_norm=2.0, batch=2)
    model = guo2022_mnist(rng=torch.Generator().manual_seed(1))
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    assert 0 <= accuracy(model, few) <= 1
    list(private_steps(model, few, setting, steps=1, accountants=[], rng=torch.Generator().manual_seed(2)))
    moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before
    # 26,010 normal numbers: their spread is known to 0.44 %, four of that; the gradients add less than 1e-4
    assert float(moved.std()) == pytest.approx(1000.0, rel=0.02)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_fits_the_frame(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.run.__doc__
    assert callable(module.run)
