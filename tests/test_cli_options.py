"""Groups of options: on the command line like any other option, in the code one parameter."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fewtags import cli
from fewtags.cli_options import OptionGroup, ReaderOptions, TagReaderOptions, TrainingReaderOptions, grouped
from fewtags.errors import UserError

MOST_PARAMETERS = 14  # that a command may declare; a group counts as one


@dataclass(frozen=True)
class Light(OptionGroup):
    colour: Annotated[str, typer.Option(help="Of the light.")] = "red"
    watts: Annotated[int, typer.Option("--watts", "-w", min=1, help="Its power.")] = 5


def test_a_group_becomes_its_options_and_the_command_gets_the_group():
    app, seen = typer.Typer(), []

    @app.command()
    @grouped
    def shine(name: str, *, light: Light, quiet: bool = False) -> None:
        seen.append((name, light, quiet))

    run = CliRunner().invoke
    assert run(app, ["lamp", "--colour", "blue", "-w", "7"]).exit_code == 0
    assert run(app, ["lamp", "--quiet"]).exit_code == 0
    assert run(app, ["lamp", "-w", "0"]).exit_code == 2
    assert seen == [("lamp", Light("blue", 7), False), ("lamp", Light(), True)]
    help_text = run(app, ["--help"]).output
    assert help_text.index("--colour") < help_text.index("--watts") < help_text.index("--quiet")


def test_no_command_declares_more_parameters_than_one_can_read():
    declared = {
        command.callback.__name__: len(inspect.signature(inspect.unwrap(command.callback)).parameters)
        for command in cli.app.registered_commands
        if command.callback is not None
    }
    too_many = {name: number for name, number in declared.items() if number > MOST_PARAMETERS}
    assert not too_many, "put options that belong together into a group (cli_options.py)"


def test_reader_options_are_given_by_their_names():
    options = TagReaderOptions(
        option=["zero=absent", "tags=[cat, dog]"], aliases=Path("a.yaml"), min_images=0, allow_outside=True
    ).options
    assert options == {
        "zero": "absent", "tags": ["cat", "dog"], "aliases": "a.yaml", "min_images": 0, "allow_outside": True,
    }  # fmt: skip
    assert TagReaderOptions().options == {}
    with pytest.raises(UserError, match="should be name=value"):
        _ = ReaderOptions(option=["zero"]).options


@pytest.mark.parametrize("options", [{"tags": Path("t.csv")}, {"format": "csv"}, {"option": ["zero=absent"]}])
def test_any_reader_option_counts_as_given(options):
    assert ReaderOptions(**options).given
    assert not ReaderOptions().given


def test_categories_are_names_or_a_file_of_them(tmp_path):
    assert TrainingReaderOptions(categories="dog, sea").options == {"categories": ["dog", "sea"]}
    file = tmp_path / "names.txt"
    file.write_text("dog\n", encoding="utf-8")
    assert TrainingReaderOptions(categories=str(file)).settings()["data.options"] == {"categories": str(file)}
    assert TrainingReaderOptions().settings() == {"data.tags": None, "data.format": None, "data.options": {}}
