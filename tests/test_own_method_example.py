"""The example of docs/how-to/write-your-own-method.md, run as it is printed."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fewtags import extend
from fewtags.config import load_config
from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.errors import UserError
from fewtags.methods import METHODS, Method, list_methods, objective_class, register
from fewtags.methods.base import Learner
from fewtags.methods.losses import assume_negative_loss

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "write-your-own-method.md"


@pytest.fixture
def example(tmp_path, monkeypatch) -> str:
    """Registers the method of the page; gives the text of its file."""
    monkeypatch.setattr("fewtags.methods.table.METHODS", METHODS.copy())
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    file = tmp_path / "second_opinion.py"
    file.write_text(source, encoding="utf-8")
    runpy.run_path(str(file))
    return source


def build(num_images: int = 8, num_categories: int = 3):
    torch.manual_seed(0)
    labels = torch.randint(-1, 2, (num_images, num_categories), dtype=torch.int8)
    objective = objective_class("second-opinion")
    problem = Problem(("a", "b", "c"), labels)
    batch = Batch(torch.randn(num_images, 5), labels, torch.arange(num_images))
    return objective(objective.Config(), problem, None), batch


class Model(nn.Sequential):
    def forward(self, images):
        return Outputs(super().forward(images))


def test_the_example_builds_on_public_names_alone(example):
    imported = re.findall(r"^ *from (fewtags[\w.]*) import (.*)$", example, flags=re.MULTILINE)
    names = {name.strip() for module, names in imported if module == "fewtags.extend" for name in names.split(",")}
    assert {module for module, _ in imported} == {"fewtags.extend", "fewtags.cli"}
    assert names <= set(extend.__all__)
    assert {"Objective", "register"} <= names


def test_the_example_is_a_command_line_that_knows_one_method_more(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fewtags.methods.table.METHODS", METHODS.copy())  # as it is before the file is run
    monkeypatch.setattr(sys, "argv", ["second_opinion.py", "methods", "second-opinion"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "second_opinion.py"), run_name="__main__")
    assert not ended.value.code
    said = capsys.readouterr().out
    assert said.startswith("second-opinion: Second opinion")
    assert "threshold = 0.6" in said


def test_it_is_known_only_while_it_is_registered():
    assert "second-opinion" not in list_methods()


def test_it_is_chosen_by_name_and_takes_its_settings(example):
    config = load_config(overrides=["method=second-opinion", "method.threshold=0.7"])
    assert "second-opinion" in list_methods()
    assert config.head_name == "linear"
    assert config.method.threshold == 0.7
    with pytest.raises(UserError, match="did you mean 'threshold'"):
        load_config(overrides=["method=second-opinion", "method.treshold=0.7"])


def test_it_starts_as_assume_negative_and_then_finds_what_it_long_believed(example):
    objective, batch = build()
    outputs = Outputs(torch.where(batch.labels == 0, 3.0, -3.0))
    for epoch in range(4):
        progress = Progress(epoch, 5, 0, 1)
        objective.observe(batch, outputs, progress)
        result = objective.loss(batch, outputs, progress)
        if epoch == 0:
            torch.testing.assert_close(result.total, assume_negative_loss(outputs.logits, batch.labels).mean())
            assert not result.decisions["found"].any()
    assert torch.equal(result.decisions["found"], batch.labels == 0)


def test_it_trains_and_its_state_survives_a_checkpoint(example):
    objective, batch = build()
    learner = Learner(Model(nn.Linear(5, 3)), objective)
    learner(batch, Progress(0, 5, 0, 1)).total.backward()
    assert learner.model[0].weight.grad.any()
    again, _ = build()
    again.load_state_dict(objective.state_dict())
    assert objective.belief.any()
    assert torch.equal(again.belief, objective.belief)


def test_it_says_what_it_decides(example):
    objective, batch = build()
    objective.belief.fill_(0.9)
    progress = Progress.at_end(5)
    found = objective.decide(batch, Outputs(torch.zeros(8, 3)), progress)["found"]
    assert torch.equal(found, batch.labels == 0)


def test_a_name_is_taken_once(example):
    with pytest.raises(UserError, match="There is already a method 'an'"):
        register(Method("an", "", "", "linear", "module:Class", "", ""))
