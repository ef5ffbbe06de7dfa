"""`fewtags search`: images of a run that look like examples, or that a phrase describes."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewtags.atomic import atomic_write
from fewtags.data.csv_cells import protected
from fewtags.errors import UserError
from fewtags.progress import working
from fewtags.review.opening import open_search


@dataclass(frozen=True)
class Found:
    images: list[tuple[str, float]]  # with their similarity, the best first
    sentence: str

    def lines(self) -> Iterator[str]:
        yield self.sentence
        width = max((len(image) for image, _ in self.images), default=0)
        for image, similarity in self.images:
            yield f"{image:{width}}  {similarity:.2f}"

    def write(self, file: Path) -> None:
        with atomic_write(file) as beside, beside.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(("image", "similarity"))
            writer.writerows((protected(image), f"{similarity:.4f}") for image, similarity in self.images)


def search(run: Path, *, like: Sequence[Path], text: str | None, number: int, quiet: bool) -> Found:
    """By examples, images of the run or from elsewhere, or by a phrase."""
    if bool(like) == (text is not None):
        raise UserError('Search by examples (--like photo.jpg, may be repeated) or by a phrase (--text "lighthouse").')
    for file in like:
        if not file.is_file():
            raise UserError(f"{file} does not exist; --like takes image files.")
    with working("Opening the run", quiet=quiet):
        finder, annotations = open_search(run, quiet=quiet)
    hits = (
        finder.text(text, number)
        if text is not None
        else finder.like(pictures=[f.read_bytes() for f in like], number=number)
    )
    found = zip(hits.rows.tolist(), hits.similarity.tolist(), strict=True)
    return Found([(annotations.images[row], similarity) for row, similarity in found], hits.sentence)
