"""Audits a dataset before training: decodes every image, counts every label, and lists every problem."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.images import BadImage, open_image, stored_form
from fewtags.data.proposals import Proposal, propose_merges
from fewtags.labels import ABSENT, PRESENT, SPLITS, UNKNOWN
from fewtags.wording import plural

SHOWN = 8  # findings of one kind that are printed, unless all are asked for
EXTREMES = 5  # categories that are counted at either end, likewise
SMALLEST, LONGEST = 32, 8  # reports sides below 32 pixels and aspect ratios above 8
WITHOUT_TAGS = "image without known tags"
PLAIN_MODES = {"L", "RGB"}  # other modes are converted, which is reported


class Picture(NamedTuple):
    """What is kept of one decoded image."""

    digest: bytes  # of its RGB pixels
    mode: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Audit:
    """The result of `audit`. `findings` holds every problem; `readable` says which rows can be trained on."""

    name: str
    num_images: int
    splits: dict[str, int]  # images per split; empty splits are omitted
    positives: dict[str, dict[str, int]]  # category -> split -> known positives on readable images
    unknown: dict[str, float]  # split -> share of its labels that are unknown
    readable: np.ndarray  # [N] bool
    findings: list[Finding]
    notes: list[str] = field(default_factory=list)  # how the reader interpreted the data
    proposals: list[Proposal] = field(default_factory=list)  # tags that may be one, with counts of readable images

    @property
    def fatal(self) -> bool:
        """Would training fail or be meaningless?"""
        return any(finding.fatal for finding in self.findings)

    def render(self, everything: bool = False) -> str:
        """The reader's notes, the counts, the findings by kind, and the verdict: what matters most is last, where the
        reader of a terminal looks. `everything` lists all findings and counts all categories."""
        lines = [*self.notes, ""] if self.notes else []
        lines += [*self._counts(everything), ""]
        for kind, findings in _by_kind(self.findings).items():
            shown = len(findings) if everything or len(findings) <= SHOWN + 1 else SHOWN
            lines += [f"{kind} ({len(findings):,})", *(f"  {finding}" for finding in findings[:shown])]
            more = len(findings) - shown
            lines += [f"  and {more:,} more; --all lists them", ""] if more else [""]
        return "\n".join([*lines, self._verdict()])

    def to_json(self) -> str:
        content = {
            "name": self.name,
            "notes": self.notes,
            "fatal": self.fatal,
            "num_images": self.num_images,
            "num_readable": int(self.readable.sum()),
            "splits": self.splits,
            "unknown_share": self.unknown,
            "known_positives": self.positives,
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    def _counts(self, everything: bool) -> Iterator[str]:
        images = f"{plural(self.num_images, 'image')}, {self.readable.sum()} readable"
        yield f"{self.name}: {images}; {plural(len(self.positives), 'category', 'categories')}."
        for split, count in self.splits.items():
            yield f"  {split}: {plural(count, 'image')}, {self.unknown[split]:.1%} of the labels unknown"
        if self.positives:
            yield f"Known positives of each category ({' / '.join(self.splits)}):"
        yield from self._count_lines(everything)

    def _count_lines(self, everything: bool) -> Iterator[str]:
        """Of every category in its order, or of the most and the least frequent ones."""
        names = list(self.positives)
        num_between = 0 if everything else max(len(names) - 2 * EXTREMES, 0)
        if num_between > 1:
            names.sort(key=lambda name: -sum(self.positives[name].values()))
            names = names[:EXTREMES] + names[-EXTREMES:]
        width = max(map(len, names), default=0)
        for number, name in enumerate(names):
            if num_between > 1 and number == EXTREMES:
                yield f"  … {num_between:,} categories between these; --all counts them"
            yield f"  {name:{width}}  {' / '.join(str(count) for count in self.positives[name].values())}"

    def _verdict(self) -> str:
        fatal = [finding for finding in self.findings if finding.fatal]
        if fatal:
            return "Training would fail: " + " ".join(finding.message for finding in fatal)
        found = f"{plural(len(self.findings), 'finding')} above" if self.findings else "no findings"
        similar = any(finding.kind == "similar tags" for finding in self.findings)
        hint = " `--propose aliases.yaml` writes the similar tags to a file you can edit." if similar else ""
        return f"Training can start; {found}.{hint}"


def audit(annotations: Annotations, workers: int | None = None, progress: Callable[[], object] | None = None) -> Audit:
    """Decode every image in `workers` threads and check every label; `progress()` is called after each image."""
    pictures = _decode_all(annotations, workers or min(8, os.cpu_count() or 1), progress)
    readable = np.array([isinstance(picture, Picture) for picture in pictures], dtype=bool)
    usable = annotations.take(readable)
    splits = [split for split in SPLITS if (annotations.splits == split).any()]
    positives = {split: usable.split(split).known_positives for split in splits}
    proposals = propose_merges(dict(zip(usable.categories, usable.known_positives.tolist(), strict=True)))
    return Audit(
        name=annotations.name,
        num_images=len(annotations),
        splits={split: int((annotations.splits == split).sum()) for split in splits},
        positives={
            category: {split: int(positives[split][c]) for split in splits}
            for c, category in enumerate(annotations.categories)
        },
        unknown={split: annotations.split(split).unknown_share for split in splits},
        readable=readable,
        findings=[
            *_what_stops_training(usable),
            *annotations.findings,
            *_bad_images(annotations, pictures),
            *_duplicates(annotations, pictures),
            *_partial_evaluation_labels(annotations),
            *_rare_categories(usable),
            *_images_without_tags(annotations),
            *(Finding("similar tags", proposal.drop, f"{proposal}.") for proposal in proposals),
            *_odd_pictures(annotations, pictures),
        ],
        notes=list(annotations.notes),
        proposals=proposals,
    )


def quick_counts(annotations: Annotations) -> str:
    """What can be checked without opening an image, the reader's findings and the labels, as numbers of each kind: for
    example "missing image (2), category with one positive (1)"."""
    counts = Counter(finding.kind for finding in (*annotations.findings, *_rare_categories(annotations)))
    if without := len(_rows_without_tags(annotations)):
        counts[WITHOUT_TAGS] = without
    return ", ".join(f"{kind} ({count:,})" for kind, count in counts.items())


# --- images ---


def _decode_all(
    annotations: Annotations, workers: int, progress: Callable[[], object] | None
) -> list[Picture | BadImage]:
    """One result per row. Threads are enough: Pillow decodes, and hashlib hashes, outside the interpreter lock."""
    pictures = []
    with ThreadPoolExecutor(workers) as pool:
        paths = (annotations.path(row) for row in range(len(annotations)))
        for picture in pool.map(_inspect, paths):
            pictures.append(picture)
            if progress is not None:
                progress()
    return pictures


def _inspect(path: Path) -> Picture | BadImage:
    try:
        pixels = open_image(path)
    except BadImage as error:
        return error
    digest = hashlib.blake2b(repr(pixels.size).encode(), digest_size=16)
    digest.update(pixels.tobytes())
    return Picture(digest.digest(), *stored_form(path))


def _bad_images(annotations: Annotations, pictures: list[Picture | BadImage]) -> Iterator[Finding]:
    for row, picture in enumerate(pictures):
        if isinstance(picture, BadImage):
            yield Finding(picture.kind, str(annotations.path(row)), picture.reason)


def _duplicates(annotations: Annotations, pictures: list[Picture | BadImage]) -> Iterator[Finding]:
    """Each image whose pixels were seen before, with the first image that has them; a pair across splits is a leak."""
    first: dict[bytes, dict[str, int]] = defaultdict(dict)  # pixels -> split -> its first row
    for row, picture in enumerate(pictures):
        if isinstance(picture, BadImage):
            continue
        split, seen = str(annotations.splits[row]), first[picture.digest]
        where = str(annotations.path(row))
        for other, twin in seen.items():
            same = (
                "is listed" if annotations.images[twin] == annotations.images[row] else f"is {annotations.images[twin]}"
            )
            if other == split:
                yield Finding("duplicate image", where, f"the same picture {same} in {split} already.")
            else:
                message = (
                    f"the same picture {same} in {other}, this one in {split}: a leak, so scores will be too high."
                )
                yield Finding("duplicate across splits", where, message)
        seen.setdefault(split, row)


def _odd_pictures(annotations: Annotations, pictures: list[Picture | BadImage]) -> Iterator[Finding]:
    for row, picture in enumerate(pictures):
        if isinstance(picture, BadImage):
            continue
        where, (width, height) = str(annotations.path(row)), picture.size
        if picture.mode not in PLAIN_MODES:
            yield Finding("unusual colours", where, f"stored as {picture.mode}; it is converted to RGB.")
        if min(width, height) < SMALLEST:
            yield Finding("unusual size", where, f"only {width} x {height} pixels.")
        elif max(width, height) > LONGEST * min(width, height):
            yield Finding("unusual size", where, f"{width} x {height} pixels; resizing to a square distorts it a lot.")


# --- labels ---


def _what_stops_training(usable: Annotations) -> Iterator[Finding]:
    """`usable` are the readable images. Only the first reason is reported: the others follow from it."""
    training = usable.split("train")
    if not usable.categories:
        yield Finding("no categories", usable.name, "There are no categories.", fatal=True)
    elif len(training) == 0:
        yield Finding("no training images", usable.name, "No image of the training split can be read.", fatal=True)
    elif not training.known_positives.any():
        message = "No training image is known to have any of the tags."
        yield Finding("no known tags", usable.name, message, fatal=True)


def _partial_evaluation_labels(annotations: Annotations) -> Iterator[Finding]:
    for split, name in (("val", "validation"), ("test", "test")):
        part = annotations.split(split)
        if len(part) and not part.complete:
            yield Finding("partial evaluation labels", annotations.name, part.partial_warning(name))


def _rare_categories(usable: Annotations) -> Iterator[Finding]:
    for category, count in zip(usable.categories, usable.split("train").known_positives, strict=True):
        if count == 0:
            yield Finding(
                "category without positives", category, "no training image is known to have it; it cannot be learned."
            )
        elif count == 1:
            yield Finding("category with one positive", category, "only one training image is known to have it.")


def _images_without_tags(annotations: Annotations) -> Iterator[Finding]:
    for row in _rows_without_tags(annotations).tolist():
        some = (annotations.labels[row] == ABSENT).any()
        message = "no tag is known to be present." if some else "nothing is known about it."
        yield Finding(WITHOUT_TAGS, str(annotations.path(row)), message)


def _rows_without_tags(annotations: Annotations) -> np.ndarray:
    """An image known to have none of the tags is complete, and not one of them."""
    present = (annotations.labels == PRESENT).any(axis=1)
    unknown = (annotations.labels == UNKNOWN).any(axis=1)
    return np.flatnonzero(~present & unknown)


def _by_kind(findings: list[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.kind].append(finding)
    return groups
