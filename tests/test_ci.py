"""The files of CI: style is checked once, actions are pinned, and the targets exist."""

import re
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[1]
WORKFLOWS = sorted((PROJECT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_and_targets_exist(file: Path):
    text = file.read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    makefile = (PROJECT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in re.findall(r"run: make (\S+)", text))


def test_style_is_checked_once_and_every_promise_has_a_job():
    jobs = {file.stem: yaml.safe_load(file.read_text())["jobs"] for file in WORKFLOWS}
    commands = [step.get("run", "") for job in jobs["tests"].values() for step in job["steps"]]
    assert sum("make lint" in command or "make test " in command for command in commands) == 1
    assert {"lint", "test", "coverage", "lowest", "docs"} <= set(jobs["tests"])
    assert "make test-slow" in str(jobs["weekly"])
    assert "--cov-fail-under" in (PROJECT / "Makefile").read_text()
