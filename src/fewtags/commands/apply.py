"""`fewtags apply`: writes the decisions of a review to a new label file in the original layout."""

from __future__ import annotations

import csv
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fewtags.atomic import atomic_write, file_checksum, flush_all, flush_folder, naming, remove_leftovers
from fewtags.data.annotations import Annotations
from fewtags.data.csv_cells import protected
from fewtags.data.decisions import STATES, DecidedLabel, latest, read_decisions, with_tags_of
from fewtags.data.formats import read_annotations
from fewtags.data.write_back import (
    Change,
    LabelSource,
    Rewritten,
    as_json_lines,
    changes_between,
    check_rewritten,
    rewrite,
)
from fewtags.engine.record import load_labels, load_run_config, load_run_data, new_place
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.models.saved import read_object
from fewtags.review.store import Decision, DecisionStore, decisions_file, has_decisions
from fewtags.review.tag_book import TagBook
from fewtags.wording import plural

SHOWN = 20  # changes printed
EXAMPLES = 3  # printed of the changes in the source
DAY = 86_400.0  # seconds; copying a large archive takes hours


@dataclass(frozen=True)
class Plan:
    run: Path
    annotations: Annotations  # as they are in the source
    changes: list[Change]
    new: Rewritten
    place: Path  # the output file or folder
    unknown_labels: int  # decisions about images or tags not in the source
    state: Callable[[], str]  # of the source as it is now: differs once anybody has changed its labels
    planned: str  # its state when the plan was made

    def write(self) -> str:
        """Write, verify by reading back, and only then keep it. Returns how to train with it."""
        if self.place.exists():
            raise UserError(f"{self.place} already exists; choose another path with --out.")
        self.place.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.place.parent, older_than=DAY, folders=True)
        # Readers of label files go by the suffix, and pass over hidden files.
        temporary = self.place.with_name(f"fewtags-{secrets.token_hex(8)}.part{self.place.suffix}")
        try:
            with naming(self.place, instead_of=temporary):
                self.new.write(temporary, self.annotations)
                check_rewritten(self.new, temporary, self.annotations, self.changes)
                self.must_be_current()
                flush_all(temporary)
                temporary.replace(self.place)
                flush_folder(self.place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        return f"{self.place}\nTrain with it: {self.command()}"

    def must_be_current(self) -> None:
        """A person reads the plan for minutes; what somebody else adds to the labels meanwhile must not get lost."""
        if self.state() != self.planned:
            raise DataError("The labels were edited since these changes were listed; run the command again.")

    def command(self) -> str:
        if not isinstance(self.new.content, bytes):
            return f"fewtags train {self.place}"
        options = "".join(f" -o {name}={value}" for name, value in self.new.options.items())
        return f"fewtags train {self.annotations.root} --tags {self.place}{options}"


def plan(run: Path, out: Path | None, *, write_as: str, force: bool, moved_to: Path | None = None) -> Plan:
    """What `fewtags apply` would do, without doing it."""
    if write_as not in ("same", "jsonl"):
        raise UserError(f"--as {write_as} should be 'same' or 'jsonl'.")
    decisions = decisions_of(run)
    if not decisions:
        raise UserError(f"{run} has no decisions yet; review it with `fewtags review {run}`.")
    changed = what_changed(run, moved_to)
    if changed and not force:
        raise DataError(
            f"The labels of {run} have changed since it was trained, and the decisions are about the old ones: "
            f"{'; '.join(changed)}. Train and review again, or apply the decisions to the current labels "
            "with --force."
        )
    config = load_run_config(run)
    labels = {label: decision.label for label, decision in latest(decisions).items() if decision.image}
    hidden = config.data.known is not None
    source = label_source(run, moved_to).file
    with not_changed_meanwhile(source):
        annotations = labels_of_experiment(run, moved_to) if hidden else source_labels(run, moved_to)
        new = {decision.tag for decision in decisions if decision.tag_is == "new"} - set(annotations.categories)
        annotations = with_tags_of(annotations, [d for d in decisions if d.tag_is == "new"])
        changes = changes_between(annotations, labels)
        one_hot = label_source(run, moved_to).format.name == "onehot"  # whose columns are fixed
        if write_as == "jsonl" or hidden or (new and one_hot):
            written = as_json_lines(annotations, changes)
        else:
            written = rewrite(label_source(run, moved_to), annotations, changes)
    place = out or RunFolder(run).path / "reviewed" / written.name
    known_images, known_tags = set(annotations.images), set(annotations.categories)
    strange = sum(image not in known_images or tag not in known_tags for image, tag in labels)

    def state() -> str:
        if source is not None:
            return file_checksum(source) if source.is_file() else ""
        return "" if hidden else source_labels(run, moved_to).content_hash()

    return Plan(run, annotations, changes, written, place, strange, state, state())


@contextmanager
def not_changed_meanwhile(file: Path | None) -> Iterator[None]:
    """The file is read more than once within the block; all of these must have been the same file."""
    before = None if file is None else file_checksum(file)
    try:
        yield
    finally:  # a change may also be why the block failed
        if file is not None and (not file.is_file() or file_checksum(file) != before):
            raise DataError(f"{file} was changed while it was read; run the command again.")


def show(planned: Plan) -> Iterator[str]:
    """The difference between the current and the new labels, as text."""
    changes = planned.changes
    width = max((len(change.image) for change in changes[:SHOWN]), default=0)
    tag = max((len(change.tag) for change in changes[:SHOWN]), default=0)
    for change in changes[:SHOWN]:
        yield f"{change.image:{width}}  {change.tag:{tag}}  {STATES[change.old]} -> {STATES[change.new]}"
    if len(changes) > SHOWN:
        yield f"… and {len(changes) - SHOWN:,} more"
    number = {name: sum(STATES[change.new] == name for change in changes) for name in STATES.values()}
    counted = ", ".join(f"{count:,} {name}" for name, count in number.items() if count)
    yield f"{plural(len(changes), 'label')} would change{f' ({counted})' if counted else ''}, in {planned.place}"
    if planned.new.unwritten:
        yield (
            f"{plural(len(planned.new.unwritten), 'tag')} known absent cannot be expressed in tag text files; "
            f"`fewtags train --reviewed {planned.run}` uses them, and --as jsonl writes a file that includes them."
        )
    if planned.unknown_labels:
        strange = plural(planned.unknown_labels, "decision")
        yield f"Skipped: {strange} about images or tags that are not in the labels."


# --- decisions and the labels they are about ---


def decisions_of(run: Path) -> list[DecidedLabel]:
    """The decisions that the run was trained with, and those of its own review; the last about a label counts."""
    config = load_run_config(run)
    before = read_decisions(Path(config.data.decisions)) if config.data.decisions else []
    if not has_decisions(run):
        return before
    with DecisionStore(decisions_file(run), read_only=True) as store:
        rows = list(store)
    standing = opinions(rows)
    # What the reviewed run was trained with had its own new tags: they are among its categories.
    categories = load_run_data(run).train.categories if any(row.is_about_tag for row in rows) else []
    own = decided_under_their_names(run, rows, standing, categories) if categories else map(plain, standing)
    return [*before, *own]


def opinions(rows: Sequence[Decision]) -> list[Decision]:
    """What every reviewer said last of each label, oldest first: the last one counts, the others are for agreement."""
    undone = {row.undo_of for row in rows}
    stand = [row for row in rows if row.undo_of is None and row.id not in undone and not row.is_about_tag]
    last = {(row.label, row.reviewer): row for row in stand}
    return sorted(last.values(), key=lambda row: row.id)


def plain(d: Decision) -> DecidedLabel:
    return DecidedLabel(d.image, d.category, d.new, d.reviewer, d.decided_at, d.run)


def decided_under_their_names(
    run: Path, rows: Sequence[Decision], standing: Sequence[Decision], categories: Sequence[str]
) -> Iterator[DecidedLabel]:
    """Decisions by the names that tags have now; given labels of a tag that was renamed or merged move with it."""
    book, given = TagBook.of(categories, rows), load_labels(run)
    for tag in book.tags[: book.own]:
        before, after = categories[tag.column], book.tags[book.final(tag.column)]
        if not after.deleted and after.name == before:
            continue
        yield DecidedLabel("", before, UNKNOWN, tag_is="gone")
        if before not in given.categories:  # of a run before the labels were kept
            continue
        for image, label in zip(given.images, given.labels[:, given.categories.index(before)], strict=True):
            if label != UNKNOWN:
                yield DecidedLabel(image, before, UNKNOWN)
                if not after.deleted:
                    yield DecidedLabel(image, after.name, int(label), tag_is=new_or_not(after.name, categories))
    for decision in standing:
        column = book.decided.get(decision.id)
        now = None if column is None else book.tags[book.final(column)]
        if now is None:
            yield plain(decision)
        elif not now.deleted:
            yield replace(plain(decision), tag=now.name, tag_is=new_or_not(now.name, categories))


def new_or_not(name: str, categories: Sequence[str]) -> str:
    return "" if name in categories else "new"


def write_decision_table(run: Path, file: Path, states: str = "fewtags") -> Path:
    """The current decisions of a run's own review, oldest first, for spreadsheets or in the words of Perch."""
    if states not in TABLES:
        raise UserError(f"--states {states} should be one of {', '.join(TABLES)}.")
    if file.exists():
        raise UserError(f"{file} exists already; choose another name.")
    with DecisionStore(decisions_file(run), read_only=True) as store:
        decisions = list(store.standing())
    header, row = TABLES[states]
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as beside, beside.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(header)
        writer.writerows([protected(cell) for cell in row(decision)] for decision in decisions)
    return file


def own_row(d: Decision) -> list[str]:
    cells = [d.image, d.category, STATES[d.old], STATES[d.new], d.reviewer, d.decided_at, d.queue, d.run]
    return [*cells, d.content_hash]


def perch_row(d: Decision) -> list[str]:
    """As Perch's annotations: a label, its type, and where it comes from. Unsure is a label too: it was looked at."""
    words = f"{d.reviewer or 'unknown reviewer'}, fewtags review of {d.run}, queue {d.queue}, {d.decided_at}"
    return [d.image, d.category, LABEL_TYPES[d.new], words]


LABEL_TYPES = {PRESENT: "positive", ABSENT: "negative", UNKNOWN: "uncertain"}  # names of Perch's LabelType
TABLES: dict[str, tuple[list[str], Callable[[Decision], list[str]]]] = {
    "fewtags": (["image", "tag", "old", "new", "reviewer", "decided_at", "queue", "run", "content_hash"], own_row),
    "perch": (["filename", "label", "label_type", "provenance"], perch_row),
}


def label_source(run: Path, moved_to: Path | None) -> LabelSource:
    config = load_run_config(run).data
    if moved_to is not None:
        config = config.model_copy(update=new_place(config, moved_to, None))
    return LabelSource.of(config)


def source_labels(run: Path, moved_to: Path | None) -> Annotations:
    """The labels as they are in the source now."""
    source = label_source(run, moved_to)
    if source.images is None:
        return read_annotations(source.path, format=source.format.name, **source.given)
    return read_annotations(source.images, tags=source.path, format=source.format.name, **source.given)


def labels_of_experiment(run: Path, moved_to: Path | None) -> Annotations:
    """The visible labels of a run that hides some, with its own splits; the source has all labels."""
    shown, data = load_labels(run), load_run_data(run, moved_to)
    return Annotations(data.train.root, shown.images, shown.categories, shown.labels, shown.splits, data.train.name)


def what_changed(run: Path, moved_to: Path | None = None) -> list[str]:
    """What has changed in the source of the labels since the run was trained, as sentences; empty if nothing has."""
    then, data = load_labels(run), load_run_data(run, moved_to)
    parts = [part for part in (data.train, data.val, data.test) if part is not None]
    given = [data.train.labels if data.given is None else data.given, *(part.labels for part in parts[1:])]
    images = [image for part in parts for image in part.images]
    now = Annotations(Path(), images, data.train.categories, np.concatenate(given), np.full(len(images), "train"))
    found = differences(then, now)
    noted = read_object(RunFolder(run).data).get("source")
    if not found and noted:
        file = label_source(run, moved_to).file
        if file is not None and file_checksum(file) != noted["sha256"]:
            found.append(f"{file} has changed, although it gives the same labels")
    return found


def differences(then: Annotations, now: Annotations) -> list[str]:
    found = []
    for words, names, others in (
        ("new", now.images, then.images),
        ("gone", then.images, now.images),
    ):
        if more := sorted(set(names) - set(others)):
            found.append(f"{plural(len(more), 'image')} {words} ({some(more)})")
    for words, names, others in (("new", now.categories, then.categories), ("gone", then.categories, now.categories)):
        if more := sorted(set(names) - set(others)):
            found.append(f"{plural(len(more), 'tag')} {words} ({some(more)})")
    still_there = set(now.images)
    images = [image for image in then.images if image in still_there]
    tags = [tag for tag in then.categories if tag in now.categories]
    before, after = (
        part.labels[np.ix_([row[image] for image in images], [part.categories.index(tag) for tag in tags])]
        for part in (then, now)
        for row in [{image: number for number, image in enumerate(part.images)}]
    )
    places = np.argwhere(before != after)
    if len(places):
        examples = [
            f"'{tags[c]}' of {images[r]} was {STATES[int(before[r, c])]}, is {STATES[int(after[r, c])]}"
            for r, c in places[:EXAMPLES]
        ]
        found.append(f"{plural(len(places), 'label')} changed ({some(examples, len(places))})")
    return found


def some(names: list[str], number: int | None = None) -> str:
    number = len(names) if number is None else number
    return ", ".join(names[:EXAMPLES]) + (", …" if number > EXAMPLES else "")
