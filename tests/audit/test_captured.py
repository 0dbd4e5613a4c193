import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

import reconrisk as rr
from reconrisk.audit.captured import rebuild_captured
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import Controls, Knows
from reconrisk.data.dataset import Dataset

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
    return rr.GradientRelease(model, loss_fn, RECORDS[rows], LABELS[rows]).value()


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
        learning_rate=0.5,
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
        batch_size=2,
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
    sent = rr.GradientRelease(planted, cross_entropy, RECORDS, LABELS).value()
    result = rebuild_captured(attack, mlp(), input_shape=(5,), gradient=sent, batch_size=3, rng=rng())
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
        ({}, "to be exactly one of the two"),
        ({"gradient": {"0.weight": torch.ones(8, 5)}}, r"Missing: 0.bias, 2.weight, 2.bias"),
        ({"gradient": gradient(mlp()), "local_steps": 2}, "to be left out with a gradient"),
        ({"gradient": gradient(mlp()), "batch_size": 0}, "Expected batch_size=0 >= 1"),
        ({"gradient": gradient(mlp()), "labels": [3]}, "Expected labels=3 to be from 0 to 2"),
        ({"gradient": gradient(mlp()), "input_shape": (4,)}, r"takes records of shape \(4,\)"),
        ({"gradient": gradient(mlp()), "public": Dataset("p", torch.rand(2, 4))}, r"records of shape \(5,\)"),
        ({"gradient": {**gradient(mlp()), "0.bias": torch.ones(7)}}, r"gradient\['0.bias'\].shape=\(7,\) to be \(8,\)"),
        (
            {"gradient": {**gradient(mlp()), "0.bias": torch.full((8,), torch.nan)}},
            r"gradient\['0.bias'\] to be finite",
        ),
        ({"gradient": gradient(mlp()), "attack": "class_mean"}, "Expected records beside the attacked ones"),
        ({"gradient": gradient(mlp()), "attack": "best_candidate"}, "Expected data for best_candidate"),
    ],
)
def test_what_does_not_fit_is_refused(words, message):
    words = {"attack": "constant_guess", "input_shape": (5,), **words}
    with pytest.raises(InvalidInput, match=message):
        rebuild_captured(words.pop("attack"), mlp(), rng=rng(), **words)


def test_a_batch_size_that_is_wrong_is_suspected():
    """Three records stated as one: whatever single record is found does not explain their update."""
    attacked = {"input_shape": (5,), "gradient": gradient(mlp(), rows=slice(0, 3))}
    wrong = rebuild_captured("idlg", mlp(), rng=rng(), **attacked).report.accounts[0].status
    assert "differs from the captured one by" in wrong.cause
    assert "batch_size" in wrong.remedy
    right = rebuild_captured("idlg", mlp(), batch_size=3, rng=rng(), **attacked).report.accounts[0].status
    assert "differs" not in right.cause
