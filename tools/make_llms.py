"""Write docs/llms.txt: every page of the documentation with its title and first sentence, for assistants.

    python tools/make_llms.py [--site site]

With `--site` the pages are also copied into the built site as plain Markdown, each beside its HTML.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
START = """# fewtags

> Train a multi-label image tagger when only a few of the tags are known: find missing tags in a photo archive, review
> them in the browser, write them back. Python 3.11+, Apache-2.0, runs offline. A tag that is not listed is unknown,
> never absent; labels are 1 present, 0 unknown, -1 absent everywhere.

Every page is plain Markdown.
"""


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from pages(value)
            else:
                yield value


def described(file: Path) -> tuple[str, str]:
    """Title and first sentence of a page."""
    title, _, text = file.read_text(encoding="utf-8").partition("\n")
    paragraphs = re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    first = next((p for p in paragraphs if re.match(r"[A-Z`*]", p.strip())), "")
    sentence = re.split(r"(?<=[.:?])\s", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split())))[0]
    return title.lstrip("# "), sentence.rstrip(":") + ("." if sentence.endswith(":") else "")


def llms_text() -> str:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("", lambda loader, suffix, node: None)
    sections = yaml.load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=Loader)["nav"]
    lines = [START]
    for section in sections:
        ((name, nav),) = section.items()
        files = [page for page in pages(nav if isinstance(nav, list) else [nav]) if (DOCS / page).is_file()]
        files = [page for page in files if page not in ("reference/cli.md", "reference/settings.md")]  # generated
        lines.append(f"## {name}\n")
        lines += [f"- [{title}]({page}): {about}" for page in files for title, about in [described(DOCS / page)]]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="the built site, to copy the pages into")
    site = parser.parse_args().site
    (DOCS / "llms.txt").write_text(llms_text(), encoding="utf-8")
    if site is not None:
        for file in [*DOCS.rglob("*.md"), DOCS / "llms.txt"]:
            shutil.copy(file, site / file.relative_to(DOCS))


if __name__ == "__main__":
    main()
