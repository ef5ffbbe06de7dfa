"""Runs and models of earlier versions, whose names mean other methods today."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import yaml

from conftest import TinyConfig
from fewtags import Tagger
from fewtags.config import load_config, resolve
from fewtags.engine.record import load_run_config
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.training import train
from fewtags.errors import UserError
from fewtags.experiments.runs import read_run
from fewtags.renamed import REFINED, MethodRenamed, current_method


def as_recorded_before(config, old: str = "caldnr") -> dict:
    """The settings of a run of `refined` as version 0.1 wrote them, under this name."""
    values = config.nested()
    return {**values, "method": {**values["method"], "name": old}}


@pytest.mark.parametrize(("old", "new"), REFINED.items())
def test_a_record_of_the_old_default_is_the_recipe_of_ours(old, new):
    before = load_config(None, [f"method={new}"])
    with pytest.warns(MethodRenamed, match=f"'{old}' is '{new}' now; '{old}' is the paper's method"):
        now = resolve(as_recorded_before(before, old))
    assert now == before


@pytest.mark.parametrize("old", REFINED)
def test_the_old_profile_relative_is_the_default_now(old):
    with pytest.warns(MethodRenamed, match="'relative' of .* is its default profile now"):
        now = load_config(None, [f"method={old}", "method.profile=relative"])
    assert now == load_config(None, [f"method={old}"])


@pytest.mark.parametrize("profile", ["default", "paper"])
@pytest.mark.parametrize("name", [*REFINED, *REFINED.values(), "instant", "an"])
def test_todays_records_are_read_as_they_are(name, profile):
    if profile == "paper" and name in (*REFINED.values(), "instant"):
        return
    config = load_config(None, [f"method={name}", f"method.profile={profile}"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", MethodRenamed)
        assert resolve(config.nested()) == config


def test_settings_of_ours_under_the_papers_name_are_explained():
    with pytest.raises(UserError, match=r"no setting 'names'.*'caldnr' is the paper's method; .* is 'refined' now"):
        load_config(None, ["method=caldnr", "head.names=none"])


@pytest.fixture(scope="module")
def old_run(patches, tmp_path_factory):
    """A finished run of `refined` as version 0.1 left it, under the name of `caldnr`."""
    folder = tmp_path_factory.mktemp("old") / "run"
    config = TinyConfig.make("method=refined", "train.epochs=1")
    from fewtags.data.prepare import split_data

    train(config, folder, data=split_data(patches, config.data, 0), quiet=True)
    files = RunFolder(folder)
    files.config.write_text(yaml.safe_dump(as_recorded_before(config)))
    files.cell.write_text(json.dumps({"dataset": "patches", "method": "caldnr", "profile": "default"}))
    about = json.loads((files.model / "config.json").read_text())
    about["training"]["method"]["name"] = "caldnr"
    (files.model / "config.json").write_text(json.dumps(about))
    return folder


def test_an_old_run_says_what_it_is_now(old_run):
    with pytest.warns(MethodRenamed, match="'caldnr' is 'refined' now"):
        assert load_run_config(old_run).method_name == "refined"
    with pytest.warns(MethodRenamed):
        run = read_run(old_run)
    assert (run.method, run.profile) == ("refined", "default")


def test_a_row_of_a_grid_keeps_the_grids_own_name(old_run, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(old_run, other)
    RunFolder(other).cell.write_text(json.dumps({"method": "caldnr-no-names", "profile": "default"}))
    with pytest.warns(MethodRenamed):
        assert read_run(other).method == "caldnr-no-names"


def test_an_old_model_says_what_it_is_now(old_run):
    with pytest.warns(MethodRenamed, match="'caldnr' is 'refined' now"):
        tagger = Tagger.load(old_run)
    assert tagger.method == "refined"


def test_the_command_line_says_it_in_one_sentence(old_run, cli):
    answer = cli("train", "--resume", old_run)
    assert "fewtags: What was recorded as 'caldnr' is 'refined' now; 'caldnr' is the paper's method.\n" in answer.err
    assert "MethodRenamed" not in answer.err


def test_a_method_of_others_is_left_alone():
    method = {"name": "mine", "profile": "relative", "known_proportion": 1}
    assert current_method(method, "closed_form") == (method, "")
