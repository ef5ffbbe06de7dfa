"""Label files with decisions: only the edited cell differs, whatever the rest of the file looks like."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from PIL import Image

from fewtags.data.formats import read_annotations
from fewtags.data.prepare import DataConfig
from fewtags.data.write_back import LabelSource, changes_between, check_rewritten, rewrite
from fewtags.errors import DataError

IMAGES = [f"{number}.jpg" for number in range(8)]
TAGS = ["dog", "cat", "sea", "Bär"]
NOTES = ("Ann", "", " Bob", "  two  words ", '"quo""ted"', '"a, b; c"', '"two{}lines"', " {}", "x'y", "-5", "=1+1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in IMAGES:
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


class MadeTable:
    """A random CSV of raw cells: note, image, tags, note."""

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.delimiter = rng.choice([",", ";", "\t"])
        self.end = rng.choice(["\n", "\r\n"])
        self.separator = rng.choice(["|", " | ", ";" if self.delimiter != ";" else "|"])
        self.mark, self.encoding = rng.choice(
            [(b"", "utf-8"), (b"\xef\xbb\xbf", "utf-8"), (b"", "latin-1"), (b"\xff\xfe", "utf-16-le")]
        )
        self.header = ["photographer", "image", "tags", "note"]
        if rng.random() < 0.3:
            self.header[0] = f'"taken{self.end}by"'
        self.tags = [sorted(rng.sample(TAGS, rng.randint(1, 3))) for _ in IMAGES]
        self.rows = [
            [self.note(), self.quoted(image), self.quoted(self.separator.join(tags)), self.note()]
            for image, tags in zip(IMAGES, self.tags, strict=True)
        ]
        self.blank = [self.end * (rng.random() < 0.2) for _ in range(len(IMAGES) + 1)]
        self.last_end = self.end if rng.random() < 0.7 else ""

    def note(self) -> str:
        note = self.rng.choice(NOTES).format(self.end if self.rng.random() < 0.5 else "\n")
        special = any(mark in note for mark in (self.delimiter, "\n", "\r"))
        return f'"{note}"' if special and '"' not in note else note

    def quoted(self, cell: str) -> str:
        cell = f'"{cell}"' if self.rng.random() < 0.3 or self.delimiter in cell else cell
        return " " * self.rng.choice([0, 0, 1]) + cell

    def parts(self) -> list[str]:
        """The header, then every row with the blank lines before it."""
        lines = [self.delimiter.join(self.header) + self.end]
        for blank, row in zip(self.blank, self.rows, strict=False):
            lines.append(blank + self.delimiter.join(row) + self.end)
        lines[-1] = lines[-1].removesuffix(self.end) + self.last_end
        return lines

    def content(self) -> bytes:
        return self.mark + "".join(self.parts()).encode(self.encoding)

    def decisions(self) -> dict[tuple[str, str], int]:
        pairs = [(image, tag) for image in IMAGES for tag in TAGS]
        return {pair: self.rng.choice([1, -1, 0]) for pair in self.rng.sample(pairs, 4)}


def applied(photos: Path, file: Path, decisions: dict[tuple[str, str], int]) -> tuple[bytes, set[str]]:
    """The new content, and the images whose labels change."""
    annotations = read_annotations(photos, tags=file)
    source = LabelSource.of(DataConfig(source=str(photos), tags=str(file)))
    changes = changes_between(annotations, decisions)
    new = rewrite(source, annotations, changes)
    assert isinstance(new.content, bytes)
    out = file.with_name("new.csv")
    out.write_bytes(new.content)
    check_rewritten(new, out, annotations, changes)
    return new.content, {change.image for change in changes}


def test_only_the_edited_cell_of_a_csv_changes(photos, tmp_path):
    refused = 0
    for seed in range(300):
        table = MadeTable(seed)
        file = tmp_path / "tags.csv"
        file.write_bytes(table.content())
        try:
            content, touched = applied(photos, file, table.decisions())
        except DataError:  # it cannot be expressed in this file, so nothing is written
            refused += 1
            continue
        assert content.startswith(table.mark)
        rest = content[len(table.mark) :].decode(table.encoding)
        for image, part, blank, row in zip(
            [None, *IMAGES], table.parts(), ["", *table.blank], [None, *table.rows], strict=False
        ):
            if image not in touched or row is None:
                assert rest.startswith(part), (seed, part, rest[:100])
                rest = rest[len(part) :]
                continue
            before = blank + table.delimiter.join(row[:2]) + table.delimiter
            after = table.delimiter + row[3] + part[len(blank + table.delimiter.join(row)) :]
            assert rest.startswith(before), (seed, before, rest[:100])
            rest = rest[len(before) :]
            assert after in rest, (seed, after, rest[:100])
            cell, _, rest = rest.partition(after)
            assert cell.replace('"', "").count("\n") == 0
        assert rest == ""
    assert refused < 30


def test_a_onehot_table_keeps_everything_else(photos, tmp_path):
    end = "\r\n"
    lines = [f'"taken{end}by", image,dog,cat', f' Ann,0.jpg,1,{end}{end}"B""ob", 1.jpg, 0 ,1', "x,2.jpg,1,1,extra"]
    file = tmp_path / "table.csv"
    file.write_bytes(end.join(lines).encode())
    annotations = read_annotations(photos, tags=file, format="onehot")
    source = LabelSource.of(DataConfig(source=str(photos), tags=str(file), format="onehot"))
    changes = changes_between(annotations, {("1.jpg", "cat"): -1, ("0.jpg", "cat"): 1})
    new = rewrite(source, annotations, changes).content
    wanted = end.join(lines).replace(f"1,{end}{end}", f"1,1{end}{end}").replace(", 0 ,1", ", 0 ,0")
    assert new == wanted.encode()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_row_added_at_the_end_has_the_ends_of_the_others(photos, tmp_path, end):
    file = tmp_path / "tags.csv"
    for last in ("", end, end + end):
        text = end.join([f'image,tags,"no{end}te"', '0.jpg,dog;cat,"two\nlines"', "1.jpg,cat;dog,y"]) + last
        file.write_bytes(text.encode())
        content, _ = applied(photos, file, {("5.jpg", "dog"): 1})
        start = text.removesuffix(last)
        assert content.decode() in (f"{start}{end}5.jpg,dog,{last}", f"{start}{end}5.jpg,dog,{end}{last[len(end) :]}")
