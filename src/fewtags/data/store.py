"""Images decoded and resized once, for training that reads them in every epoch: the store of `fewtags prepare`.

Training images are stored at `InputConfig.first_side`, for cropping, the others at `InputConfig.size`: what a
run would read from the files, byte for byte, so a run gives the same results with or without a store.

A store is a folder:

    about.json        the sizes, and which decoder made it
    train.bin         [N, side, side, 3] uint8, memory-mapped; other.bin likewise
    train.jsonl       one line per row: the image's name, its file's size, modification time and SHA-256, a checksum of
                      the row, or why the file could not be read; other.jsonl likewise

While it is being written it is named `<store>.part`. A row is in the .bin before its line is in the .jsonl, so an
interrupted `prepare` resumes after the last complete line.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from fewtags.atomic import file_checksum, write_json
from fewtags.data.annotations import Annotations
from fewtags.data.images import DECODER, BadImage
from fewtags.data.prefetch import default_workers, in_order
from fewtags.data.preprocess import InputConfig, read_square
from fewtags.errors import DataError, UserError

VERSION = 1
PARTS = ("train", "other")  # training images, cropped; images for evaluation only


@dataclass(frozen=True)
class Row:
    """One image of a store."""

    image: str  # its name in the data
    bytes: int  # of its file
    changed: int  # ns
    sha256: str
    checksum: int = 0  # CRC-32 of the pixels
    problem: str = ""  # why there are none


class PreparedImages:
    """The rows of one side; thread-safe. `find` returns None for an image that is missing or has changed."""

    def __init__(self, folder: Path, part: str, side: int):
        self.file, self.side = folder / f"{part}.bin", side
        self.rows = list(read_rows(folder / f"{part}.jsonl"))
        self.places = {row.image: place for place, row in enumerate(self.rows)}
        shape = (len(self.rows), side, side, 3)
        if self.file.stat().st_size != int(np.prod(shape)):
            raise DataError(f"{self.file} does not have the size of {len(self.rows)} images; create the store again.")
        self.pixels = np.memmap(self.file, np.uint8, "r", shape=shape) if self.rows else np.zeros(shape, np.uint8)
        self.checked = bytearray(len(self.rows))

    def find(self, image: str, file: Path) -> Image.Image | None:
        """The picture of this name, if its file is unchanged since it was prepared, or does not exist here."""
        place = self.places.get(image)
        if place is None or (not self.checked[place] and not is_same(file, self.rows[place])):
            return None
        row, pixels = self.rows[place], self.pixels[place]
        if row.problem:
            raise BadImage(file, "unreadable image", row.problem)
        if not self.checked[place]:
            if zlib.crc32(pixels) != row.checksum:
                raise DataError(f"{self.file} is damaged in row {place} ({image}); create the store again.")
            self.checked[place] = 1
        return Image.fromarray(pixels)


@dataclass(frozen=True)
class ImageStore:
    """A finished store."""

    folder: Path
    parts: dict[str, PreparedImages]

    @classmethod
    def open(cls, folder: Path) -> ImageStore:
        about = read_about(folder)
        sides = {"train": about["first_side"], "other": about["size"]}
        return cls(folder, {part: PreparedImages(folder, part, sides[part]) for part in PARTS})

    def of_side(self, side: int) -> PreparedImages | None:
        return next((part for part in self.parts.values() if part.side == side and part.rows), None)

    @property
    def sides(self) -> list[int]:
        return sorted({part.side for part in self.parts.values()})


def read_about(folder: Path) -> dict[str, int]:
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        version, decoder = about["version"], about["decoder"]
    except (OSError, ValueError, KeyError, TypeError):
        part = part_of(folder)
        hint = "; it was not finished: run the same `fewtags prepare` again" if part.is_dir() else ""
        raise UserError(f"{folder} is not a store made by `fewtags prepare`{hint}.") from None
    if (version, decoder) != (VERSION, DECODER):
        raise UserError(
            f"{folder} was made by another version of fewtags, which decoded images differently; create it again."
        )
    return about


def is_same(file: Path, row: Row) -> bool:
    """Is the file unchanged since it was prepared? By size and modification time, else by content. A missing file
    counts as unchanged: a store can be moved to another machine without the images."""
    try:
        status = file.stat()
    except OSError:
        return True
    if status.st_size != row.bytes:
        return False
    return status.st_mtime_ns == row.changed or file_hash(file) == row.sha256


def file_hash(path: Path) -> str:
    try:
        return file_checksum(path)
    except OSError:
        return "missing"


# --- making one ---


def part_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".part")


def make_store(
    annotations: Annotations,
    config: InputConfig,
    folder: Path,
    *,
    workers: int | None = None,
    on_start: Callable[[int], object] = lambda _: None,
    on_step: Callable[[], object] = lambda: None,
) -> ImageStore:
    """Write the store, resuming an interrupted one. `on_start` receives the number of images already done."""
    training = annotations.splits == "train"
    todo = {"train": annotations.take(training), "other": annotations.take(~training)}
    sides = {"train": config.first_side, "other": config.size}
    about = {"version": VERSION, "decoder": DECODER, "size": config.size, "first_side": config.first_side}
    part = part_of(folder)
    begin(part, about, sum(len(todo[name]) * sides[name] ** 2 * 3 for name in PARTS))
    there = {name: complete_rows(part, name, todo[name], sides[name]) for name in PARTS}
    on_start(sum(there.values()))
    for name in PARTS:
        with (part / f"{name}.bin").open("ab") as pixels, (part / f"{name}.jsonl").open("a", encoding="utf-8") as rows:
            write_rows(todo[name], there[name], sides[name], pixels, rows, workers, on_step)
    write_json(part / "about.json", about)
    part.replace(folder)
    return ImageStore.open(folder)


def begin(part: Path, about: dict[str, int], needed: int) -> None:
    """The folder to fill: one with other settings is emptied; raises if the disk has no room."""
    wanted = part / "wanted.json"
    if not wanted.is_file() or json.loads(wanted.read_text(encoding="utf-8")) != about:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write_json(wanted, about)
    written = sum(file.stat().st_size for file in part.glob("*.bin"))
    free = shutil.disk_usage(part).free
    if needed - written > free:
        raise UserError(f"The store needs {needed / 1e9:.1f} GB and {part.parent} has {free / 1e9:.1f} GB free.")


def complete_rows(part: Path, name: str, todo: Annotations, side: int) -> int:
    """How many rows of an interrupted store are complete and up to date; the rest is truncated."""
    pixels, lines = part / f"{name}.bin", part / f"{name}.jsonl"
    if not pixels.is_file() or not lines.is_file():
        pixels.unlink(missing_ok=True)
        lines.unlink(missing_ok=True)
        return 0
    row_bytes = side * side * 3
    most, good, end = min(pixels.stat().st_size // row_bytes, len(todo)), 0, 0
    with pixels.open("rb") as content:
        for row, line_end in read_lines(lines):
            if good >= most or row.image != todo.images[good] or not is_same(todo.path(good), row):
                break
            if not is_complete(content, good, row, row_bytes):
                break
            good, end = good + 1, line_end
    truncate(lines, end)
    truncate(pixels, good * row_bytes)
    return good


def is_complete(pixels: IO[bytes], place: int, row: Row, row_bytes: int) -> bool:
    """Did its pixels reach the disk? After a power cut they may be missing even if the file is long enough."""
    pixels.seek(place * row_bytes)
    return bool(row.problem) or zlib.crc32(pixels.read(row_bytes)) == row.checksum


def truncate(file: Path, length: int) -> None:
    with file.open("r+b") as stream:
        stream.truncate(length)


def write_rows(
    todo: Annotations,
    first: int,
    side: int,
    pixels: IO[bytes],
    rows: IO[str],
    workers: int | None,
    on_step: Callable[[], object],
) -> None:
    def make(number: int) -> tuple[np.ndarray, Row]:
        return prepared(todo.images[number], todo.path(number), side)

    workers = default_workers() if workers is None else workers
    for content, row in in_order(make, range(first, len(todo)), workers=workers, ahead=2 * max(1, workers)):
        pixels.write(content.tobytes())
        pixels.flush()
        rows.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
        rows.flush()
        on_step()


def prepared(image: str, file: Path, side: int) -> tuple[np.ndarray, Row]:
    try:
        status = file.stat()
        size, changed = status.st_size, status.st_mtime_ns
    except OSError:
        size, changed = -1, -1
    try:
        content = np.asarray(read_square(file, side))
    except BadImage as error:
        return np.zeros((side, side, 3), np.uint8), Row(image, size, changed, file_hash(file), problem=error.reason)
    return content, Row(image, size, changed, file_hash(file), zlib.crc32(content.tobytes()))


def read_lines(file: Path) -> Iterator[tuple[Row, int]]:
    """The complete lines of a .jsonl file, and where each ends."""
    end = 0
    with file.open("rb") as stream:
        for line in stream:
            end += len(line)
            try:
                row = Row(**json.loads(line))
            except (ValueError, TypeError):
                return
            if line.endswith(b"\n"):
                yield row, end


def read_rows(file: Path) -> Iterator[Row]:
    for row, _ in read_lines(file):
        yield row


def changed_images(store: ImageStore, annotations: Annotations) -> Sequence[str]:
    """Images of the data that are missing from the store or have changed."""
    found = []
    for row, image in enumerate(annotations.images):
        part = store.parts["train" if annotations.splits[row] == "train" else "other"]
        place = part.places.get(image)
        if place is None or not is_same(annotations.path(row), part.rows[place]):
            found.append(image)
    return found
