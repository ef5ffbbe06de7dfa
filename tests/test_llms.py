"""docs/llms.txt: every page, once, as it is now."""

import importlib.util
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_it_lists_every_page_as_it_is_now():
    spec = importlib.util.spec_from_file_location("make_llms", PROJECT / "tools/make_llms.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (PROJECT / "docs/llms.txt").read_text(encoding="utf-8")
    listed = set(tool.re.findall(r"\]\(([^)]+\.md)\)", text))
    pages = {file.relative_to(PROJECT / "docs").as_posix() for file in (PROJECT / "docs").rglob("*.md")}
    assert listed == pages - {"reference/cli.md", "reference/settings.md"}, "run: python tools/make_llms.py"
    assert text == tool.llms_text(), "run: python tools/make_llms.py"
    assert "```" not in text
