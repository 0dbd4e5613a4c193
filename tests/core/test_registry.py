"""Rows by name, and plugins that are imported when they are asked for and not before."""

import inspect
import sys
from dataclasses import dataclass

import pytest

from reconrisk.core.errors import InvalidInput
from reconrisk.core.registry import GROUPS, Choice, Info, Plugin, Registry, installed_plugins
from tests.offered_plugins import offer_plugins

GROUP = GROUPS["attack"]
ROWS = (Info("root", "math:sqrt", "Square root."), Info("power", "math:pow", "Power."))


@dataclass(frozen=True)
class OtherInfo(Info):
    """A row of another kind."""


def row_of(plugin, offered):
    return Info(plugin.name, plugin.where, offered.__doc__ or "")


@pytest.fixture
def registry():
    return Registry("attack", ROWS, row_of)


def test_own_rows_are_found_by_name_in_their_order(registry):
    assert list(registry) == ["root", "power"]
    assert len(registry) == 2
    assert registry["power"].load()(2, 3) == 8
    assert registry.get("root") is ROWS[0]
    assert registry.get("cube") is None


def test_an_unknown_name_is_refused_with_those_that_exist(registry):
    with pytest.raises(InvalidInput, match=r"attack='rot' to be one of root, power\. Did you mean root\?"):
        registry["rot"]


def test_listing_imports_nothing_and_asking_imports_the_one(registry, tmp_path, monkeypatch):
    source = 'def halve(value):\n    """Halve a number."""\n    return value / 2\n'
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"halve": "stand_in_plugin:halve"}}, source)
    assert Plugin("attack", "halve", "stand_in_plugin:halve", "stand-in", "1.5") in installed_plugins("attack")
    assert installed_plugins("defense") == ()
    assert "halve" in registry
    assert registry.names == ("root", "power", "halve")
    assert list(registry) == ["root", "power"]  # nothing depends on what else is installed
    assert "stand_in_plugin" not in sys.modules
    assert registry["halve"].summary == "Halve a number."
    assert registry["halve"].load()(4) == 2
    assert "stand_in_plugin" in sys.modules


def test_an_own_row_wins_over_a_plugin_of_its_name(registry, tmp_path, monkeypatch):
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"root": "stand_in_plugin:root"}})
    assert registry["root"] is ROWS[0]
    assert "stand_in_plugin" not in sys.modules


def test_a_registry_without_plugins_finds_none(tmp_path, monkeypatch):
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"halve": "stand_in_plugin:halve"}})
    closed = Registry("attack", ROWS)
    assert "halve" not in closed
    with pytest.raises(InvalidInput, match="to be one of root, power"):
        closed["halve"]


def test_a_plugin_may_be_a_row_and_the_entry_point_names_it(registry, tmp_path, monkeypatch):
    source = 'from reconrisk.core.registry import Info\nROW = Info("other", "math:floor", "Round down.")\n'
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"floor": "stand_in_plugin:ROW"}}, source)
    assert registry["floor"] == Info("floor", "math:floor", "Round down.")


@pytest.mark.parametrize(
    ("where", "source", "message"),
    [
        ("stand_in_plugin:absent", "", "it raised AttributeError: module 'stand_in_plugin' has no attribute 'absent'"),
        ("stand_in_plugin:x", "import not_there_at_all", "it raised ModuleNotFoundError: No module named"),
        ("stand_in_plugin:x", "raise RuntimeError('half\\nwritten.')", "it raised RuntimeError: half. Reinstall"),
        ("stand_in_plugin:x", "import sys; sys.exit(3)", "it raised SystemExit: 3. Reinstall"),
        ("stand_in_plugin:x", "x = 3", "to be a function, stand_in_plugin:x is a int"),
        (
            "stand_in_plugin:x",
            "from reconrisk.core.registry import Info\nx = Info('x', 'math:absent', '')",
            "to be importable from math:absent, it raised AttributeError",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_with_its_distribution(
    registry, tmp_path, monkeypatch, where, source, message
):
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"broken": where}}, source)
    with pytest.raises(InvalidInput) as refused:
        registry["broken"]
    assert str(refused.value).startswith("Expected the attack 'broken' of stand-in 1.5 to be ")
    assert message in str(refused.value)


def test_a_row_of_another_kind_is_refused(tmp_path, monkeypatch):
    source = "from reconrisk.core.registry import Info\nROW = Info('x', 'math:floor', '')\n"
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"floor": "stand_in_plugin:ROW"}}, source)
    other = Registry("attack", [OtherInfo("root", "math:sqrt", "Square root.")], row_of)
    with pytest.raises(InvalidInput, match="to be OtherInfo or a function, stand_in_plugin:ROW is Info"):
        other["floor"]


def test_a_name_that_two_distributions_offer_is_refused_with_both(registry, tmp_path, monkeypatch):
    for name in ("first", "second"):
        point = {GROUP: {"halve": f"{name}_module:halve"}}
        offer_plugins(tmp_path / name, monkeypatch, point, distribution=f"the-{name}", module=f"{name}_module")
    with pytest.raises(InvalidInput, match="to be offered by one distribution, found it in the-first and the-second"):
        registry["halve"]


def test_what_the_function_of_a_plugin_raises_names_the_plugin(registry, tmp_path, monkeypatch):
    source = (
        "from reconrisk.core.errors import InvalidInput\n"
        "def configure(value):\n"
        "    if value < 0:\n        raise InvalidInput('Expected value >= 0.')\n"
        "    return 1 / value\n"
    )
    offer_plugins(tmp_path, monkeypatch, {GROUP: {"inverse": "stand_in_plugin:configure"}}, source)
    assert registry.configure("inverse", 4) == 0.25
    assert registry.configure("power", 2, 3) == 8
    with pytest.raises(InvalidInput, match=r"the attack 'inverse' of stand-in 1\.5 to be configured, it raised Zero"):
        registry.configure("inverse", 0)
    with pytest.raises(InvalidInput, match=r"^Expected value >= 0\.$"):
        registry.configure("inverse", -1)
    with pytest.raises(ValueError, match="math domain error"):  # an error of this package stays one
        registry.configure("root", -1)


def test_a_row_that_cannot_be_made_names_the_plugin(tmp_path, monkeypatch):
    def row_from_signature(plugin, offered):
        return Info(plugin.name, plugin.where, str(inspect.signature(offered)))

    offer_plugins(tmp_path, monkeypatch, {GROUP: {"table": "builtins:dict"}})
    with pytest.raises(InvalidInput, match=r"the attack 'table' of stand-in 1\.5 to be configured, it raised Value"):
        Registry("attack", ROWS, row_from_signature)["table"]


def test_names_of_plugins_may_have_points_and_hyphens():
    assert Choice.read("attacks", "my-attack.v2(steps=3)") == Choice("my-attack.v2", (("steps", 3),))
    assert Choice.read("attacks", " größe ") == Choice("größe")
    for text in ("my attack", "-attack", "a/b", "a(b"):
        with pytest.raises(InvalidInput, match="to be a name"):
            Choice.read("attacks", text)
