"""Settings: which layer wins, what a mistake is told, and the way through YAML and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fewtags.config import RunConfig, load_config, merge, nested, parse_override, resolve
from fewtags.errors import UserError
from fewtags.methods import METHODS


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


# --- layers: defaults < the method's own settings < its profile < the file < values < overrides ---


def test_a_methods_own_settings_win_over_defaults():
    assert load_config(None, ["method=kggr"]).head.classifier_graph == "paper"
    assert load_config(None, ["method=ssgrl"]).head.classifier_graph != "paper"


def test_a_profile_wins_over_the_methods_settings():
    assert load_config(None, ["method=an"]).train.lr == 1e-4
    paper = load_config(None, ["method=an", "method.profile=paper"])
    assert (paper.train.lr, paper.input.size, paper.model.train_from) == (1e-5, 448, "layer4")
    assert paper.profile == "paper"


def test_the_file_wins_over_the_profile(tmp_path):
    file = write(tmp_path, "method: {name: an, profile: paper}\ntrain: {lr: 0.5}\n")
    config = load_config(file)
    assert config.train.lr == 0.5
    assert config.train.epochs == 20
    assert config.input.size == 448


def test_overrides_win_over_the_file_and_the_last_over_the_first(tmp_path):
    file = write(tmp_path, "train: {lr: 0.5, epochs: 3}\n")
    config = load_config(file, ["train.lr=0.25", "train.lr=0.125"], train={"epochs": 4})
    assert (config.train.lr, config.train.epochs) == (0.125, 4)


def test_the_profile_does_not_depend_on_the_order_it_is_given_in():
    before = load_config(None, ["method.profile=paper", "method=an", "train.lr=3"])
    after = load_config(None, ["train.lr=3", "method=an", "method.profile=paper"])
    assert before == after
    assert before.train.lr == 3


def test_another_method_keeps_what_a_person_set(tmp_path):
    file = write(tmp_path, "method: asl\nhead: {dropout: 0.5}\n")
    config = load_config(file, ["method=an"])
    assert (config.method_name, config.head_name, config.head.dropout) == ("an", "linear", 0.5)


def test_the_head_is_the_methods_unless_another_is_named():
    assert load_config(None, ["method=refined"]).head_name == "closed_form"
    assert load_config(None, ["method=caldnr", "method.profile=paper"]).head_name == "decoupled"
    assert load_config(None, ["method=caldnr", "head=graph"]).head_name == "graph"


@pytest.mark.parametrize("name", METHODS)
def test_every_profile_of_every_method_is_valid(name):
    for profile in ("default", *METHODS[name].profiles):
        config = load_config(None, [f"method={name}", f"method.profile={profile}"])
        assert (config.method_name, config.profile) == (name, profile)


# --- through YAML and back ---


@pytest.mark.parametrize("name", METHODS)
def test_round_trip(name, tmp_path):
    for profile in ("default", *METHODS[name].profiles):
        config = load_config(None, [f"method={name}", f"method.profile={profile}", "seed=7", "data.known=single"])
        assert load_config(write(tmp_path, config.to_yaml())) == config


def test_the_resolved_copy_is_complete(tmp_path):
    """A later version with other defaults must run what this one ran: every value is in the file."""
    values = yaml.safe_load(load_config().to_yaml())
    assert set(values) == {"data", "input", "model", "cache", "words", "head", "method", "train", "seed"}
    for group in ("data", "input", "model", "train"):
        assert set(values[group]) == set(RunConfig.model_fields[group].annotation.model_fields)


def test_settings_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        load_config().train.lr = 3


# --- mistakes ---


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("tran.lr=1", "did you mean 'train'"),
        ("train.lrr=1", r"\[train\] has no setting 'lrr'; did you mean 'lr'"),
        ("method=aslx", "did you mean 'asl'"),
        ("method.gama=2", r"\[method\] has no setting 'gama'"),
        ("head.refin=2", "did you mean 'refine'"),
        ("method.profile=defolt", "did you mean 'default'"),
        ("model.backbon=x", "did you mean 'backbone'"),
        ("train.epochs=0", "train.epochs should be greater than or equal to 1; it is 0"),
        ("data.known=[1]", "data.known"),
        ("=3", "'=3' is not a setting"),
        ("train", "'train' is not a setting"),
    ],
)
def test_a_mistake_is_told_with_what_is_near(override, hint):
    with pytest.raises(UserError, match=hint):
        load_config(None, [override])


# --- pieces ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=3", 3), ("a.b=3.5", 3.5), ("a.b=true", True), ("a.b=null", None), ("a.b=", None), ("a.b=x=y", "x=y"),
        ("a.b=[1, 2]", [1, 2]), ("a.b='3'", "3"), ("a.b=C:\\photos", "C:\\photos"), ("a.b=[broken", "[broken"),
    ],
)  # fmt: skip
def test_override_values_are_yaml(text, value):
    assert parse_override(text) == {"a": {"b": value}}


def test_a_number_in_scientific_notation_is_a_number():
    assert load_config(None, ["train.lr=1e-4"]).train.lr == 1e-4


def test_values_that_were_not_given_leave_no_trace():
    assert nested({"a.b": 1, "a.c": None, "seed": None, "d.e": Path("x y")}) == {"a": {"b": 1}, "d": {"e": "x y"}}


def test_merge_goes_group_by_group_and_leaves_its_arguments_alone():
    base, top = {"train": {"lr": 1, "epochs": 2}}, {"train": {"lr": 3}, "seed": 4}
    assert merge(base, top) == {"train": {"lr": 3, "epochs": 2}, "seed": 4}
    assert base == {"train": {"lr": 1, "epochs": 2}}


def test_a_method_by_name_is_short_for_its_group():
    assert resolve({"method": "asl"}) == resolve({"method": {"name": "asl"}})
    assert merge({"method": "asl"}, {"method": {"gamma_neg": 2}}) == {"method": {"name": "asl", "gamma_neg": 2}}


# --- the paper's crops ---


@pytest.mark.parametrize(("size", "first", "crops"), [
    (448, 512, [512, 448, 384, 320, 256]),
    (224, 256, [256, 224, 192, 160, 128]),
])  # fmt: skip
def test_crop_sides_of_the_paper(size, first, crops):
    config = load_config(None, [f"input.size={size}"]).input
    assert (config.first_side, config.crop_sides) == (first, crops)


def test_crops_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="crops of 300 px do not fit images resized to 256 px"):
        load_config(None, ["input.crops=[300, 200]"])
