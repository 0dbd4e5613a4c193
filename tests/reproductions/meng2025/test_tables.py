"""The measurements of meng2025's tables and figures on few digits under a Gaussian prior, and with a tiny diffusion."""

import math
import re

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.with_prior.guided_diffusion import GuidedTrajectory
from reconrisk.defenses import gaussian_noise
from reproductions.meng2025 import (
    claims,
    guided,
    settings,
    table1_figure3,
    table2_3_4_figure4,
    table5,
    table6,
    table7,
    table8,
)
from reproductions.meng2025.guided import Outcome, trajectories
from reproductions.meng2025.settings import Effort, network, observations, reproduce_with_prior, rivals, study
from tests.attacks.tiny_priors import write_diffusion
from tests.other_device import ELSEWHERE, TwoDevices

QUICK = Effort(pixels=3, latents=8, tuned=2, generations=2, population=4, restarts=1, draws=1)


@pytest.fixture(scope="module")
def digits():
    return study("gaussian")


@pytest.fixture
def quick(digits, monkeypatch):
    """All rivals, with next to no steps, on a network of which a step takes a millisecond."""
    monkeypatch.setattr(settings, "EFFORT", {"small": QUICK})
    monkeypatch.setattr(rr.attacks, "plug_and_play", lambda prior: rr.attacks.prior_alone(prior, guess="draw", steps=2))
    order = list(table8.PAPER)
    for module in (table1_figure3, table2_3_4_figure4, table5, table6, table7):
        monkeypatch.setattr(module, "network", lambda name, shape: network("MLP-3", shape, order.index(name)))
        monkeypatch.setattr(module, "study", lambda prior: digits)


def test_targets_are_of_each_class_in_turn(digits):
    assert digits.labels.tolist() == [*range(10)] * 4
    assert len(digits.inputs.flatten(1).unique(dim=0)) == 40


def test_the_generator_of_the_gaussian_prior_has_its_mean_and_most_of_its_variance(digits):
    made = digits.generator.decode(torch.zeros(1, settings.LATENT))
    fitted = rr.priors.fit_gaussian(rr.load_dataset("mnist", split="train").inputs)
    torch.testing.assert_close(made[0], fitted.mean.float(), atol=1e-5, rtol=0)  # float32 of numbers below 1
    drawn = digits.generator.draw(400, torch.Generator().manual_seed(0))
    total = float(fitted.variances.sum())
    # 64 directions hold 86 % of it; a sum over 400 draws varies by some 2 %
    assert 0.75 < float(drawn.var(0).sum()) / total < 1.0


@pytest.mark.parametrize("variance", [None, 1e-3])
def test_a_record_among_many_is_guided_as_it_would_be_alone(digits, variance):
    defense = None if variance is None else gaussian_noise(math.sqrt(variance))
    parts = observations(network("MLP-3", digits.shape), digits.inputs[:3], digits.labels[:3], defense=defense)
    # at full guidance nothing but the start is drawn, whose first record does not depend on how many follow
    attack = rr.attacks.ggss_r(digits.prior, steps=12, guidance=1.0)
    many, one = trajectories(attack, parts, seed=1), trajectories(attack, parts[:1], seed=1)
    alone = attack.trace(parts[0], rng=guided.generator("start", 1))
    torch.testing.assert_close(one[0].estimates, alone.estimates, atol=1e-4, rtol=0)
    torch.testing.assert_close(many[0].estimates, alone.estimates, atol=1e-2, rtol=0)  # rounding through 12 steps
    shares = [each.residuals / each.residuals[0] for each in (many[0], alone)]
    torch.testing.assert_close(*shares, rtol=1e-2, atol=0)
    pulls = [each.pulls / each.residuals[:, None] for each in (many[0], alone)]
    torch.testing.assert_close(*pulls, rtol=5e-2, atol=0)
    assert many[0].values == alone.values
    assert many[0].noise_is_known == (variance is not None) == alone.noise_is_known


def test_the_oracle_is_never_worse_than_the_own_stop(digits):
    parts = observations(network("MLP-3", digits.shape), digits.inputs[:4], digits.labels[:4], batch=2)
    found = guided.guided(rr.attacks.ggss_r(digits.prior, steps=20), parts, digits.inputs[:4], together=1)
    own, peak = (guided.decibels(each, digits.inputs[:4], 2) for each in (found.estimates, found.peaks))
    errors = [(each - digits.inputs[:4]).square().view(2, -1).mean(1) for each in (found.estimates, found.peaks)]
    assert bool((errors[1] <= errors[0]).all())
    assert own.shape == peak.shape == (2,)
    assert found.batches == len(found.trajectories) == 2


def test_gradients_are_the_same_for_every_attack_and_differ_between_records(digits):
    model = network("MLP-3", digits.shape)
    one, other = (
        observations(model, digits.inputs[:count], digits.labels[:count], defense=gaussian_noise(0.1))
        for count in (1, 2)
    )
    name = next(iter(one[0].released))
    assert torch.equal(one[0].released[name], other[0].released[name])
    noise = [
        part.released[name] - part.forward(part_inputs, part.labels)[name]
        for part, part_inputs in zip(other, digits.inputs[:2].split(1), strict=True)
    ]
    assert not torch.allclose(noise[0], noise[1])


@pytest.mark.parametrize("name", [name for name in table8.PAPER if name != "VGGNet16"])
def test_networks_take_digits(digits, name):
    assert network(name, digits.shape)(digits.inputs[:2]).shape == (2, 10)


def test_vgg_takes_digits_with_a_border(digits, monkeypatch):
    asked = []

    def tiny(shape, classes, *, pooled_side, rng):
        asked.append((shape, pooled_side))
        return torch.nn.Flatten()

    monkeypatch.setattr(settings, "vgg16", tiny)  # 33 million weights otherwise
    assert network("VGGNet16", digits.shape)(digits.inputs[:1]).shape == (1, 1024)
    network("VGGNet16", (3, 256, 256))
    assert asked == [((1, 32, 32), 1), ((3, 256, 256), 8)]


def test_every_rival_answers(digits, quick):
    model = network("MLP-3", digits.shape)
    parts = observations(model, digits.inputs[:2], digits.labels[:2], defense=gaussian_noise(0.1), batch=2)
    found = rivals(digits, "small")
    known = (*table2_3_4_figure4.PIXELS, *table2_3_4_figure4.GENERATORS, *table2_3_4_figure4.OURS)
    assert set(found) == set(known)
    for name, attack in found.items():
        outcome = guided.attacked(attack, parts, digits.inputs[:2], name)
        assert outcome.estimates.shape == (2, 1, 28, 28)
        assert outcome.batches == 1


def test_table_1_has_vulnerability_quality_and_the_stated_claims(digits, quick, monkeypatch, tmp_path):
    sizes = {"small": table1_figure3.Sizes(2, {0.2: 3, 1.0: 4}, 2)}
    monkeypatch.setattr(table1_figure3, "ORDINARY", sizes)
    monkeypatch.setattr(table1_figure3, "LARGE", dict.fromkeys(table1_figure3.LARGE, sizes))
    *findings, drawing = table1_figure3.run("small", "gaussian")
    assert len(findings) == 6 * 3 + 3
    assert [each.paper for each in findings if each.what.startswith("RV")] == [
        "0.17",
        "8.71",
        "10.74",
        "18.51",
        "20.85",
        "52.73",
    ]
    drawing.write(tmp_path / drawing.name)
    assert (tmp_path / "figure3.png").stat().st_size > 1000


def test_tables_2_to_4_name_every_attack_at_every_noise_and_judge_the_claims(quick, monkeypatch, tmp_path):
    for name in ("SIZES", "UNCLAIMED"):
        monkeypatch.setattr(table2_3_4_figure4, name, {"small": table2_3_4_figure4.Sizes(3, 2, 1, 1, 4)})
    monkeypatch.setattr(table2_3_4_figure4, "GUIDED", {0.0: "clean", 1e-2: "noisy"})
    *findings, drawing = table2_3_4_figure4.run("small", "gaussian")
    named = [each.what for each in findings]
    assert sum("on CNN" in what for what in named) == 2 * 10
    assert sum("prior alone" in what for what in named) == 2
    assert sum("another image" in what for what in named) == 2
    assert sum("beats" in what for what in named) == 2 + 2 * 2
    by_name = {each.what: each for each in findings}
    assert by_name["GIFD on CNN, noise of variance 0.01 (Tables 2 and 4)"].paper == "MSE 0.0425, PSNR 13.7118 dB"
    drawing.write(tmp_path / drawing.name)
    assert (tmp_path / "figure4.png").stat().st_size > 1000


def test_tables_2_to_4_have_the_attacks_that_are_asked_for(quick, monkeypatch):
    monkeypatch.setattr(table2_3_4_figure4, "SIZES", {"small": table2_3_4_figure4.Sizes(2, 2, 2, 1, 4)})
    *findings, _ = table2_3_4_figure4.run("small", "gaussian", ["0.01", "GGL"])
    assert [each.what.split(" on CNN")[0] for each in findings if "on CNN" in each.what] == ["GGSS-R", "GGL"]
    with pytest.raises(rr.InvalidInput, match="only='GAN'"):
        table2_3_4_figure4.run("small", "gaussian", ["GAN"])


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_tables_are_made_on_another_device(quick, monkeypatch, tmp_path):
    """A folder of diffusers on a stand-in for a graphics card, at a small size."""
    write_diffusion(tmp_path / "tiny")
    monkeypatch.setenv("RECONRISK_DEVICE", str(ELSEWHERE))
    monkeypatch.setattr(table2_3_4_figure4, "study", study)
    monkeypatch.setattr(guided, "metrics", lambda: (rr.metrics.mse(), rr.metrics.psnr(data_range=1.0)))
    monkeypatch.setattr(table2_3_4_figure4, "SIZES", {"small": table2_3_4_figure4.Sizes(2, 1, 1, 1, 3)})
    with TwoDevices():
        *findings, _ = table2_3_4_figure4.run("small", str(tmp_path / "tiny"), ["0.01", "FinetunedDiff", "IG"])
    assert [each.what.split(" on CNN")[0] for each in findings if "on CNN" in each.what] == [
        "GGSS-R",
        "IG",
        "FinetunedDiff",
    ]


def test_claims_are_judged_by_paired_decibels(digits):
    """Errors of 0.1 and 0.01 are 20 and 40 dB."""
    targets = torch.full((2, 1, 4, 4), 0.5)

    def judged(**errors):
        outcomes = {name: Outcome(targets + error, 0.0, 2) for name, error in errors.items()}
        return table2_3_4_figure4.claims([table2_3_4_figure4.Level(1e-2, targets, outcomes)], digits, "small")

    errors = {"GGSS-R": 0.1, "DLG": 0.2, "GGL": 0.05}
    pixels, generators, gains = judged(**errors, **{"plug-and-play": 0.01})
    assert pixels.ours == "holds; mean dB of GGSS-R over each: DLG +6.0 [6.0, 6.0]"
    assert generators.ours.startswith("does not hold for GGL; mean dB of GGSS-R over each: GGL -6.0")
    assert generators.remark.endswith("rivals with fewer steps than by default")
    assert gains.ours.startswith("holds: 20 [20, 20]")
    *_, gains = judged(**errors, **{"plug-and-play": 0.095})
    assert gains.ours.startswith("does not hold: 0.4455")  # less than the decibel claimed
    varied = torch.tensor([0.01, 0.095]).view(2, 1, 1, 1)
    *_, gains = judged(**errors, **{"plug-and-play": varied})
    assert gains.ours.startswith("holds of the mean, not of all of its interval: 10.2")


def test_table_5_has_a_row_for_each_attack_and_batch(quick, monkeypatch):
    monkeypatch.setattr(table5, "SIZES", {"small": table5.Sizes(8, 1, 1, 3)})
    findings = table5.run("small", "gaussian")
    assert len(findings) == 4 * 8
    assert {each.what: each.paper for each in findings}["GGL on CNN, batch of 4 (Table 5)"] == "not given"
    assert {each.what: each.paper for each in findings}["IG on CNN, batch of 4 (Table 5)"] == "PSNR 11.3003 dB"


def test_table_6_names_the_best_rate(quick, monkeypatch):
    monkeypatch.setattr(table6, "SIZES", {"small": (2, 5)})
    findings = table6.run("small", "gaussian")
    assert len(findings) == 9
    rows = {each.what: float(each.ours.split()[2]) for each in findings[:-1]}
    best = max(rows, key=lambda what: rows[what])
    assert f"guidance {findings[-1].ours.split(',')[0]} (" in best


def test_table_7_compares_both_laws_on_the_same_digits(quick, monkeypatch):
    monkeypatch.setattr(table7, "SIZES", {"small": (2, 4)})
    findings = table7.run("small", "gaussian")
    assert len(findings) == 8
    assert [each.paper for each in findings[1::2]] == ["-0.0948 dB", "+0.1506 dB", "+0.1873 dB", "-0.4539 dB"]


def test_a_step_takes_time_and_memory():
    used = table8.measure("MLP-3", "gaussian", 3)
    assert used.seconds > 0
    assert 0 < used.before <= used.peak


def test_a_prior_from_a_folder_attacks_pictures_of_its_size(tmp_path, monkeypatch):
    """The way to 256 pixels, at 16: a network of diffusers that somebody saved."""
    pytest.importorskip("diffusers")
    from diffusers import DDPMScheduler

    from reconrisk.priors.train.diffusion import new_network

    torch.manual_seed(0)
    new_network((3, 16, 16), (8, 8)).save_pretrained(tmp_path / "faces" / "unet")
    DDPMScheduler().save_pretrained(tmp_path / "faces" / "scheduler")
    monkeypatch.setattr(table6, "SIZES", {"small": (2, 3)})
    monkeypatch.setattr(table6, "PAPER", {0.2: table6.PAPER[0.2]})
    results = tmp_path / "RESULTS.md"
    words = ["--prior", str(tmp_path / "faces"), "--results", str(results)]
    assert reproduce_with_prior(table6.run, argv=words) == 0
    rows = [line for line in results.read_text().splitlines() if line.startswith("| meng2025")]
    assert len(rows) == 2
    assert "pictures, prior faces, 2 images" in rows[0]
    assert f"`python -m reproductions.meng2025.table6 --prior {tmp_path / 'faces'} --scale small`" in rows[0]
    found = study(str(tmp_path / "faces"))
    assert found.inputs.shape == (16, 3, 16, 16)
    assert set(rivals(found, "small")) == {*table2_3_4_figure4.PIXELS, "FinetunedDiff", "plug-and-play"}


def test_a_missing_prior_is_said_and_nothing_is_written(tmp_path, capsys):
    results = tmp_path / "RESULTS.md"
    words = ["--prior", str(tmp_path / "none"), "--results", str(results)]
    assert reproduce_with_prior(table6.run, argv=words) == 2
    assert "There is no such folder" in capsys.readouterr().err
    assert not results.exists()


def test_trajectories_have_the_stop_of_their_own_residuals(digits):
    parts = observations(network("MLP-3", digits.shape), digits.inputs[:2], digits.labels[:2])
    first, second = trajectories(rr.attacks.ggss_r(digits.prior, steps=10), parts, seed=0)
    assert isinstance(first, GuidedTrajectory)
    assert not torch.equal(first.residuals, second.residuals)
    assert float(first.residuals[first.stop]) <= float(first.residuals[0])


def test_parts_of_a_table_are_named_as_its_rows():
    assert settings.parts_of(table7.PAPER, []) == [1e-4, 1e-3, 1e-2, 1e-1]
    assert settings.parts_of(table7.PAPER, ["0.01", "0.0001"]) == [1e-4, 1e-2]
    assert settings.parts_of(table8.PAPER, ["CNN"]) == ["CNN"]
    with pytest.raises(rr.InvalidInput, match="to be among 1, 2, 4, 8"):
        settings.parts_of(table5.BATCHES, ["0.5"])


def test_a_part_of_a_table_is_stated_in_the_command(quick, monkeypatch, tmp_path):
    monkeypatch.setattr(table6, "SIZES", {"small": (1, 2)})
    results = tmp_path / "RESULTS.md"
    assert reproduce_with_prior(table6.run, argv=["--only", "0.2", "--results", str(results)]) == 0
    rows = [line for line in results.read_text().splitlines() if line.startswith("| meng2025")]
    assert len(rows) == 1
    assert "`python -m reproductions.meng2025.table6 --prior mnist --only 0.2 --scale small`" in rows[0]


def test_the_claim_of_clean_gradients_is_judged_at_the_own_stop(quick, monkeypatch):
    monkeypatch.setattr(claims, "study", lambda prior: settings.study("gaussian"))
    monkeypatch.setattr(claims, "IMAGES", 2)
    monkeypatch.setattr(claims, "CLEAN_STEPS", 20)
    (clean,) = claims.run("small", "gaussian", ["MLP-3"])
    reached = float(re.search(r"own stop (-?[\d.]+)", clean.ours)[1])
    assert clean.ours.startswith("holds" if reached > claims.CLEAN_WANTED else "does not hold")
