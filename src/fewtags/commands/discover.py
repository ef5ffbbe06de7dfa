"""`fewtags discover`: missing tags and given tags that look wrong, as a table and as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fewtags.atomic import atomic_write
from fewtags.commands.evaluate import in_model_order
from fewtags.data.annotations import Annotations
from fewtags.data.csv_cells import protected
from fewtags.data.formats import read_annotations
from fewtags.data.image_files import find_images
from fewtags.discovery import UNDECIDED, Discovery, LabelTable, OpenRun, open_run
from fewtags.engine.model_outputs import model_outputs
from fewtags.engine.record import load_run_config
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError, did_you_mean
from fewtags.labels import ABSENT, PRESENT
from fewtags.presence.summary import estimate_lines
from fewtags.progress import working
from fewtags.review.store import standing_decisions

SHOWN = 20  # lines printed
LONGEST_TAG, WIDE = 24, 140  # columns of the terminal
DECISIONS = {PRESENT: "present", ABSENT: "absent", 0: "unsure", UNDECIDED: ""}


@dataclass(frozen=True)
class Found:
    """What was found in which images, for display."""

    run: Path
    open: OpenRun
    images: Annotations
    discovery: Discovery
    truth: np.ndarray | None  # [N, C] of the images
    limit: int


def discover(
    run: Path,
    data: Path | None,
    *,
    tags: Path | None,
    format: str,
    options: dict[str, Any],
    only: Sequence[str],
    min_probability: float | None,
    limit: int,
    device: str,
    quiet: bool,
    moved_to: Path | None = None,
) -> Found:
    with working("Opening the run", quiet=quiet):
        decided = standing_decisions(run)
        opened = open_run(run, moved_to=moved_to, decided=decided, device=device, quiet=quiet)
    columns = [category(opened.annotations, name) for name in only] or None
    choice: dict[str, Any] = {"columns": columns, "min_probability": min_probability, "limit": limit}
    if data is None:
        with working("Searching", quiet=quiet):
            found = opened.discover(decided=decided, **choice)
        with suppress(OSError):  # a read-only disk
            (RunFolder(run).outputs / "searched").mkdir(parents=True, exist_ok=True)  # for the report
        return Found(run, opened, opened.annotations, found, opened.truth, limit)
    images = other_images(opened.saved.categories, data, tags, format, options)
    with working("Searching", quiet=quiet):
        outputs = model_outputs(opened.saved, images, config=load_run_config(run), device=device, quiet=quiet)
        found = opened.discover_in(images, outputs, decided=decided, **choice)
    return Found(run, opened, images, found, None, limit)


def category(annotations: Annotations, name: str) -> int:
    if name not in annotations.categories:
        raise UserError(f"--tag {name}: the run has no such tag; {did_you_mean(name, annotations.categories)}")
    return annotations.categories.index(name)


def other_images(
    categories: list[str], data: Path, tags: Path | None, format: str, options: dict[str, Any]
) -> Annotations:
    """Images with their tags, or without any if DATA is just a folder of images."""
    says_how_to_read = tags is not None or options or format != "auto"
    try:
        return in_model_order(read_annotations(data, tags=tags, format=format, **options), categories, data)
    except UserError:
        if says_how_to_read or not data.exists():
            raise
    files = [str(file) for file in find_images([data])]
    labels = np.zeros((len(files), len(categories)), dtype=np.int8)
    return Annotations(Path(), files, categories, labels, np.full(len(files), "train"), name=data.name)


# --- on the terminal ---


def tables(found: Found, width: int = 80) -> Iterator[Table | str]:
    """For a terminal of this width."""
    discovery = found.discovery
    least = float(discovery.thresholds.min(initial=1))
    title = f"Missing tags with a probability of at least {least:.2f}, surest first ({discovery.num_missing:,} found)"
    yield from label_table(found, discovery.missing, title, width)
    yield from precision_lines(found)
    if discovery.num_doubtful:
        title = f"Given tags that look wrong, most doubtful first ({discovery.num_doubtful:,} of them)"
        yield from label_table(found, discovery.doubtful, title, width, shown=SHOWN // 2)
        yield "Going by the picture alone, such a tag is at most a third as probable as in a photo picked at random."
    if len(discovery.missing) < discovery.num_missing:
        yield f"Only the {found.limit:,} most certain ones are listed; increase --limit for more."


def label_table(found: Found, table: LabelTable, title: str, width: int, shown: int = SHOWN) -> Iterator[Table | str]:
    """One line per label. The image comes last, and a path that is too long loses its first folders; a wide terminal
    also shows which known images are similar."""
    chosen = list(islice_lines(found, table, shown))
    decided = any(line["decision"] for line in chosen)
    page = Table(box=None, header_style="bold", pad_edge=False)
    page.add_column("tag", no_wrap=True, max_width=LONGEST_TAG)
    page.add_column("probability", justify="right")
    if decided:
        page.add_column("decided")
    page.add_column("image", no_wrap=True)
    if wide := width >= WIDE:
        page.add_column("looks like", no_wrap=True)
    tags = min(max((len(line["tag"]) for line in chosen), default=0), LONGEST_TAG)
    room = (width // 2 if wide else width) - max(tags, 3) - len("probability") - (8 if decided else 0) - 6
    for line in chosen:
        similar = " ".join(Path(path).name for path in line["similar"])
        cells = [line["tag"], f"{line['probability']:.2f}", *([line["decision"]] if decided else [])]
        cells += [end_of_path(line["image"], room), *([similar] if wide else [])]
        page.add_row(*map(Text, cells))  # a tag may look like markup: [red]
    yield title
    yield page
    if len(table) > shown:
        yield f"… and {len(table) - shown:,} more in the list; --csv or --jsonl writes all of them."


def end_of_path(path: str, room: int) -> str:
    """As many of its last folders as there is room for; the name of the file always."""
    if len(path) <= room:
        return path
    parts = path.split("/")
    kept = parts[-1]
    for part in reversed(parts[:-1]):
        if len(part) + len(kept) + 3 > room:
            break
        kept = f"{part}/{kept}"
    return kept if kept == path else f"…/{kept}"


def precision_lines(found: Found) -> Iterator[str]:
    """How many in the list are expected to be right, and how many are, if the complete labels are known."""
    table = found.discovery.missing
    yield from estimate_lines(found.open.estimates())
    for depth in table.depths():
        line = f"first {depth:>7,}   expected precision {table.expected_precision(depth):6.1%} (estimate)"
        if found.truth is not None:
            line += f"   measured {table.precision(found.truth, depth):6.1%}"
        yield line


# --- lines of a table ---


def islice_lines(found: Found, table: LabelTable, number: int) -> Iterator[dict[str, Any]]:
    return lines(found, table.take(np.arange(min(number, len(table)))))


def lines(found: Found, table: LabelTable) -> Iterator[dict[str, Any]]:
    """One dict per label, lazily."""
    images, known, thresholds = found.images, found.open.annotations, found.discovery.thresholds
    assert table.similar is not None
    assert table.decisions is not None
    for m, (row, column) in enumerate(zip(table.rows.tolist(), table.columns.tolist(), strict=True)):
        decision = int(table.decisions[m])
        line = {
            "image": images.images[row],
            "tag": images.categories[column],
            "probability": round(float(table.probabilities[m]), 7),
            "threshold": round(float(thresholds[column]), 4),
            "status": "new" if decision == UNDECIDED else "decided",
            "decision": DECISIONS[decision],
            "similar": [str(known.path(other)) for other in table.similar[m].tolist() if other >= 0],
        }
        if found.truth is not None:
            line["right"] = bool(found.truth[row, column] == PRESENT)
        yield line


def all_lines(found: Found) -> Iterator[dict[str, Any]]:
    for kind in ("missing", "doubtful"):
        for line in lines(found, getattr(found.discovery, kind)):
            yield {"kind": kind, **line}


# --- files ---


def write_csv(found: Found, file: Path) -> None:
    with atomic_text(file) as out:
        writer = csv.writer(out)
        names = ["kind", "image", "tag", "probability", "threshold", "status", "decision"]
        more = ["right"] if found.truth is not None else []
        writer.writerow([*names, "similar_1", "similar_2", "similar_3", *more])
        for line in all_lines(found):
            similar = [*line["similar"], "", "", ""][:3]
            cells = [*(line[name] for name in names), *similar, *(line[name] for name in more)]
            writer.writerow(map(protected, cells))


def write_jsonl(found: Found, file: Path) -> None:
    with atomic_text(file) as out:
        for line in all_lines(found):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextmanager
def atomic_text(file: Path) -> Iterator[Any]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
        yield out
