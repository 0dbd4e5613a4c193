"""Names of shipped priors and paths of others."""

from pathlib import Path

import pytest
import torch

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.priors.load import folders
from reconrisk.priors.load.folders import find_prior_folder, shipped_names
from reconrisk.priors.train.training_state import TrainingRecord, write_training_record


@pytest.fixture(autouse=True)
def shipped(tmp_path, monkeypatch):
    """A package that ships two priors, and an empty working folder."""
    for name in ("mnist", "fashion_mnist"):
        (tmp_path / "bundled" / "gan" / name).mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(folders, "BUNDLED", tmp_path / "bundled")
    return tmp_path / "bundled"


def test_names_are_those_of_the_kind():
    assert shipped_names("gan") == ("fashion_mnist", "mnist")
    assert shipped_names("diffusion") == ()


def test_a_name_wins_over_a_folder_and_a_path_means_the_folder(shipped):
    assert find_prior_folder("mnist", "gan") == shipped / "gan" / "mnist"
    Path("mnist").mkdir()
    assert find_prior_folder("mnist", "gan") == shipped / "gan" / "mnist"
    assert find_prior_folder("./mnist", "gan") == Path("mnist")
    assert find_prior_folder(Path("mnist"), "gan") == Path("mnist")
    assert find_prior_folder("mnist", "diffusion") == Path("mnist")


def test_unknown_names_list_the_shipped_ones():
    with pytest.raises(
        InvalidInput, match=r"one of fashion_mnist, mnist\. Nothing is downloaded\. Did you mean mnist\?"
    ):
        find_prior_folder("minst", "gan")
    with pytest.raises(InvalidInput, match=r"to be a local folder\. Nothing is downloaded\.$"):
        find_prior_folder("minst", "diffusion")


@pytest.mark.parametrize("path", [Path("none"), "./none", "some/where"])
def test_a_path_to_nothing_is_no_name(path):
    with pytest.raises(InvalidFile, match=r"There is no such folder\. Nothing is downloaded"):
        find_prior_folder(path, "gan")


def test_what_is_neither_name_nor_path_is_refused():
    with pytest.raises(InvalidInput, match=r"to be a name or a path\. Pass str or pathlib\.Path\.$"):
        find_prior_folder(3, "gan")
    with pytest.raises(InvalidInput, match=r"Pass a function or network to rr\.priors\.generator"):
        find_prior_folder(torch.nn.Linear(1, 1), "gan")
    with pytest.raises(InvalidInput, match=r"Pass a function or network to rr\.priors\.denoiser"):
        find_prior_folder(lambda noisy, times: noisy, "diffusion")


def test_what_a_training_left_is_told_from_a_prior(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "training.safetensors").write_bytes(b"")
    with pytest.raises(InvalidFile, match=r"not finished\. Run the command that trains it again"):
        find_prior_folder(folder, "gan")
    write_training_record(folder, TrainingRecord("gan", {}, "", 3, 0.0))
    assert find_prior_folder(folder, "gan") == folder
    with pytest.raises(InvalidFile, match=r"It is a gan prior\. Pass it to rr\.priors\.gan"):
        find_prior_folder(folder, "diffusion")


def test_no_word_is_no_folder():
    with pytest.raises(InvalidInput, match="one of fashion_mnist, mnist"):
        find_prior_folder("", "gan")
