import dataclasses

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.defenses import clip_and_noise, gaussian_noise, prune
from reconrisk.releases.observe import find_model

LOSS = nn.functional.cross_entropy


def records():
    rng = torch.Generator().manual_seed(0)
    return torch.rand(3, 2, 4, 4, generator=rng), torch.tensor([1, 0, 2])


def network(training=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    return model.train(training)


def release(training=False):
    return rr.releases.GradientRelease(network(training), LOSS, *records())


@pytest.mark.parametrize("power", list(Knows))
def test_side_information_is_handed_over_only_if_known(power):
    inputs, labels = records()
    defense = clip_and_noise(noise_multiplier=1.0, clip_norm=1.0)
    threat = HONEST_BUT_CURIOUS.with_knowledge(power)
    seen = rr.observe(release(), defense=defense, threat=threat, rng=torch.Generator().manual_seed(0))
    given = {
        name
        for name in ("labels", "record_norms", "batch_statistics", "noise_std", "kept")
        if getattr(seen, name) is not None
    }
    expected = {
        Knows.LABELS: {"labels"},
        Knows.RECORD_NORM: {"record_norms"},
        Knows.BATCH_STATISTICS: {"batch_statistics"},
        Knows.DEFENSE: {"noise_std"},
    }
    assert given == expected.get(power, set())
    if power is Knows.LABELS:
        assert torch.equal(seen.labels, labels)
    if power is Knows.RECORD_NORM:
        torch.testing.assert_close(seen.record_norms, inputs.flatten(1).norm(dim=1))


@pytest.mark.parametrize("training", [False, True])
def test_batch_statistics_are_what_batch_norm_received(training):
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.BATCH_STATISTICS)
    model = network(training)
    seen = rr.observe(rr.releases.GradientRelease(model, LOSS, *records()), threat=threat)
    values = model[0](records()[0]).detach()
    torch.testing.assert_close(seen.batch_statistics["1.mean"], values.mean((0, 2, 3)))
    torch.testing.assert_close(seen.batch_statistics["1.var"], values.var((0, 2, 3), unbiased=False))
    assert torch.equal(model[1].running_mean, torch.zeros(3))  # looking does not train


def test_a_known_defense_is_replayed_on_candidates_and_an_unknown_one_is_not():
    defense = clip_and_noise(noise_multiplier=1e-9, clip_norm=0.1)
    for knows, norm_is_clipped in ((True, True), (False, False)):
        threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE) if knows else HONEST_BUT_CURIOUS
        seen = rr.observe(release(), defense=defense, threat=threat, rng=torch.Generator().manual_seed(0))
        again = seen.forward(*records())
        size = torch.cat([value.flatten() for value in again.values()]).norm()
        assert (float(size) <= 0.1 * (1 + 1e-5)) is norm_is_clipped
        if knows:
            for name, value in seen.released.items():
                torch.testing.assert_close(again[name].detach(), value, atol=1e-8, rtol=1e-4)


def test_a_known_pruning_shows_what_was_kept():
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE)
    seen = rr.observe(release(), defense=prune(0.5), threat=threat, rng=torch.Generator())
    total = sum(value.numel() for value in seen.kept.values())
    assert sum(int(value.sum()) for value in seen.kept.values()) == total - total // 2


@pytest.mark.parametrize("rng", [None, 0])
def test_a_defense_needs_a_generator(rng):
    with pytest.raises(rr.InvalidInput, match=f"rng={rng} to be a torch.Generator"):
        rr.observe(release(), defense=prune(0.5), rng=rng)


def test_without_a_defense_the_release_itself_is_received():
    seen = rr.observe(release(), threat=HONEST_BUT_CURIOUS.with_knowledge(*Knows))
    assert all(torch.equal(value, seen.released[name]) for name, value in release().value().items())
    assert (seen.noise_std, seen.kept) == (None, None)


def test_noise_is_drawn_from_the_generator_alone():
    defense = gaussian_noise(0.5)
    first, again, other = (
        rr.observe(release(), defense=defense, rng=torch.Generator().manual_seed(seed)).released["4.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_known_noise_has_its_standard_deviation_on_every_value():
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE)
    seen = rr.observe(release(), defense=gaussian_noise(0.5), threat=threat, rng=torch.Generator())
    assert {name: value.shape for name, value in seen.noise_std.items()} == {
        name: value.shape for name, value in seen.released.items()
    }
    assert {float(value.unique()) for value in seen.noise_std.values()} == {0.5}
    assert seen.kept is None


class Deep(nn.Module):
    """Batch norm behind batch norm, on flat features: the second sees what the mode of the first makes of them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second, self.last = (
            nn.Linear(32, 4),
            nn.BatchNorm1d(4),
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
        )

    def forward(self, inputs):
        return self.last(self.second(torch.tanh(self.norm(self.first(inputs.flatten(1))))))[:, :3]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["gradient", "local update"])
def test_batch_statistics_of_later_layers_follow_the_mode_of_earlier_ones(training, kind):
    torch.manual_seed(0)
    model = Deep().train(training)
    inputs, labels = records()
    if kind == "gradient":
        made = rr.releases.GradientRelease(model, LOSS, inputs, labels)
    else:
        made = rr.releases.LocalUpdateRelease(model, LOSS, inputs, labels, learning_rate=0.1, steps=1)
    seen = rr.observe(made, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.BATCH_STATISTICS))
    with torch.no_grad():
        flat = model.first(inputs.flatten(1))
        mean, var = (flat.mean(0), flat.var(0, unbiased=False)) if training else (torch.zeros(4), torch.ones(4))
        deep = model.second(torch.tanh((flat - mean) / (var + model.norm.eps).sqrt()))
    assert sorted(seen.batch_statistics) == ["last.mean", "last.var", "norm.mean", "norm.var"]
    torch.testing.assert_close(seen.batch_statistics["last.mean"], deep.mean(0))
    torch.testing.assert_close(seen.batch_statistics["last.var"], deep.var(0, unbiased=False))


def test_a_model_without_batch_norm_has_no_batch_statistics():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.BATCH_STATISTICS)
    assert rr.observe(rr.releases.GradientRelease(plain, LOSS, *records()), threat=threat).batch_statistics is None
    bare = rr.releases.ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, *records())
    assert rr.observe(bare, threat=threat).batch_statistics is None


def test_what_is_received_has_no_history_that_leads_to_the_records():
    inputs, labels = records()
    made = rr.releases.GradientRelease(network(), LOSS, inputs.requires_grad_(), labels)
    seen = rr.observe(made, threat=HONEST_BUT_CURIOUS.with_knowledge(*Knows))
    assert seen.record_norms is not None
    received = [seen.released, seen.labels, seen.record_norms, seen.batch_statistics]
    assert not any(tensor.requires_grad for tensor in tensors_within(received, set()))


def test_labels_received_are_a_copy():
    inputs, labels = records()
    made = rr.releases.GradientRelease(network(), LOSS, inputs, labels)
    seen = rr.observe(made, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
    labels += 1
    assert seen.labels.tolist() == [1, 0, 2]


def test_the_network_of_a_map_is_found_behind_a_defense():
    seen = rr.observe(
        release(), defense=prune(0.1), threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE), rng=torch.Generator()
    )
    assert isinstance(find_model(seen.forward), nn.Sequential)
    assert find_model(lambda inputs, labels: {}) is None


def test_records_outside_the_range_are_refused():
    with pytest.raises(
        rr.InvalidInput, match=r"Expected records within data_range=\(0.0, 0.5\), found \d+ above"
    ) as it:
        rr.observe(release(), data_range=(0.0, 0.5))
    assert f"{float(release().inputs.max()):g}" not in str(it.value)  # a message may go into a log


def tensors_within(value, seen):
    """Every tensor that can be reached from a value by attributes, items, closures and modules."""
    if id(value) in seen or isinstance(value, (str, int, float, type, type(None))):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_within(item, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_within(item, seen)
    else:
        for cell in getattr(value, "__closure__", None) or ():
            yield from tensors_within(cell.cell_contents, seen)
        yield from tensors_within(getattr(value, "__dict__", {}), seen)
        if dataclasses.is_dataclass(value):
            yield from tensors_within([getattr(value, field.name) for field in dataclasses.fields(value)], seen)


@pytest.mark.parametrize("kind", ["gradient", "local update"])
def test_no_record_can_be_reached_from_an_observation(kind):
    inputs, labels = records()
    if kind == "gradient":
        made = rr.releases.GradientRelease(network(), LOSS, inputs, labels)
    else:
        made = rr.releases.LocalUpdateRelease(
            network(), LOSS, inputs, labels, learning_rate=0.1, epochs=1, batch_size=2
        )
    assert any(tensor is inputs for tensor in tensors_within(made, set()))  # the walk would find them
    defense = clip_and_noise(noise_multiplier=1.0, clip_norm=1.0)
    threat = HONEST_BUT_CURIOUS.with_knowledge(*(set(Knows) - {Knows.LABELS}))
    seen = rr.observe(made, defense=defense, threat=threat, rng=torch.Generator().manual_seed(0))
    for tensor in tensors_within(seen, set()):
        flat = tensor.detach().flatten().double()
        for record in inputs.flatten(1).double():
            if len(flat) >= len(record):
                windows = flat.unfold(0, len(record), 1)
                assert not bool((windows - record).abs().amax(1).lt(1e-6).any())
