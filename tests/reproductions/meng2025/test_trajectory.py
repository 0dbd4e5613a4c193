import stat
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

import reconrisk as rr
from reconrisk.attacks.with_prior.guided_diffusion import ggss_r
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reproductions.meng2025.trajectory import _psnr, _shown, write_trajectory

STEPS = 12


@dataclass(frozen=True)
class Path:
    """What a drawing reads of a trajectory."""

    residuals: torch.Tensor
    estimates: torch.Tensor
    noise_is_known: bool = True
    stop: int = 7

    def oracle_peak(self, targets):
        best = int((self.estimates - targets).square().flatten(1).mean(1).argmin())
        return best, self.estimates[best]

    @property
    def falls_monotonically(self):
        return bool((self.residuals.diff() <= 0).all())


def path_of(shape=(1, 5, 5), records=1, residuals=None):
    rng = torch.Generator().manual_seed(0)
    targets = torch.rand(records, *shape, generator=rng)
    noise = torch.randn(STEPS, records, *shape, generator=rng) * torch.linspace(0.5, 0.05, STEPS).view(
        -1, *([1] * (len(shape) + 1))
    )
    estimates = (targets + noise).clamp(0, 1)
    falling = torch.logspace(3, 0, STEPS, dtype=torch.float64) if residuals is None else residuals
    return Path(falling, estimates), targets


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 4, 6), (7,)])
def test_a_picture_is_drawn_for_its_owner_alone(tmp_path, shape, known):
    trajectory, targets = path_of(shape, records=2)
    written = write_trajectory(tmp_path / "made" / "path.png", trajectory, targets=targets if known else None)
    with Image.open(written) as picture:
        assert min(picture.size) > 300
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_the_path_of_an_attack_is_drawn(tmp_path):
    prior = rr.priors.gaussian(torch.full((1, 2, 2), 0.5), 0.02 * torch.eye(4))
    target = prior.draw(1, torch.Generator().manual_seed(0)).float()
    observation = rr.Observation(
        {"y": target.flatten()},
        lambda records, labels: {"y": records.flatten()},
        HONEST_BUT_CURIOUS.with_knowledge(rr.Knows.LABELS, rr.Knows.PRIOR),
        (1, 2, 2),
        (0.0, 1.0),
        labels=torch.tensor([0]),
    )
    trace = ggss_r(prior, steps=20).trace(observation, rng=torch.Generator().manual_seed(0))
    assert write_trajectory(tmp_path / "path.png", trace, targets=target).is_file()


def words(tmp_path, monkeypatch, trajectory, targets):
    """The text that stands in the drawing."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    return write_trajectory(tmp_path / "path.svg", trajectory, targets=targets).read_text()


def test_stop_and_oracle_are_marked_and_told_apart(tmp_path, monkeypatch):
    trajectory, targets = path_of()
    text = words(tmp_path, monkeypatch, trajectory, targets)
    peak, _ = trajectory.oracle_peak(targets)
    assert f"the attacker's stop, step {trajectory.stop + 1}" in text
    assert f"the oracle's peak, step {peak + 1}," in text
    assert "which no attacker sees" in text
    assert "falls in every step" in text


def test_without_targets_there_is_no_oracle(tmp_path, monkeypatch):
    trajectory, _ = path_of()
    assert "oracle" not in words(tmp_path, monkeypatch, trajectory, None)


def test_a_loss_that_rises_is_said_to(tmp_path, monkeypatch):
    residuals = torch.logspace(3, 0, STEPS, dtype=torch.float64)
    residuals[3], residuals[8] = 900.0, 700.0
    trajectory, targets = path_of(residuals=residuals)
    assert f"The attack loss rises in 2 of {STEPS - 1} steps" in words(tmp_path, monkeypatch, trajectory, targets)


def test_psnr_is_that_of_the_metric():
    trajectory, targets = path_of()
    expected = [float(rr.metrics.psnr(data_range=1.0)(each, targets)[0]) for each in trajectory.estimates]
    assert np.allclose(_psnr(trajectory, targets, (0.0, 1.0)), expected)


def test_an_exact_copy_does_not_spoil_the_drawing(tmp_path):
    trajectory, targets = path_of()
    trajectory.estimates[-1] = targets
    assert write_trajectory(tmp_path / "path.pdf", trajectory, targets=targets).stat().st_size > 0


def test_the_strip_has_both_ends_and_what_is_marked():
    assert _shown(100, 2, 40, None) == [0, 40, 99]
    assert _shown(3, 8, 1, 2) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("path.gif", {}, "to end in one of"),
        ("path.png", {"pictures": 0}, "pictures=0 >= 1"),
        ("path.png", {"targets": torch.zeros(1, 2)}, r"targets\.shape"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_file(tmp_path, name, settings, message):
    with pytest.raises(rr.InvalidInput, match=message):
        write_trajectory(tmp_path / name, path_of()[0], **settings)
    assert not list(tmp_path.iterdir())
