"""Build the wheel and the source archive, look inside, install the wheel into a clean environment and try it there.

Run by `make release-check`. Reaches the package registry and nothing else; leaves the files in dist/.

    python tools/release_check.py [--keep-going]      --keep-going: report a missing changelog section and continue
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = PROJECT / "src" / "fewtags"
DIST = PROJECT / "dist"
EXTRAS = {"review", "serve", "onnx", "openvino", "heic", "clip", "datasets", "tensorboard", "mlflow", "wandb", "ray"}
SCRIPTS = "Scripts" if os.name == "nt" else "bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-going", action="store_true")
    keep_going = parser.parse_args().keep_going
    version = read_version()
    problems = list(text_problems(version))
    if problems and not keep_going:
        sys.exit("\n".join(problems))
    wheel = build()
    problems += [*wheel_problems(wheel, version), *metadata_problems(wheel)]
    try_in_a_clean_environment(wheel, version)
    if problems:
        sys.exit("\n".join(problems))
    print(f"{wheel.relative_to(PROJECT)} is ready to be released; docs/release.md has the next steps.")


def read_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def text_problems(version: str) -> Iterator[str]:
    """What the changelog and the citation file should say about this version and do not."""
    if not re.search(rf"^## \[?{re.escape(version)}\b", (PROJECT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        yield f"CHANGELOG.md has no section '## {version} - DATE'."
    if f"version: {version}\n" not in (PROJECT / "CITATION.cff").read_text("utf-8"):
        yield f"CITATION.cff does not say 'version: {version}'."


def build() -> Path:
    """The source archive, the wheel built from it, and what the registry will say to them."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, PROJECT / "tools" / "other_sides.py", "release")
    python = PROJECT / ".venv-others" / "release" / SCRIPTS / "python"
    run(python, "-m", "build", "--outdir", DIST, PROJECT)
    print(run(python, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir())))
    (wheel,) = DIST.glob("*.whl")
    return wheel


def wheel_problems(wheel: Path, version: str) -> Iterator[str]:
    """Everything that belongs to the package is in the wheel, and nothing else is."""
    there = set(zipfile.ZipFile(wheel).namelist())
    if f"fewtags-{version}-" not in wheel.name:
        yield f"{wheel.name} is not version {version}."
    for file in tracked_files():
        if file not in there:
            yield f"{file} is not in the wheel."
    for file in sorted(there):
        if not file.startswith(("fewtags/", f"fewtags-{version}.dist-info/")):
            yield f"{file} should not be in the wheel."
    if not any(file.endswith("licenses/LICENSE") for file in there):
        yield "The wheel has no licence."


def metadata_problems(wheel: Path) -> Iterator[str]:
    """What a page of the registry shows, and the extras that users guess."""
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    about = email.message_from_string(archive.read(name).decode())
    for field in ("Summary", "License-Expression", "Requires-Python", "Keywords", "Author", "Project-URL"):
        if not about.get(field):
            yield f"The metadata has no {field}."
    if about.get("Description-Content-Type") != "text/markdown" or not about.get_payload():
        yield "The metadata has no description."
    if missing := EXTRAS - set(about.get_all("Provides-Extra", [])):
        yield f"The extra {min(missing)} is missing."


def tracked_files() -> list[str]:
    names = run("git", "ls-files", "src/fewtags", cwd=PROJECT).splitlines()
    return [name.removeprefix("src/") for name in names]


def try_in_a_clean_environment(wheel: Path, version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fewtags-release-") as folder:
        environment, empty = Path(folder) / "venv", Path(folder) / "empty"
        empty.mkdir()
        run(sys.executable, "-m", "venv", environment)
        python, fewtags = environment / SCRIPTS / "python", environment / SCRIPTS / "fewtags"
        install(python, wheel)
        printed = run(fewtags, "--version", cwd=empty)
        assert printed.strip() == f"fewtags {version}", printed
        print(run(fewtags, "demo", "--quick", cwd=empty))


def install(python: Path, wheel: Path) -> None:
    """With uv where it is there, which takes what it has from its cache; versions as in requirements.lock."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    constraints = ("--constraint", PROJECT / "requirements.lock")
    if uv is not None:
        run(uv, "pip", "install", "--quiet", "--python", python, *constraints, wheel)
    else:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, wheel)


def run(*command: object, cwd: Path | None = None) -> str:
    """A command's output. It sees no sources of this project, and no hub to download weights from."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
