"""Install the packages of the other side that the slow tests run: one environment each, in .venv-others/.

They are large, or want versions that ours does not (imgutils: NumPy 1). Run by `make others`; a test whose
environment is missing is skipped.

    python tools/other_sides.py [NAME...]             NAME: tests/other_sides/NAME.txt (default: all)
    python tools/other_sides.py --lock NAME...        choose versions anew, from NAME.in

An environment whose list of packages begins with `# beside fewtags` also sees fewtags and what it is installed with.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
LISTS = PROJECT / "tests" / "other_sides"
ENVIRONMENTS = PROJECT / ".venv-others"
BESIDE = "# beside fewtags"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--lock", action="store_true")
    asked = parser.parse_args()
    for name in asked.names or sorted(file.stem for file in LISTS.glob("*.in")):
        (lock if asked.lock else install)(name)


def lock(name: str) -> None:
    """Write NAME.txt; it names packages and versions, never where they come from."""
    wanted, chosen = LISTS / f"{name}.in", LISTS / f"{name}.txt"
    beside = wanted.read_text(encoding="utf-8").startswith(BESIDE)
    run(
        uv(), "pip", "compile", "--quiet", wanted, "--python", sys.executable, "--no-header", "--no-annotate",
        "--no-emit-index-url", "--no-emit-find-links", "--upgrade", "-o", chosen,
    )  # fmt: skip
    if beside:
        chosen.write_text(f"{BESIDE}\n{chosen.read_text(encoding='utf-8')}", encoding="utf-8")


def install(name: str) -> None:
    folder, chosen = ENVIRONMENTS / name, LISTS / f"{name}.txt"
    ready = folder / ".ready"
    if ready.is_file() and ready.read_bytes() == chosen.read_bytes():
        return
    print(f"Installing the other side '{name}' into {folder.relative_to(PROJECT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    run(uv(), "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(uv(), "pip", "install", "--quiet", "--python", python, "-r", chosen)
    if chosen.read_text(encoding="utf-8").startswith(BESIDE):
        own = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        # After its own packages, so its versions are the ones used.
        Path(own, "fewtags.pth").write_text(f"{sysconfig.get_path('purelib')}\n{PROJECT / 'src'}\n", encoding="utf-8")
    shutil.copy(chosen, ready)


def uv() -> str:
    return shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


if __name__ == "__main__":
    main()
