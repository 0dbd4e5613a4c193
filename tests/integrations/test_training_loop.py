import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput

pytestmark = pytest.mark.filterwarnings("ignore:The noise is drawn from a seeded generator")

INPUTS = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3


def setting(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, **options)


def step(model, optimizer):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(INPUTS), LABELS).backward()
    optimizer.step()


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()]).clone()


@pytest.mark.parametrize(
    "defense", [rr.defenses.clip(0.01), rr.defenses.gaussian_noise(0.3), rr.defenses.sign()], ids=str
)
def test_a_step_uses_what_the_defense_sends_and_nothing_else(defense):
    model, optimizer = setting()
    nn.functional.cross_entropy(model(INPUTS), LABELS).backward()
    bare = {name: value.grad.clone() for name, value in model.named_parameters()}
    expected = defense(bare, rng=torch.Generator().manual_seed(3))
    before = weights(model)
    with rr.integrations.defend_optimizer(optimizer, model, defense, rng=torch.Generator().manual_seed(3)) as defended:
        optimizer.step()
    moved = torch.cat([-0.1 * value.flatten() for value in expected.values()])
    torch.testing.assert_close(weights(model) - before, moved)
    assert defended.steps == 1
    assert all(torch.equal(defended.sent[name], value) for name, value in expected.items())


def test_noise_is_fresh_in_every_step_and_ends_with_the_context():
    model, optimizer = setting()
    with rr.integrations.defend_optimizer(
        optimizer, model, rr.defenses.gaussian_noise(1.0), rng=torch.Generator().manual_seed(0)
    ) as defended:
        step(model, optimizer)
        first = defended.sent["0.weight"]
        step(model, optimizer)
        assert not torch.equal(first, defended.sent["0.weight"])
    sent, before = defended.sent, weights(model)
    step(model, optimizer)
    assert defended.steps == 2
    assert defended.sent is sent
    moved = torch.cat([-0.1 * value.grad.flatten() for value in model.parameters()])
    torch.testing.assert_close(weights(model) - before, moved)


def test_a_loop_without_noise_still_learns():
    model, optimizer = setting()
    first = float(nn.functional.cross_entropy(model(INPUTS), LABELS).detach())
    with rr.integrations.defend_optimizer(optimizer, model, rr.defenses.prune(0.5), rng=torch.Generator()):
        for _ in range(50):
            step(model, optimizer)
    assert float(nn.functional.cross_entropy(model(INPUTS), LABELS).detach()) < first


def test_frozen_parameters_are_left_out():
    model, _ = setting()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with rr.integrations.defend_optimizer(
        optimizer, model, rr.defenses.gaussian_noise(1.0), rng=torch.Generator().manual_seed(0)
    ) as defended:
        step(model, optimizer)
    assert sorted(defended.sent) == ["2.bias", "2.weight"]


def test_what_cannot_be_defended_is_refused():
    model, optimizer = setting()
    other, _ = setting()
    with pytest.raises(InvalidInput, match="but 4 belong to another model"):
        rr.integrations.defend_optimizer(optimizer, other, rr.defenses.clip(1.0), rng=torch.Generator())
    with pytest.raises(InvalidInput, match="rng=7 to be a torch"):
        rr.integrations.defend_optimizer(optimizer, model, rr.defenses.clip(1.0), rng=7)
    with pytest.raises(InvalidInput, match="to be a torch optimizer"):
        rr.integrations.defend_optimizer(model, model, rr.defenses.clip(1.0), rng=torch.Generator())
    with rr.integrations.defend_optimizer(optimizer, model, rr.defenses.prune(0.5)):
        with pytest.raises(InvalidInput, match="Expected gradients before a step"):
            optimizer.step()
        nn.functional.cross_entropy(model(INPUTS), LABELS).backward()
        model[0].weight.grad[0, 0] = float("nan")
        before = weights(model)
        with pytest.raises(InvalidInput, match=r"released\['0\.weight'\] to be finite"):
            optimizer.step()
        assert torch.equal(weights(model), before)


def test_a_gradient_that_is_not_finite_is_clipped_to_zero():
    model, optimizer = setting()
    before = weights(model)
    with rr.integrations.defend_optimizer(optimizer, model, rr.defenses.clip(1.0)):
        nn.functional.cross_entropy(model(INPUTS), LABELS).backward()
        model[0].weight.grad[0, 0] = float("nan")
        with pytest.warns(UserWarning, match="replaced by zero"):
            optimizer.step()
    assert torch.equal(weights(model), before)


def test_a_refreshed_defense_follows_the_model_and_a_local_one_is_refused():
    model, optimizer = setting()
    defense = rr.defenses.refreshed(
        lambda moments: rr.defenses.clip(1.0) >> rr.defenses.optimal_noise(moments, unit=0.1),
        nn.functional.cross_entropy,
        INPUTS,
        LABELS,
        every=2,
        probes=2,
    )
    with rr.integrations.defend_optimizer(optimizer, model, defense, rng=torch.Generator().manual_seed(0)):
        for _ in range(4):
            step(model, optimizer)
    assert (defense.sends, defense.refreshes) == (4, 2)
    with pytest.raises(InvalidInput, match="to need no records"):
        rr.integrations.defend_optimizer(
            optimizer, model, rr.defenses.local_optimal_noise(like=0.1), rng=torch.Generator()
        )


def test_a_closure_is_refused_since_it_would_not_be_defended():
    model, optimizer = setting()
    with (
        rr.integrations.defend_optimizer(optimizer, model, rr.defenses.clip(0.5), rng=torch.Generator()),
        pytest.raises(InvalidInput, match=r"step\(\) without a closure"),
    ):
        optimizer.step(lambda: nn.functional.cross_entropy(model(INPUTS), LABELS))


def test_parameters_that_are_added_later_or_unused_are_defended_too():
    model, optimizer = setting()
    optimizer.param_groups[0]["params"] = list(model[0].parameters())
    defense = rr.defenses.gaussian_noise(0.1)
    with rr.integrations.defend_optimizer(optimizer, model, defense, rng=torch.Generator().manual_seed(0)) as defended:
        step(model, optimizer)
        assert set(defended.sent) == {"0.weight", "0.bias"}
        optimizer.add_param_group({"params": list(model[2].parameters())})
        optimizer.zero_grad()
        model[0](INPUTS).sum().backward()  # the last layer is not used
        optimizer.step()
    assert set(defended.sent) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert bool(defended.sent["2.weight"].any())


def test_refreshed_and_local_parts_of_a_chain_are_seen():
    model, optimizer = setting()
    inner = rr.defenses.refreshed(
        lambda moments: rr.defenses.optimal_noise(moments, like=0.1), nn.functional.cross_entropy, INPUTS, LABELS
    )
    with rr.integrations.defend_optimizer(optimizer, model, rr.defenses.clip(1.0) >> inner, rng=torch.Generator()):
        step(model, optimizer)
    assert inner.sends == 1
    with pytest.raises(InvalidInput, match="to need no records"):
        rr.integrations.defend_optimizer(
            optimizer, model, rr.defenses.clip(1.0) >> rr.defenses.local_optimal_noise(like=0.1)
        )
    with pytest.raises(InvalidInput, match="defense=3 to be a defense"):
        rr.integrations.defend_optimizer(optimizer, model, 3)


def test_a_seeded_generator_warns_and_the_operating_system_does_not():
    model, optimizer = setting()
    with pytest.warns(UserWarning, match="32 bits"):
        rr.integrations.defend_optimizer(optimizer, model, rr.defenses.clip(1.0), rng=torch.Generator())
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        model, optimizer = setting()
        with rr.integrations.defend_optimizer(optimizer, model, rr.defenses.gaussian_noise(1.0)) as defended:
            nn.functional.cross_entropy(model(INPUTS), LABELS).backward()
            optimizer.step()
        drawn.append(torch.cat([value.flatten() for value in defended.sent.values()]))
    assert not torch.equal(*drawn)  # no seed of torch decides the noise
