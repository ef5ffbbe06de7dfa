"""The documentation says what is true: its examples run, its commands and links exist, its reference is complete.

A fenced block below `<!-- run -->` is executed, blocks of a page in order and in one folder that has `photos/`,
`tags.csv`, `photo.jpg` and, where the page does not train, a finished run in `runs/first`.
"""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from fewtags import hide_labels
from fewtags.config import GROUPS, RunConfig, merge, resolve
from fewtags.data.scenes import BACKBONE, make_scenes
from fewtags.errors import MissingExtra
from fewtags.methods import METHODS, objective_class
from fewtags.models.heads import HEADS, head_class

PROJECT = Path(__file__).parents[1]
DOCS = PROJECT / "docs"
GENERATED = ("cli.md", "settings.md")
PAGES = sorted(file for file in DOCS.rglob("*.md") if file.name not in GENERATED)
FRONT = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))


def short(file: Path) -> str:
    return file.relative_to(PROJECT).as_posix()


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROJECT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tool() -> ModuleType:
    return load_tool("make_reference")


@pytest.fixture(scope="session")
def reference(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The generated pages by name."""
    folder = tmp_path_factory.mktemp("reference")
    tool.write_pages(folder)
    return {name: (folder / name).read_text(encoding="utf-8") for name in GENERATED}


# --- blocks of code ---


class Block(NamedTuple):
    language: str
    text: str
    run: bool


def blocks(file: Path) -> list[Block]:
    pattern = r"^([ ]*)(<!-- run -->\n+ *)?```(\w*)[^\n]*\n(.*?)^ *```$"
    found = re.findall(pattern, file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [Block(language, text, bool(mark)) for _, mark, language, text in found]


def commands_in(text: str) -> Iterator[list[str]]:
    """`fewtags ...` lines of a block of shell commands, as lists of words."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip().startswith("fewtags "):
            yield shlex.split(line, comments=True)[1:]


def runnable() -> list[Path]:
    return [file for file in [*PAGES, *FRONT] if any(block.run for block in blocks(file))]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: photos, a file with some of their tags, and a first run."""
    from fewtags.config import load_config
    from fewtags.engine.training import train

    folder = tmp_path_factory.mktemp("workshop")
    scenes = make_scenes(folder / "drawn", 60, 0)
    known = hide_labels(scenes.labels == 1, 0.6)
    (folder / "photos").mkdir()
    with (folder / "tags.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "tags"])
        for row in range(len(scenes)):
            shutil.move(scenes.path(row), folder / "photos" / f"{row:03d}.jpg")
            writer.writerow(
                [f"{row:03d}.jpg", ", ".join(scenes.categories[c] for c in np.flatnonzero(known[row] == 1))]
            )
    shutil.rmtree(folder / "drawn")
    shutil.copy(folder / "photos" / "000.jpg", folder / "photo.jpg")
    data = {"source": str(folder / "photos"), "tags": str(folder / "tags.csv")}
    train(load_config(None, SMALL_SETTINGS, data=data), folder / "runs" / "first", quiet=True)
    return folder


SMALL_SETTINGS = ("model.backbone=test_resnet", f"model.weights={BACKBONE}", "input.size=96")


@pytest.fixture
def small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone that comes with the package, where an example leaves the choice to fewtags: it needs no network."""
    small = {"model": {"backbone": "test_resnet", "weights": str(BACKBONE)}, "input": {"size": 96}}

    def with_small_backbone(given: dict) -> RunConfig:
        return resolve(given if given.get("model", {}).get("weights") else merge(given, small))

    monkeypatch.setattr("fewtags.config.resolve", with_small_backbone)


@pytest.mark.parametrize("page", runnable(), ids=short)
def test_examples_run(page, workshop, small_backbone, tmp_path, monkeypatch, cli, traced_once):
    if page.name == "export.md" or "onnx" in page.read_text(encoding="utf-8"):
        pytest.importorskip("onnxruntime")
    marked = [block for block in blocks(page) if block.run]
    trains = any(words[0] == "train" for block in marked for words in commands_in(block.text))
    shutil.copytree(workshop, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs") if trains else None)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in marked:
        if block.language == "python":
            try:
                exec(compile(block.text, short(page), "exec"), names)
            except MissingExtra as missing:  # what came before it on the page was tried
                pytest.skip(str(missing))
        for words in commands_in(block.text) if block.language != "python" else ():
            answer = cli(*words)
            assert answer.code == 0, f"fewtags {shlex.join(words)}\n{answer.out}\n{answer.err}"


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=short)
def test_commands_on_the_page_exist(page, tool):
    there = tool.commands()
    for block in blocks(page):
        for words in commands_in(block.text) if block.language in ("", "bash", "sh") else ():
            name, *rest = words
            if name.startswith("-"):
                continue
            assert name in there, f"there is no `fewtags {name}`"
            known = {option for parameter in there[name].params for option in parameter.opts} | {"--help", "-h"}
            used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
            assert used <= known, f"fewtags {name} has no {', '.join(sorted(used - known))}"
    inline = re.findall(r"`fewtags ([a-z]+)\b", page.read_text(encoding="utf-8"))
    assert set(inline) <= set(there)


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_settings_on_the_page_exist(page, reference):
    """`group.name=value` anywhere in a page is a setting of the reference."""
    pattern = rf"\b((?:{'|'.join(GROUPS)})\.[a-z_]+)="
    used = set(re.findall(pattern, page.read_text(encoding="utf-8"))) - {"method.threshold", "head.name"}
    missing = [
        name for name in used if f"`{name}`" not in reference["settings.md"] and f"`{name}=" not in page_methods()
    ]
    assert not missing


def page_methods() -> str:
    return "`method.name=` `method.profile=`"


# --- the reference ---


def test_every_command_and_option_is_in_the_reference(tool, reference):
    page = reference["cli.md"]
    for name, command in tool.commands().items():
        assert f"\n## fewtags {name}\n" in page
        section = page.split(f"\n## fewtags {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            shown = parameter.name.upper() if parameter.param_type_name == "argument" else parameter.opts[0]
            assert f"`{shown}`" in section


def test_every_setting_is_in_the_reference_with_its_reason(tool, reference):
    groups = {name: RunConfig.model_fields[name].annotation for name in tool.GENERAL}
    kinds = [*groups.items(), *(("head", head_class(name).Config) for name in HEADS)]
    kinds += [("method", objective_class(name).Config) for name in METHODS]
    for group, kind in kinds:
        for name, field in kind.model_fields.items():
            assert field.description, f"{kind.__qualname__}.{name} has no docstring below it"
            assert f"| `{group}.{name}` |" in reference["settings.md"]


def test_tables_of_the_reference_are_whole(reference):
    """No cell of a description breaks its row."""
    for page in reference.values():
        for table in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE):
            rows = [re.sub(r"\\\|", "", row) for row in table.splitlines()]
            assert len({row.count("|") for row in rows}) == 1, rows[0]


# --- links ---


LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def anchors(file: Path, reference: dict[str, str]) -> set[str]:
    from markdown.extensions.toc import slugify

    text = reference[file.name] if file.name in reference else file.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", [*PAGES, *FRONT, PROJECT / "examples" / "README.md"], ids=short)
def test_links_lead_somewhere(page, reference):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or target.name in GENERATED, f"{link} does not exist"
        if page in PAGES:
            assert target.is_relative_to(DOCS), f"{link} leaves the site"
        if anchor:
            assert anchor in anchors(target, reference), f"{link}: no such heading"


def test_paths_in_the_code_exist():
    """Comments and messages that name a page of the documentation name one that is there."""
    files = [
        *(PROJECT / "src").rglob("*.py"),
        *(PROJECT / "configs").glob("*.yaml"),
        *(PROJECT / "tests").rglob("*.py"),
    ]
    for file in files:
        for name in re.findall(r"\bdocs/[a-z/-]+\.md", file.read_text(encoding="utf-8")):
            assert (PROJECT / name).exists() or Path(name).name in GENERATED, f"{short(file)} names {name}"


def test_the_architecture_page_names_every_room():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    package = PROJECT / "src" / "fewtags"
    rooms = {file.name for file in package.iterdir() if file.suffix == ".py" or (file / "__init__.py").exists()}
    assert [name for name in sorted(rooms - {"__init__.py", "__main__.py"}) if name not in page] == []


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = set(pages_of(config["nav"]))
    assert {file.relative_to(DOCS).as_posix() for file in PAGES} <= listed
    assert all((DOCS / name).exists() for name in listed if Path(name).name not in GENERATED)


def pages_of(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from pages_of(inner)


@pytest.mark.parametrize("file", sorted((PROJECT / ".github").rglob("*.yml")), ids=short)
def test_workflows_call_make_targets_that_exist(file):
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    steps = [step for job in content.get("jobs", {}).values() for step in job["steps"]]
    assert {step["run"].split()[1] for step in steps if "run" in step} <= targets


# --- slow: the site and the examples ---


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path, tool):
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copytree(PROJECT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "mkdocs.yml", tmp_path)
    tool.write_pages(tmp_path / "docs" / "reference")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"""<(?:script|link|img|iframe)[^>]*\b(?:src|href)="?(?:https?:)?//[^\s">]+""", text)
        assert not [tag for tag in loaded if 'rel="canonical"' not in tag]


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=short)
def test_example_scripts_run(file):
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


@pytest.mark.slow
def test_the_notebook_runs():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(PROJECT / "examples" / "missing_tags.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))


def test_the_notebook_is_committed_without_outputs():
    text = (PROJECT / "examples" / "missing_tags.ipynb").read_text(encoding="utf-8")
    assert '"outputs": []' in text
    assert '"output_type"' not in text
