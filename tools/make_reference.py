"""Write the generated pages of the documentation: docs/reference/cli.md from the app, settings.md from its classes.

Run by `make docs` before the site is built. The pages are not committed, so they cannot fall behind the code.

    python tools/make_reference.py [--out docs/reference]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

from fewtags.cli import app
from fewtags.config import RunConfig
from fewtags.data.formats import FORMATS, Format, ReadOptions
from fewtags.methods import METHODS, Method, objective_class
from fewtags.models.heads import HEADS, head_class
from fewtags.settings import Settings

HERE = Path(__file__).resolve().parent
GENERAL = ("data", "input", "model", "cache", "words", "train")  # groups that every method has

CLI_START = """# Command line

Generated from the program; `fewtags COMMAND --help` shows the same.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done, 1 the run failed, 2 a
usage error, 3 the data cannot be used, 4 a required quality was missed, 5 an extra is not installed,
130 interrupted by Ctrl-C.

| command | |
|---|---|
"""

SETTINGS_START = """# Settings

Every setting of a run, generated from the code. Set one on the command line as
`group.name=value` (`fewtags train photos/ train.epochs=5`) or in a YAML file:

```yaml
method: refined
train: {epochs: 5}
input: {size: 448}
```

Precedence, lowest first: the defaults on this page, the method's own settings, its profile, the file, the command line.
`fewtags train ... --print-config` prints the resolved settings, and every run stores them in `config.yaml`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "reference")
    write_pages(parser.parse_args().out)


def write_pages(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")


# --- the command line ---


def commands() -> dict[str, Any]:
    """Every command of the app by its name, in the order of `fewtags --help`."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def cli_page() -> str:
    there = commands()
    rows = [
        f"| [`fewtags {name}`](#fewtags-{name}) | {cell(first_line(command.help))} |" for name, command in there.items()
    ]
    parts = [CLI_START + "\n".join(rows), *(command_section(name, command) for name, command in there.items())]
    return "\n\n".join(parts) + "\n"


def command_section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["fewtags", name, "[OPTIONS]" if options else "", *map(argument_usage, arguments)]).replace(
        "  ", " "
    )
    paragraphs = [f"## fewtags {name}", f"```\n{usage}\n```", plain(command.help)]
    if arguments:
        rows = [f"| `{p.name.upper()}` | {cell(p.help)} |" for p in arguments]
        paragraphs.append("\n".join(["| argument | |", "|---|---|", *rows]))
    if options:
        rows = [f"| {option_names(p)} | {default_text(p)} | {cell(p.help)} |" for p in options]
        paragraphs.append("\n".join(["| option | default | |", "|---|---|---|", *rows]))
    return "\n\n".join(paragraphs)


def argument_usage(parameter: Any) -> str:
    text = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return text if parameter.required else f"[{text}]"


def option_names(parameter: Any) -> str:
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def default_text(parameter: Any) -> str:
    value = parameter.default() if callable(parameter.default) else parameter.default
    if parameter.required:
        return "required"
    return "" if value is None or value is False or value in ("", (), []) else f"`{value}`"


# --- settings ---


def settings_page() -> str:
    parts = [SETTINGS_START, "## `seed`\n\nA non-negative integer, default `0`: the random seed, except for the "
             "labels hidden in an experiment (`data.mask_seed`)."]  # fmt: skip
    for group in GENERAL:
        kind = RunConfig.model_fields[group].annotation
        parts.append(f"## `{group}`\n\n{settings_table(kind, group)}")
        parts += reader_options() if group == "data" else []
    parts.append("## `head`\n\nTurns a feature map into one logit per category. `head.name` selects another head than "
                 "the method's own.")  # fmt: skip
    parts += [f"### Head `{name}`\n\n{settings_table(head_class(name).Config, 'head')}" for name in HEADS]
    parts.append("## `method`\n\n`method=NAME` or `--method NAME` chooses the method, `method.profile=NAME` or "
                 "`--profile NAME` its profile.")  # fmt: skip
    parts += [method_section(method) for method in METHODS.values()]
    return "\n\n".join(parts) + "\n"


def reader_options() -> list[str]:
    start = (
        "### `data.options`\n\nOptions of the readers ([Data formats](data-formats.md)); `-o name=value` for short. "
    )
    start += f"Every reader has these:\n\n{settings_table(ReadOptions, 'data.options')}"
    return [start, *(reader_section(format) for format in FORMATS.values() if format.options is not ReadOptions)]


def reader_section(format: Format) -> str:
    """What a reader has beyond the options of all."""
    own = [name for name in format.options.model_fields if name not in ReadOptions.model_fields]
    rows = [row for row in settings_rows(format.options, "data.options", {}) if row.split("`")[1].split(".")[-1] in own]
    return "\n".join([f"#### Format `{format.name}`\n", "| setting | default | |", "|---|---|---|", *rows])


def method_section(method: Method) -> str:
    lines = [f"### Method `{method.name}`", method.sentence]
    lines.append(settings_table(objective_class(method.name).Config, "method", method.settings))
    if others := {k: v for k, v in method.settings.items() if not k.startswith("method.")}:
        lines.append(f"Other defaults it changes: {values_text(others)}.")
    for name, profile in method.profiles.items():
        note = f": {profile.note}" if profile.note else ""
        lines.append(f"**Profile `{name}`**{note}. It sets {values_text(profile.settings)}.")
    return "\n\n".join(lines)


def settings_table(kind: type[Settings], group: str, changed: Mapping[str, Any] | None = None) -> str:
    rows = list(settings_rows(kind, group, changed or {}))
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows]) if rows else "It has no settings."


def settings_rows(kind: type[Settings], group: str, changed: Mapping[str, Any]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        default = changed.get(f"{group}.{name}", field.get_default(call_default_factory=True))
        shown = "required" if default is PydanticUndefined else f"`{value_text(default)}`" if default != "" else ""
        yield f"| `{group}.{name}` | {shown} | {cell(field.description)} |"


def values_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={value_text(value)}`" for name, value in values.items())


def value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value) if isinstance(value, tuple) else value)


# --- text ---


def first_line(text: str | None) -> str:
    return plain(text).split("\n\n")[0]


def plain(text: str | None) -> str:
    """A help text as Markdown: `\\b` and `\\f` are signs for click, not for readers."""
    return "\n\n".join(join(part.split()) for part in (text or "").replace("\b", "").split("\f")[0].split("\n\n"))


def join(words: Iterable[str]) -> str:
    return " ".join(words)


def cell(text: str | None) -> str:
    return plain(text).replace("\n\n", " ").replace("|", "\\|")


if __name__ == "__main__":
    main()
