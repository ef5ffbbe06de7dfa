"""Methods and heads of other installed packages, by their entry points."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import pytest

from fewtags.config import load_config
from fewtags.errors import UserError
from fewtags.extend import Head, HeadSpec, Method, register_head
from fewtags.methods import METHODS, find_method, list_methods, objective_class
from fewtags.models.heads import HEADS, LinearHead, head_class


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is forgotten after it."""
    monkeypatch.setattr("fewtags.methods.table.METHODS", METHODS.copy())
    monkeypatch.setattr("fewtags.models.heads.HEADS", HEADS.copy())


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    """A package `other_package` with these contents, and its entry points by group and name."""

    def install(contents: dict[str, object], **points: dict[str, str]) -> None:
        module = types.ModuleType("other_package")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, "other_package", module)
        every = [
            EntryPoint(name, value, f"fewtags.{group}") for group, by in points.items() for name, value in by.items()
        ]
        monkeypatch.setattr("fewtags.plugins.entry_points", lambda group: [e for e in every if e.group == group])

    return install


MINE = Method("mine", "Mine", "", "linear", "fewtags.methods.elementwise:AssumeNegative", "", "")


def test_a_method_of_another_package_is_chosen_and_listed(install):
    install({"MINE": MINE}, methods={"mine": "other_package:MINE"})
    assert find_method("mine") is MINE
    assert "mine" in list_methods()
    assert load_config(overrides=["method=mine"]).head_name == "linear"
    assert objective_class("mine").__name__ == "AssumeNegative"


def test_ours_are_not_replaced(install):
    impostor = Method("an", "Impostor", "", "linear", "other_package:Nothing", "", "")
    install({"AN": impostor}, methods={"an": "other_package:AN"})
    assert "an" in list_methods()
    assert find_method("an").title != "Impostor"


@pytest.mark.parametrize("value", ["other_package:MISSING", "no_such_package:MINE", "other_package:NUMBER"])
def test_one_that_cannot_be_loaded_is_told_and_stops_no_other(value, install):
    install({"MINE": MINE, "NUMBER": 7}, methods={"broken": value, "mine": "other_package:MINE"})
    with pytest.warns(UserWarning, match="fewtags.methods 'broken'.*was not loaded"):
        assert find_method("mine") is MINE


def test_a_head_of_another_package(install):
    class MyHead(LinearHead):
        pass

    install({"MyHead": MyHead}, heads={"my-head": "other_package:MyHead", "lost": "other_package:Lost"})
    assert head_class("my-head") is MyHead
    assert load_config(overrides=["method=an", "head=my-head"]).head_name == "my-head"
    with pytest.raises(UserError, match=r"Head 'lost' \(other_package:Lost\) cannot be loaded"):
        head_class("lost")


def test_a_head_is_registered_once():
    class MyHead(Head):
        pass

    register_head("my-head", MyHead)
    assert head_class("my-head") is MyHead
    with pytest.raises(UserError, match="There is already a head 'my-head'"):
        register_head("my-head", MyHead)
    with pytest.raises(UserError, match="There is already a head 'linear'"):
        register_head("linear", MyHead)


def test_a_head_declares_its_spec_once_or_as_in_older_versions_by_single_attributes():
    class Words(Head):
        spec = HeadSpec(needs_words=True)

    class Older(Head):
        needs_start = True
        starts_plain = False

    assert (Words.spec.needs_words, Words.spec.needs_start) == (True, False)
    assert Older.spec == HeadSpec(needs_start=True, starts_plain=False)
    assert Head.spec == HeadSpec()
