import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.metric import Limit
from reconrisk.core.registry import Choice
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.threat import Controls, Knows, Sees, ThreatModel
from reconrisk.metrics.goals import goal_in, psnr_at_least
from reconrisk.studies.audit.job import job_from_spec
from reconrisk.studies.audit.spec import KEYS, AuditSpec, Training, read_spec, spec_from_mapping

DOCUMENT = Path(__file__).parents[3] / "docs" / "audit.md"

words = st.text(min_size=1).filter(str.strip)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True).filter(lambda name: name != "name")
numbers = st.floats(min_value=1e-9, max_value=1e9)
shares = st.floats(min_value=0, max_value=1)
settings = st.dictionaries(names, st.one_of(st.booleans(), st.integers(), numbers, words), max_size=3)
choices = st.builds(lambda name, given: Choice(name, tuple(given.items())), names, settings)
goals = st.one_of(
    st.builds(goal_in, st.sampled_from(("psnr", "mse")), numbers),
    st.builds(goal_in, st.sampled_from(("ssim", "ncc")), st.floats(min_value=1e-9, max_value=1.0)),
)
optional = {
    "weights": words,
    "split": words,
    "label": words,
    "store": words,
    "account": words,
    "data_range": st.tuples(numbers, numbers),
    "records": st.lists(st.integers(min_value=0, max_value=9), min_size=1).map(tuple),
    "trials": st.integers(min_value=1, max_value=99),
    "local_steps": st.integers(min_value=1, max_value=99),
    "local_learning_rate": numbers,
    "threat": st.builds(
        ThreatModel,
        st.sampled_from(Sees),
        st.frozensets(st.sampled_from(Knows)),
        st.frozensets(st.sampled_from(Controls)),
    ),
    "training": st.builds(Training, numbers, numbers, st.floats(min_value=1e-3, max_value=1), st.integers(1, 99)),
    "redact": st.booleans(),
}
specs = st.builds(
    AuditSpec,
    model=words,
    data=words,
    folder=words,
    train_mode=st.booleans(),
    batch_size=st.integers(min_value=1, max_value=99),
    defenses=st.lists(choices, max_size=3).map(tuple),
    attacks=st.lists(choices, min_size=1, max_size=3).map(tuple),
    goals=st.lists(goals, max_size=3).map(tuple),
    max_risk=st.lists(st.builds(Limit, goals, shares), max_size=3).map(tuple),
    budget=words,
    seed=st.integers(min_value=0, max_value=2**63 - 1),
    confidence=st.floats(min_value=0.5, max_value=0.99),
    out=words,
    **{name: st.one_of(st.none(), strategy) for name, strategy in optional.items()},
)


@given(specs)
def test_a_spec_survives_what_is_written_of_it(spec):
    assert spec_from_mapping(json.loads(json.dumps(spec.mapping()))) == spec
    assert from_json(to_json(spec)) == spec


def test_a_limit_of_all_is_written_so_that_it_is_read():
    spec = AuditSpec("m", "d", max_risk=(Limit(psnr_at_least(20.0), 1.0),))
    assert spec.mapping()["max_risk"] == ["psnr>=20: 100%"]
    assert spec_from_mapping(spec.mapping()) == spec


@given(specs)
def test_the_line_states_all_but_where_results_go(spec):
    again = read_spec(spec.line())
    assert "\n" not in spec.line()
    folder = "." if Path(spec.folder).is_absolute() else spec.folder
    assert again == AuditSpec(**{**vars(spec), "store": None, "out": AuditSpec.out, "redact": None, "folder": folder})


def test_every_field_is_a_key():
    assert set(KEYS) == set(AuditSpec.__dataclass_fields__)


BASE = {"model": "logistic", "data": "digits"}


def refused(**stated):
    with pytest.raises(InvalidInput) as caught:
        spec_from_mapping({**BASE, **stated})
    return str(caught.value)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"trails": 3}, "trails: Expected a known key. Did you mean trials?"),
        ({"zzz": 3}, "zzz: Expected a known key. Known are model, data,"),
        ({"trials": "many"}, "trials: Expected trials='many' to be a whole number."),
        ({"trials": 0}, "trials: Expected trials=0 >= 1."),
        ({"batch_size": True}, "batch_size: Expected batch_size=True to be a whole number."),
        ({"model": 3}, "model: Expected model=3 to be a text."),
        ({"train_mode": "yes"}, "train_mode: Expected train_mode='yes' to be true or false."),
        ({"data_range": [0]}, "data_range: Expected data_range=[0] to be two numbers such as [-1, 1]."),
        ({"records": "3-x"}, "records: Expected records='3-x' to be whole numbers such as 0,3,8-15."),
        ({"records": "5-3"}, "the smaller first"),
        ({"records": [-1]}, "records: Expected records=-1 >= 0."),
        ({"threat": {"knows": ["labls"]}}, "threat: Expected knows='labls' to be one of labels,"),
        ({"threat": {"know": []}}, "Did you mean knows?"),
        ({"threat": "all"}, "threat: Expected threat='all' to be a table with sees, knows, controls."),
        ({"goals": ["psnr<=20"]}, "goals: Expected goal='psnr<=20' to be written with >=."),
        ({"goals": [3]}, "goals: Expected goal=3 to be a metric"),
        ({"max_risk": "psnr>=20"}, "max_risk: Expected max_risk='psnr>=20' to be a goal and a share"),
        ({"budget": -3}, "budget: Expected budget=-3.0 > 0."),
        ({"seed": 2**63}, "seed: Expected seed=9223372036854775808 < 2^63."),
        ({"confidence": 1}, "confidence: Expected confidence=1 in (0, 1)."),
        ({"training": {"clip_norm": 1}}, "training: Expected training={'clip_norm': 1} to state the noise_multiplier."),
        ({"training": {"noise_multiplier": -1}}, "training: Expected noise_multiplier=-1"),
        ({"training": {"noise_multiplier": 1, "step": 3}}, "Did you mean steps?"),
        ({"defenses": [{"clip_norm": 1}]}, "Add the key 'name' to a table."),
        ({"defenses": ["prune(0.9)"]}, "Write '0.9' as setting=value."),
        ({"attacks": [{"name": "imprint", "bins": [1]}]}, "attacks: Expected attacks.bins=[1] to be a number, a word"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key(stated, message):
    assert message in refused(**stated)


@pytest.mark.parametrize("missing", ["model", "data"])
def test_a_missing_key_is_named(missing):
    with pytest.raises(InvalidInput, match=f"^{missing}: Expected this key"):
        spec_from_mapping({key: value for key, value in BASE.items() if key != missing})


def test_texts_and_tables_mean_the_same():
    text = spec_from_mapping({**BASE, "defenses": ["none", "clip_and_noise(noise_multiplier=1.5, clip_norm = 2)"]})
    table = {"name": "clip_and_noise", "noise_multiplier": 1.5, "clip_norm": 2}
    assert text == spec_from_mapping({**BASE, "defenses": ["none", table]})
    assert spec_from_mapping({**BASE, "records": "0,3,8-10"}).records == (0, 3, 8, 9, 10)
    assert spec_from_mapping({**BASE, "attacks": "thorough"}).attacks == (Choice("thorough"),)
    given = Choice.read("attacks", "imprint(isolated=false, bins=8, measurement=random, public=none, scale=1e-3)")
    wanted = {"isolated": False, "bins": 8, "measurement": "random", "public": None, "scale": 1e-3}
    assert given == Choice("imprint", tuple(wanted.items()))


def test_a_stated_threat_sees_an_update_and_knows_the_defense_unless_it_says_otherwise():
    assert spec_from_mapping({**BASE, "threat": {}}).threat == ThreatModel(Sees.ONE_UPDATE, {Knows.DEFENSE})
    nothing = spec_from_mapping({**BASE, "threat": {"knows": [], "controls": "model-parameters"}}).threat
    assert nothing == ThreatModel(Sees.ONE_UPDATE, controls=frozenset(Controls))


def test_files_are_toml_or_json_and_paths_are_relative_to_them(tmp_path):
    (tmp_path / "a.toml").write_text('model = "logistic"\ndata = "mine.npz"\n[training]\nnoise_multiplier = 2\n')
    (tmp_path / "a.json").write_text('{"model": "logistic", "data": "mine.npz", "training": {"noise_multiplier": 2}}')
    spec = read_spec(tmp_path / "a.toml")
    assert spec == read_spec(str(tmp_path / "a.json"))
    assert spec.path(spec.data) == tmp_path / "mine.npz"
    assert spec.path("/elsewhere/x") == Path("/elsewhere/x")
    (tmp_path / "b.toml").write_text('model = "logistic"\ndata = "mine.npz"\nfolder = "sub"\n')
    assert read_spec(tmp_path / "b.toml").path("x") == tmp_path / "sub" / "x"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.toml", None, "There is no such file. Pass a TOML or JSON file"),
        ("a.toml", b"model = ", "syntax: It cannot be read"),
        ("a.json", b'{"model": ', "syntax: It cannot be read"),
        ("a.json", b"[1, 2]", "It holds a list, not keys and values"),
        ("a.toml", b"\xff\xfe", "byte 0: It is not text in UTF-8"),
    ],
)
def test_files_that_are_no_specs_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidFile, match=re.escape(message)) as caught:
        read_spec(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_an_error_in_a_file_names_the_file_and_the_key(tmp_path):
    (tmp_path / "a.toml").write_text('model = "logistic"\ndata = "digits"\nbatchsize = 3\n')
    with pytest.raises(InvalidInput, match=r"a\.toml, batchsize: Expected a known key\. Did you mean batch_size"):
        read_spec(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"data": "absent.npz"}, "data: Expected name_or_path='absent.npz' to be a file, a folder or one of"),
        ({"data": "digts"}, "Did you mean digits?"),
        ({"model": "lenett"}, "model: Expected model='lenett' to be package.module:function or one of"),
        ({"model": "no_such_module:f"}, "model: Expected model='no_such_module:f' to be importable"),
        ({"weights": "absent.safetensors"}, "weights: "),
        ({"model": "torch.nn:Identity"}, "model, data: "),
        ({"defenses": ["prune_smalest"]}, "defenses: Expected defense='prune_smalest' to be one of"),
        ({"defenses": ["prune"]}, "defenses: Expected share for prune."),
        ({"attacks": ["analytical"]}, "attacks: Expected attack='analytical' to be one of"),
        ({"attacks": ["analytic(estimate=best)"]}, "attacks: Expected estimate='best' to be one of"),
        ({"goals": ["ssim>=0.5"], "data": "breast_cancer"}, "goals: Expected goals='ssim>=0.5' to use one of"),
        ({"budget": "soon"}, "budget: Expected budget='soon' to be a time"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused_before_anything_is_computed(stated, message):
    with pytest.raises(InvalidInput, match="^" + re.escape(message) if ": " in message else re.escape(message)):
        job_from_spec(spec_from_mapping({**BASE, **stated}))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a network, its weights and records."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "spec_net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))\n"
    )
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", images=rng.random((12, 1, 2, 2), dtype=np.float32), labels=np.arange(12) % 3)
    save_file({"1.weight": torch.eye(3, 4), "1.bias": torch.zeros(3)}, tmp_path / "w.safetensors")
    yield tmp_path
    sys.modules.pop("spec_net", None)


def test_model_weights_and_data_are_found_beside_the_spec(folder, monkeypatch):
    stated = {"model": "spec_net:build", "weights": "w.safetensors", "data": "mine.npz", "data_range": [0, 1]}
    (folder / "spec.json").write_text(json.dumps({**stated, "attacks": "analytic", "trials": 2, "train_mode": True}))
    job = job_from_spec(read_spec(folder / "spec.json"))
    assert job.model.training
    assert torch.equal(job.model[1].weight, torch.eye(3, 4))
    result = job.run()
    assert result.lines[0].success.value == 1.0
    assert str(folder) not in to_json(result)  # where a machine keeps its files is nobody's business
    monkeypatch.chdir(folder)
    again = job_from_spec(read_spec(shlex.split(result.signature)[2])).run()
    assert again.exposures == result.exposures
    assert again.run == result.run


def test_drawn_weights_follow_from_the_seed():
    jobs = [job_from_spec(spec_from_mapping({**BASE, "seed": seed})) for seed in (1, 1, 2)]
    first, same, other = (next(job.model.parameters()) for job in jobs)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_training_digits_are_public_where_test_digits_are_attacked():
    job = job_from_spec(spec_from_mapping({"model": "logistic", "data": "mnist", "split": "test"}))
    assert (len(job.dataset), len(job.public)) == (1000, 4000)


def test_a_training_is_audited_through_one_of_its_steps_with_its_corridor():
    training = {"noise_multiplier": 2, "sampling_probability": 0.01, "steps": 100}
    stated = {**BASE, "training": training, "attacks": ["analytic"], "trials": 2, "records": "0-19"}
    result = job_from_spec(spec_from_mapping(stated)).run()
    assert [item.label for item in result.defenses] == ["clip_and_noise(noise_multiplier=2, clip_norm=1)"]
    assert result.training.mechanism.steps == 100
    assert 0 < result.training.corridor.identification.value < 1
    bare = job_from_spec(spec_from_mapping({**stated, "defenses": "none"})).run()
    assert [item.label for item in bare.defenses] == ["none"]
    assert bare.training == result.training


def test_a_training_that_the_account_contradicts_is_refused():
    stated = {"noise_multiplier": 2, "sampling_probability": 0.01, "steps": 100}
    job = job_from_spec(spec_from_mapping({**BASE, "training": stated, "attacks": ["analytic"], "trials": 1}))
    other = Training(noise_multiplier=1.0, sampling_probability=0.01, steps=100).mechanism
    with pytest.raises(
        InvalidInput, match=r"^Expected training=.*to be the mechanism of the account, .*Leave training out"
    ):
        job.run(training=other)
    assert job.run(training=job.spec.training.mechanism).training.mechanism == job.spec.training.mechanism


def test_the_example_in_the_documentation_states_every_key_and_runs(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "spec.toml").write_text(text)
    spec = read_spec(tmp_path / "spec.toml")
    optional_keys = {key for key in KEYS if re.search(rf"^#? ?\[?{key}\b", text, re.MULTILINE)}
    assert set(KEYS) - optional_keys == {"folder"}
    result = job_from_spec(spec).run()
    assert {line.defense.partition("(")[0] for line in result.lines} == {"none", "clip_and_noise", "prune"}
    assert all(line.limits for line in result.lines if line.goal == spec.max_risk[0].goal)
    assert result.training is not None
    assert (tmp_path / "trials.db").is_file()
