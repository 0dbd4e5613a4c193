"""Training of generators: what they learn, and that being stopped changes nothing."""

import json
import signal

import pytest
import torch

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.priors.load.gan import gan
from reconrisk.priors.train.gan import GanTraining, train_gan
from reconrisk.priors.train.training_state import Training, read_training_record

TINY = GanTraining(channels=8, latent_size=4, steps=12, batch_size=8)


def pictures(count=32, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


class Stopped(KeyboardInterrupt):
    """The user's Ctrl-C after some steps."""


def stopped_after(monkeypatch, steps):
    original = Training.remaining

    def remaining(run):
        for number, step in enumerate(original(run)):
            yield step
            if number + 1 == steps:
                raise Stopped

    monkeypatch.setattr(Training, "remaining", remaining)


def made(folder):
    return gan(folder).draw(5, torch.Generator().manual_seed(7))


def stopped_once(folder, monkeypatch, steps=4):
    with monkeypatch.context() as patch:
        stopped_after(patch, steps)
        with pytest.raises(Stopped):
            train_gan(pictures(), folder, TINY)
    return folder


def test_stopped_twice_it_ends_with_the_same_weights(tmp_path, monkeypatch):
    whole = train_gan(pictures(), tmp_path / "whole", TINY)
    for _ in range(2):
        stopped_once(tmp_path / "parts", monkeypatch)
        assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["training.json", "training.safetensors"]
    parts = train_gan(pictures(), tmp_path / "parts", TINY)
    assert torch.equal(made(whole), made(parts))
    assert sorted(path.name for path in parts.iterdir()) == ["config.json", "generator.safetensors", "trained.json"]


def test_stopped_before_the_first_step_it_begins_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Training, "remaining", lambda run: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            train_gan(pictures(), tmp_path / "parts", TINY)
    whole, parts = (train_gan(pictures(), tmp_path / name, TINY) for name in ("whole", "parts"))
    assert torch.equal(made(whole), made(parts))


def test_states_are_kept_on_the_way(tmp_path, monkeypatch):
    steps = []
    original = Training.keep
    monkeypatch.setattr(Training, "keep", lambda run: (steps.append(run.step), original(run)))
    train_gan(pictures(), tmp_path / "one", TINY, checkpoint_every=5)
    assert steps == [5, 10]


def test_another_seed_gives_other_weights_and_the_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one = train_gan(pictures(), tmp_path / "one", TINY)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = train_gan(pictures(), tmp_path / "other", GanTraining(8, 4, 12, 8, seed=1))
    assert not torch.equal(made(one), made(other))


def test_it_learns_a_single_picture(tmp_path):
    # a generator need only make one picture, dark left and bright right: a critic tells all else from it
    values = torch.cat([torch.zeros(8, 1, 8, 4), torch.ones(8, 1, 8, 4)], dim=3)
    settings = GanTraining(channels=8, latent_size=4, steps=120, batch_size=8, learning_rate=4e-3, average=0.9)
    found = made(train_gan(values, tmp_path / "one", settings))
    untrained = made(train_gan(values, tmp_path / "none", GanTraining(8, 4, 1, 8)))
    assert float((found - values[:1]).square().mean()) < 0.05 < float((untrained - values[:1]).square().mean())


def test_statistics_of_the_training_are_kept_so_that_a_record_is_the_same_whatever_is_made_beside_it(tmp_path):
    prior = gan(train_gan(pictures(), tmp_path / "one", TINY))
    statistics = {name: value for name, value in prior.generate.named_buffers() if name.endswith("running_mean")}
    assert len(statistics) == 3
    assert all(bool(value.any()) for value in statistics.values())  # they begin at zero
    latents = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(prior.decode(latents)[:1], prior.decode(latents[:1]))


def test_how_strong_a_record_is_is_not_normalised_away(tmp_path):
    prior = gan(train_gan(pictures(), tmp_path / "one", TINY))
    latents = 10 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    one, twice = (prior.decode(scale * latents) for scale in (1, 2))
    # normalised each for itself, both would be the same but for biases: 0.005 apart
    assert float((one - twice).abs().mean()) > 0.02


def test_what_a_finished_folder_says_of_its_training(tmp_path):
    folder = train_gan(pictures(), tmp_path / "one", TINY)
    stated = read_training_record(folder)
    assert (stated.kind, stated.count, stated.settings["steps"]) == ("gan", 32, 12)
    assert stated.seconds > 0
    before = (folder / "generator.safetensors").stat().st_mtime_ns
    assert train_gan(pictures(), folder, TINY) == folder
    assert (folder / "generator.safetensors").stat().st_mtime_ns == before
    with pytest.raises(InvalidFile, match="holds a prior of another training"):
        train_gan(pictures(), folder, GanTraining(channels=8, latent_size=4, steps=13))
    assert read_training_record(tmp_path) is None


def test_a_state_of_another_training_is_refused(tmp_path, monkeypatch):
    stopped_once(tmp_path / "one", monkeypatch)
    with pytest.raises(InvalidFile, match=r"It is of another training\. Pass another folder"):
        train_gan(pictures(seed=1), tmp_path / "one", TINY)


def test_a_state_that_is_cut_short_is_refused(tmp_path, monkeypatch):
    path = stopped_once(tmp_path / "one", monkeypatch) / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidFile, match="not a complete state"):
        train_gan(pictures(), tmp_path / "one", TINY)


@pytest.mark.parametrize("text", ["{", "3", '{"kind": "gan"}'])
def test_words_about_a_training_that_cannot_be_read_are_refused(tmp_path, text):
    (tmp_path / "trained.json").write_text(text)
    with pytest.raises(InvalidFile, match=r"trained\.json"):
        train_gan(pictures(), tmp_path, TINY)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (torch.rand(4, 16), r"to be \(n, channels, height, width\)\. Pass pictures"),
        (torch.rand(4, 1, 6, 6), "divisible by 4"),
        (2 * torch.ones(4, 1, 8, 8), "records"),
        (torch.rand(0, 1, 8, 8), "empty"),
    ],
)
def test_records_that_cannot_be_learned_are_refused(tmp_path, records, words):
    with pytest.raises(InvalidInput, match=words):
        train_gan(records, tmp_path / "none", TINY)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"steps": 0}, "steps"), ({"average": 2.0}, "average"), ({"learning_rate": 0.0}, "learning_rate")],
)
def test_settings_that_cannot_be_used_are_refused(settings, words):
    with pytest.raises(InvalidInput, match=words):
        GanTraining(**settings)


def test_channels_that_cannot_be_halved_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="even"):
        train_gan(pictures(), tmp_path / "none", GanTraining(channels=13))


def test_ctrl_c_inside_a_step_waits_for_its_end(tmp_path, monkeypatch):
    whole = train_gan(pictures(), tmp_path / "whole", TINY)
    original, calls = torch.optim.Adam.step, []

    def step(optimizer, *given, **named):
        calls.append(1)
        if len(calls) == 5:  # the critic of the third step has not learned yet, or the generator has not
            signal.raise_signal(signal.SIGINT)
        return original(optimizer, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        with pytest.raises(KeyboardInterrupt):
            train_gan(pictures(), tmp_path / "parts", TINY)
    parts = train_gan(pictures(), tmp_path / "parts", TINY)
    assert torch.equal(made(whole), made(parts))


def test_a_half_done_step_is_never_kept(tmp_path, monkeypatch):
    original, calls = torch.optim.Adam.step, []

    def step(optimizer, *given, **named):
        calls.append(1)
        if len(calls) == 6:
            raise Stopped
        return original(optimizer, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        with pytest.raises(Stopped):
            train_gan(pictures(), tmp_path / "parts", TINY)
    parts = train_gan(pictures(), tmp_path / "parts", TINY)
    assert torch.equal(made(train_gan(pictures(), tmp_path / "whole", TINY)), made(parts))


def test_any_seed_can_be_used(tmp_path):
    large = train_gan(pictures(), tmp_path / "large", GanTraining(8, 4, 1, 8, seed=2**62))
    assert bool(made(large).isfinite().all())
    assert read_training_record(large).settings["seed"] == 2**62


def test_a_state_of_another_kind_is_refused_by_its_kind(tmp_path, monkeypatch):
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    from reconrisk.priors.train.diffusion import DiffusionTraining, train_diffusion

    folder = stopped_once(tmp_path / "one", monkeypatch)
    with pytest.raises(InvalidFile, match="kind: It is the state of a gan, not of a diffusion"):
        train_diffusion(pictures(), folder, DiffusionTraining(channels=(8,), steps=12, batch_size=8))
    train_gan(pictures(), folder, TINY)
    with pytest.raises(InvalidFile, match="kind: It holds the prior of a gan, not of a diffusion"):
        train_diffusion(pictures(), folder, DiffusionTraining(channels=(8,), steps=12, batch_size=8))


def test_words_of_a_state_without_it_are_no_obstacle(tmp_path, monkeypatch):
    (stopped_once(tmp_path / "one", monkeypatch) / "training.safetensors").unlink()  # killed between the two
    assert torch.equal(
        made(train_gan(pictures(), tmp_path / "one", TINY)), made(train_gan(pictures(), tmp_path / "two", TINY))
    )


def test_the_range_of_the_records_is_stated_and_is_the_default(tmp_path):
    folder = train_gan(255 * pictures(), tmp_path / "one", TINY, data_range=(0, 255))
    assert read_training_record(folder).data_range == (0.0, 255.0)
    assert gan(folder).data_range == (0.0, 255.0)
    assert gan(folder, data_range=(-1.0, 1.0)).data_range == (-1.0, 1.0)
    assert train_gan(255 * pictures(), folder, TINY, data_range=(0, 255)) == folder
    with pytest.raises(InvalidFile, match=r"another training, data_range \[0.0, 255.0\] instead of \[0.0, 1.0\]"):
        train_gan(pictures(), folder, TINY)


def test_a_folder_that_states_no_range_has_records_from_0_to_1(tmp_path):
    path = train_gan(pictures(), tmp_path / "one", TINY) / "trained.json"
    stated = json.loads(path.read_text())
    del stated["data_range"]
    path.write_text(json.dumps(stated))
    assert gan(path.parent).data_range == (0.0, 1.0)
    assert train_gan(pictures(), path.parent, TINY) == path.parent
    path.write_text(json.dumps({**stated, "data_range": [1.0, 0.0]}))
    with pytest.raises(InvalidFile, match="It does not describe a training"):
        gan(path.parent)


@pytest.mark.parametrize("text", ["{}", "[]", '{"settings": [1], "records": 2}'])
def test_a_state_that_is_not_of_a_training_is_refused_and_left(tmp_path, monkeypatch, text):
    folder = stopped_once(tmp_path / "one", monkeypatch)
    (folder / "training.json").write_text(text)
    with pytest.raises(InvalidFile, match="It is of another training"):
        train_gan(pictures(), folder, TINY)
    assert (folder / "training.json").read_text() == text
