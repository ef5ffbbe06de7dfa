"""Write the file tree of docs/architecture.md: every module with the first sentence of its docstring.

    python tools/make_tree.py

tests/test_architecture.py checks that it is up to date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "src" / "fewtags", ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made by tools/make_tree.py -->\n", "<!-- end of the tree -->\n"
COLUMN, WIDTH = 32, 120  # where sentences begin, and where lines end
SHORTEST = 10  # letters of a clause that says enough alone


def main() -> None:
    PAGE.write_text(with_tree(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tree(page: str) -> str:
    """The page with the tree as it is now between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```\n{tree()}```\n\n{END}{after}"


def tree() -> str:
    return "".join(lines_of(PACKAGE, 0))


def lines_of(folder: Path, depth: int) -> list[str]:
    lines = [line(f"{folder.name}/", folder / "__init__.py", depth)]
    for file in sorted(folder.glob("*.py")):
        if not file.name.startswith("__"):
            lines.append(line(file.name, file, depth + 1))
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += lines_of(inner, depth + 1)
    return lines


def line(name: str, file: Path, depth: int) -> str:
    start = "  " * depth + name
    return f"{start.ljust(COLUMN)}{shortened(first_sentence(file), WIDTH - COLUMN)}".rstrip() + "\n"


def first_sentence(file: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s(?=[A-Z`])", text)[0]


def shortened(sentence: str, width: int) -> str:
    """Without its last clauses, if it is too long; then by words."""
    if len(sentence) <= width:
        return sentence
    clauses = [sentence[: place.start()] for place in re.finditer(r"[,;:] | \(", sentence) if place.start() < width]
    whole = [clause for clause in clauses if clause.count("(") == clause.count(")") and len(clause) > SHORTEST]
    return whole[-1] + "." if whole else sentence[: sentence.rindex(" ", 0, width - 3)] + " ..."


if __name__ == "__main__":
    main()
