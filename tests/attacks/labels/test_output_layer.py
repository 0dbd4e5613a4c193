import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.labels.infer import is_cross_entropy, output_layer
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows

KNOWS_DEFENSE = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE)


def setting():
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return model, torch.rand(5, 3, generator=rng, dtype=torch.float64), torch.tensor([0, 3, 3, 1, 0])


def summed_gradient(model, inputs, labels):
    """Slow oracle: the sum over records of the derivative by the outputs times the features and one."""
    with torch.no_grad():
        features = torch.cat([model[:2](inputs), torch.ones(len(inputs), 1)], dim=1)
        errors = model(inputs).softmax(1) - nn.functional.one_hot(labels, 4)
    return sum(torch.outer(error, feature) for error, feature in zip(errors, features, strict=True))


RELEASES = {
    "mean": lambda *args: rr.releases.GradientRelease(args[0], nn.functional.cross_entropy, *args[1:]),
    "stated mean": lambda *args: rr.releases.GradientRelease(
        args[0], nn.CrossEntropyLoss(reduction="sum"), *args[1:], "mean"
    ),
    "sum": lambda *args: rr.releases.GradientRelease(args[0], nn.CrossEntropyLoss(reduction="sum"), *args[1:]),
    "stated sum": lambda *args: rr.releases.GradientRelease(args[0], nn.functional.cross_entropy, *args[1:], "sum"),
    "step": lambda *args: rr.releases.LocalUpdateRelease(
        args[0], nn.functional.cross_entropy, *args[1:], learning_rate=0.3, steps=1
    ),
    "step of a sum": lambda *args: rr.releases.LocalUpdateRelease(
        args[0], nn.CrossEntropyLoss(reduction="sum"), *args[1:], learning_rate=0.3, steps=1
    ),
    "decayed step": lambda *args: rr.releases.LocalUpdateRelease(
        args[0],
        nn.functional.cross_entropy,
        *args[1:],
        optimizer=rr.releases.sgd(0.3, momentum=0.9, weight_decay=0.1, nesterov=True),
        steps=1,
    ),
}


@pytest.mark.parametrize("form", RELEASES)
def test_every_form_of_an_update_gives_the_same_sum_over_records(form):
    model, inputs, labels = setting()
    layer = output_layer(rr.observe(RELEASES[form](model, inputs, labels)))
    torch.testing.assert_close(layer.gradient, summed_gradient(model, inputs, labels), rtol=1e-6, atol=1e-9)
    assert layer.parameters[0].tolist() == torch.cat([model[2].weight, model[2].bias[:, None]], 1).tolist()
    assert (layer.weighted, layer.biased, layer.linear, layer.exact) == (True, True, True, True)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_small_steps_of_an_epoch_add_up_to_the_same_sum(reduction):
    """Five records in batches of one and two passes; at rate 1e-5 the weights hardly move between the steps."""
    model, inputs, labels = setting()
    release = rr.releases.LocalUpdateRelease(
        model, nn.CrossEntropyLoss(reduction=reduction), inputs, labels, learning_rate=1e-5, epochs=2, batch_size=1
    )
    layer = output_layer(rr.observe(release))
    torch.testing.assert_close(layer.gradient, summed_gradient(model, inputs, labels), rtol=1e-3, atol=1e-3)
    assert not layer.exact
    assert len(layer.parameters) == 10
    torch.testing.assert_close(layer.parameters[-1] - layer.parameters[0], -9e-5 * layer.gradient / 5)


def test_parts_that_are_not_released_are_known_all_the_same():
    model, inputs, labels = setting()
    weight = output_layer(rr.observe(RELEASES["mean"](model, inputs, labels, None, ["2.weight"])))
    assert (weight.weighted, weight.biased) == (True, False)
    assert torch.equal(weight.offset, model[2].bias)
    bias = output_layer(rr.observe(RELEASES["mean"](model, inputs, labels, None, ["2.bias"])))
    assert (bias.weighted, bias.biased) == (False, True)
    torch.testing.assert_close(bias.gradient[:, 0], summed_gradient(model, inputs, labels)[:, -1])


@pytest.mark.parametrize("threat", [HONEST_BUT_CURIOUS, KNOWS_DEFENSE])
def test_noise_is_known_or_measured(threat):
    model = nn.Linear(300, 4)
    release = rr.releases.GradientRelease(
        model, nn.functional.cross_entropy, torch.rand(5, 300), torch.tensor([0, 3, 3, 1, 0])
    )
    noise = rr.defenses.gaussian_noise(0.2)
    observation = rr.observe(release, defense=noise, threat=threat, rng=torch.Generator().manual_seed(0))
    # summed over five records; 301 columns leave 4 % standard error where it is measured
    tolerance = 1e-6 if threat is KNOWS_DEFENSE else 0.16
    assert output_layer(observation).noise_std == pytest.approx(5 * 0.2, rel=tolerance)


def test_clipping_is_known_excluded_or_unknown():
    model, inputs, labels = setting()
    release, rng = RELEASES["mean"](model, inputs, labels), torch.Generator().manual_seed(0)
    clip = rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0)
    assert output_layer(rr.observe(release)).clipped is None
    assert output_layer(rr.observe(release, threat=KNOWS_DEFENSE)).clipped is False
    assert output_layer(rr.observe(release, threat=KNOWS_DEFENSE, defense=clip, rng=rng)).clipped is True
    noise = rr.defenses.gaussian_noise(0.1)
    assert output_layer(rr.observe(release, threat=KNOWS_DEFENSE, defense=noise, rng=rng)).clipped is False
    each = rr.releases.GradientRelease(
        model, nn.functional.cross_entropy, inputs, labels, "sum", clip=rr.releases.HardClip(1.0)
    )
    assert output_layer(rr.observe(each)).clipped is True


def test_an_adaptive_optimizer_is_recognised():
    model, inputs, labels = setting()
    release = rr.releases.LocalUpdateRelease(
        model, nn.functional.cross_entropy, inputs, labels, optimizer=rr.releases.adam(0.01), steps=2
    )
    assert not output_layer(rr.observe(release)).linear


def test_cross_entropy_is_recognised_by_its_derivative():
    assert is_cross_entropy(lambda outputs, labels: -outputs.log_softmax(1).gather(1, labels[:, None]).sum(), 3)
    assert not is_cross_entropy(lambda outputs, labels: (outputs - nn.functional.one_hot(labels, 3)).square().sum(), 3)
    assert not is_cross_entropy(lambda outputs, labels: 2 * nn.functional.cross_entropy(outputs, labels), 3)
