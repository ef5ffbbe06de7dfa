"""`--help` of every command explains it, imports no torch and answers at once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from fewtags.cli import app

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]
HEAVY = ("torch", "timm", "torchvision", "numpy", "PIL", "yaml", "rich", "fewtags.config", "fewtags.methods")


def test_the_commands_are_these():
    assert set(COMMANDS) == {
        "demo", "example", "check", "prepare", "train", "evaluate", "predict", "update", "cache", "untag", "discover",
        "apply", "compare", "explain", "export", "search", "audit", "review", "serve", "bench", "report", "methods",
        "doctor",
    }  # fmt: skip


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_explains_the_command(command, cli):
    answer = cli(*filter(None, [command]), "--help")
    assert answer.code == 0
    assert not answer.err
    assert answer.out.startswith("Usage: fewtags")
    first = " ".join(answer.out.split("\n\n")[1].split())
    assert re.match(r"[A-Z][^.]{10,}[.:]", first), f"no sentence that explains it: {first}"


def test_every_option_has_its_help():
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    silent = [f"{name} {p.name}" for name, command in commands.items() for p in command.params if not p.help]
    assert not silent


def test_main_help_names_every_command(cli):
    answer = cli("--help")
    assert all(f"\n  {command}" in answer.out for command in COMMANDS)


def test_help_twice_is_the_same_short_or_long(cli):
    assert cli("train", "-h").out == cli("train", "--help").out


def test_help_loads_nothing_heavy():
    """Of any command: in one process, where the first that loads something is named."""
    code = (
        "import sys; from fewtags.cli import main\n"
        f"for command in {[[], *([name] for name in COMMANDS)]!r}:\n"
        "    sys.argv = ['fewtags', *command, '--help']\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        f"    loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    if loaded: sys.exit(f'{command}: {loaded}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: fewtags") == len(COMMANDS) + 1


@pytest.mark.parametrize("command", [None, "train"])
def test_help_costs_little_more_than_to_import_what_parses_it(command):
    """Processor time, best of several, as a multiple: a slow or busy machine slows both. 1.5 and 3 were measured."""
    arguments = ["-m", "fewtags", *filter(None, [command]), "--help"]
    ours, least = (
        min(processor_seconds([sys.executable, *what]) for _ in range(4))
        for what in (arguments, ["-c", "import typer"])
    )
    assert ours < 6 * least


def processor_seconds(arguments: list[str]) -> float:
    resource = pytest.importorskip("resource", reason="Windows does not tell the processor time of finished processes")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(arguments, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
