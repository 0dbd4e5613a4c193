import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import Controls, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.studies.rebuild.captured import rebuild_captured

RECORDS = torch.rand(3, 5, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([2, 0, 1])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp():
    layers = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3))
    generator = rng(1)
    for value in layers.parameters():
        nn.init.uniform_(value, -1, 1, generator=generator)
    return layers.eval()


def gradient(model, rows=slice(0, 1), loss_fn=cross_entropy):
    return rr.releases.GradientRelease(model, loss_fn, RECORDS[rows], LABELS[rows]).value()


def test_a_gradient_is_attacked_without_its_record():
    result = rebuild_captured("analytic", mlp(), input_shape=(5,), gradient=gradient(mlp()), rng=rng(7))
    torch.testing.assert_close(result.estimates, RECORDS[:1])
    assert result.targets is None
    report = result.report
    assert (report.scores, report.labels, report.records, report.seed) == ((), ("?",), (0,), 7)
    assert report.release == "captured gradient of cross_entropy in evaluation mode"
    assert (report.model, report.defense) == ("Sequential", "not known")
    assert rr.from_json(rr.to_json(report)) == report
    assert "psnr" not in repr(result)


def test_weights_before_and_after_a_step_are_an_update(tmp_path):
    model = mlp()
    step = gradient(model)
    after = {name: value - 0.5 * step[name] for name, value in model.state_dict().items()}
    save_file(model.state_dict(), tmp_path / "before.safetensors")
    save_file(after, tmp_path / "after.safetensors")
    elsewhere = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3))
    result = rebuild_captured(
        "analytic",
        elsewhere,
        input_shape=(5,),
        before=tmp_path / "before.safetensors",
        after=tmp_path / "after.safetensors",
        update=rr.UpdateRecipe(local_steps=1, local_learning_rate=0.5),
        rng=rng(),
    )
    torch.testing.assert_close(result.estimates, RECORDS[:1], rtol=1e-3, atol=1e-4)  # differences of float32 weights
    assert "change by 1 steps of SGD, learning rate 0.5" in result.report.release


def test_known_labels_and_noise_are_what_the_adversary_knows():
    result = rebuild_captured(
        rr.attacks.gauss_newton(iterations=2),
        mlp(),
        input_shape=(5,),
        gradient=gradient(mlp(), slice(0, 2)),
        update=rr.UpdateRecipe(2),
        labels=[2, 0],
        noise_std=0.01,
        rng=rng(),
    )
    assert result.report.threat.knows == {Knows.LABELS, Knows.DEFENSE}
    assert result.report.labels == ("2", "0")
    assert result.report.defense == "noise of standard deviation 0.01"
    assert result.estimates.shape == (2, 5)


def test_the_layer_of_a_malicious_server_is_that_of_its_attack():
    attack = rr.attacks.imprint(bins=64, public=torch.distributions.Normal(0.5, 0.15))
    planted = attack.plant(mlp(), (5,))
    sent = rr.releases.GradientRelease(planted, cross_entropy, RECORDS, LABELS).value()
    result = rebuild_captured(attack, mlp(), input_shape=(5,), gradient=sent, update=rr.UpdateRecipe(3), rng=rng())
    assert result.report.threat.controls == {Controls.MODEL_PARAMETERS}
    expected = RECORDS[RECORDS.mean(1).argsort()]
    torch.testing.assert_close(result.estimates[result.estimates.mean(1).argsort()], expected)


def test_public_data_are_beliefs_and_candidates():
    public = Dataset("public", torch.cat([RECORDS, torch.full((2, 5), 0.5)]), torch.tensor([2, 0, 1, 0, 0]))
    words = {"input_shape": (5,), "gradient": gradient(mlp()), "public": public}
    found = rebuild_captured("best_candidate", mlp(), **words, rng=rng())
    torch.testing.assert_close(found.estimates, RECORDS[:1])
    mean = rebuild_captured("prior_mean", mlp(), **words, rng=rng())
    torch.testing.assert_close(mean.estimates[0], public.inputs.mean(0))
    assert Knows.PRIOR in mean.report.threat.knows


def test_the_loss_is_told_by_the_outputs_and_by_public_labels():
    single = nn.Linear(5, 1)
    sent = {"weight": torch.ones(1, 5), "bias": torch.ones(1)}
    words = {"input_shape": (5,), "gradient": sent, "rng": rng()}
    assert "binary_cross_entropy" in rebuild_captured("constant_guess", single, **words).report.release
    real = Dataset("real", RECORDS, torch.rand(3))
    assert "squared_error" in rebuild_captured("constant_guess", single, public=real, **words).report.release


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "Expected exactly one of gradient and after, got none"),
        ({"gradient": {"0.weight": torch.ones(8, 5)}}, r"Missing: 0.bias, 2.weight, 2.bias"),
        (
            {"gradient": gradient(mlp()), "update": {"local_steps": 2, "local_learning_rate": 0.1}},
            r"\(local_steps, local_learning_rate\)=\(2, 0\.1\) to be left out if gradient is given",
        ),
        ({"gradient": gradient(mlp()), "update": {"batch_size": 0}}, "Expected batch_size=0 >= 1"),
        ({"gradient": gradient(mlp()), "update": 2}, "Expected update=2 to be an UpdateRecipe"),
        ({"gradient": gradient(mlp()), "labels": [3]}, r"Expected max\(labels\)=3 to be from 0 to 2"),
        ({"gradient": gradient(mlp()), "input_shape": (4,)}, r"takes records of shape \(4,\)"),
        ({"gradient": gradient(mlp()), "public": Dataset("p", torch.rand(2, 4))}, r"records of shape \(5,\)"),
        ({"gradient": {**gradient(mlp()), "0.bias": torch.ones(7)}}, r"gradient\['0.bias'\].shape=\(7,\) to be \(8,\)"),
        (
            {"gradient": {**gradient(mlp()), "0.bias": torch.full((8,), torch.nan)}},
            r"gradient\['0.bias'\] to be finite",
        ),
        (
            {"gradient": gradient(mlp()), "attack": "class_mean"},
            "Expected public records for class_mean, other than the attacked ones",
        ),
        ({"gradient": gradient(mlp()), "attack": "best_candidate"}, "Expected candidate records for best_candidate"),
    ],
)
def test_what_does_not_fit_is_refused(words, message):
    words = {"attack": "constant_guess", "input_shape": (5,), **words}
    recipe = words.pop("update", {})
    with pytest.raises(InvalidInput, match=message):
        rebuild_captured(
            words.pop("attack"),
            mlp(),
            update=rr.UpdateRecipe(**recipe) if isinstance(recipe, dict) else recipe,  # may itself be refused
            rng=rng(),
            **words,
        )


def test_a_batch_size_that_is_wrong_is_suspected():
    """Three records stated as one: whatever single record is found does not explain their update."""
    attacked = {"input_shape": (5,), "gradient": gradient(mlp(), rows=slice(0, 3))}
    wrong = rebuild_captured("idlg", mlp(), rng=rng(), **attacked).report.accounts[0].status
    assert "differs from the captured one by" in wrong.cause
    assert "batch_size" in wrong.remedy
    right = rebuild_captured("idlg", mlp(), update=rr.UpdateRecipe(3), rng=rng(), **attacked).report.accounts[0].status
    assert "differs" not in right.cause


PRIOR = rr.priors.gaussian(torch.full((5,), 0.5), 0.05 * torch.eye(5), name="mine")


@pytest.mark.parametrize("noise_std", [None, 0.01])
def test_the_prior_is_named_and_stands_beside_the_estimates(noise_std):
    words = {"input_shape": (5,), "gradient": gradient(mlp()), "noise_std": noise_std}
    result = rebuild_captured(rr.attacks.gaussian_posterior(PRIOR), mlp(), **words, rng=rng())
    report = result.report
    assert (report.prior, report.guesser) == ("mine (configured by the caller)", "the prior alone")
    assert torch.allclose(result.guesses, torch.full((1, 5), 0.5))
    misfit = report.misfit
    assert misfit.estimates < 0.1 * misfit.guess
    assert misfit.estimates < 0.1 * misfit.draw
    mean = rr.releases.GradientRelease(mlp(), cross_entropy, torch.full((1, 5), 0.5), LABELS[:1]).value()
    sent = words["gradient"]
    off, whole = (
        sum(float(value.square().sum()) for value in each)
        for each in ([mean[name] - value for name, value in sent.items()], sent.values())
    )
    count = sum(value.numel() for value in sent.values())
    unit = whole if noise_std is None else count * noise_std**2
    assert misfit.guess == pytest.approx((off / unit) ** 0.5, rel=1e-4)  # float32 updates
    assert "prior     mine (configured by the caller)" in str(report)
    assert ", of the prior alone " in str(report)
    assert f"misfit    {misfit.describe('the prior alone')}" in str(report)
    assert rr.from_json(rr.to_json(report)) == report


def test_without_a_prior_a_constant_stands_beside_the_estimates():
    words = {"input_shape": (5,), "gradient": gradient(mlp())}
    report = rebuild_captured("analytic", mlp(), **words, labels=[2], rng=rng()).report
    assert (report.prior, report.guesser, report.misfit.draw) == ("", "a constant guess", None)
    assert report.misfit.estimates < 1e-3 < report.misfit.guess
    unlabelled = rebuild_captured("analytic", mlp(), **words, rng=rng()).report
    assert unlabelled.misfit is None  # it infers no labels, without which no update can be made


def test_the_attack_has_the_same_chance_whatever_is_drawn_beside_it():
    words = {"input_shape": (5,), "gradient": gradient(mlp())}
    attack = rr.attacks.ggss_r(PRIOR, steps=5)
    found = rebuild_captured(attack, mlp(), **words, rng=rng(3)).estimates
    threat = attack.needs
    seen = rr.releases.observe_captured(mlp(), **words, threat=threat)
    assert torch.equal(found, attack(seen, rng=rng(3)).estimates)


@pytest.mark.parametrize("public", [None, Dataset("few", RECORDS, LABELS)])
def test_a_prior_that_is_not_stated_is_asked_for_in_terms_of_a_captured_update(public):
    with pytest.raises(InvalidInput) as refused:
        rebuild_captured("ggss_r", mlp(), input_shape=(5,), gradient=gradient(mlp()), public=public, rng=rng())
    assert "--records" not in str(refused.value)
    assert "--data" in str(refused.value)
    assert ("--setting prior=FOLDER" in str(refused.value)) is (public is None)


def test_shipped_priors_of_the_shape_are_named_where_none_is_stated():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
    sent = {name: torch.ones_like(value) for name, value in model.named_parameters()}
    with pytest.raises(InvalidInput, match=r"--setting prior=fashion_mnist or prior=mnist"):
        rebuild_captured("ggss_r", model, input_shape=(1, 28, 28), gradient=sent, rng=rng())
