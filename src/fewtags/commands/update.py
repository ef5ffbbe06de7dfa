"""`fewtags update`: a run follows its archive. New photos are tagged, new tags are learned.

    RUN/update/seen.npz     the files as they were after the last update
    RUN/update/plan.json    what an update has to do; removed when it is done
    RUN/update/next/        the refitted run, until its files replace those of RUN

Killed at any moment, the next update goes on with the plan; with a new one, if nothing was done by the old one yet. A
refit is installed before the first tag is written, and seen.npz is written last, so nothing is done by half and nothing
is forgotten.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtags.atomic import remove_leftovers, write_json
from fewtags.data.folder_scan import Changes, Snapshot, changes_between, look
from fewtags.data.image_files import is_half_of_a_pair, is_image, stems_of_pictures
from fewtags.errors import DataError, UserError
from fewtags.locks import only_process_in
from fewtags.progress import working
from fewtags.wording import plural

if TYPE_CHECKING:
    import numpy as np

    from fewtags.commands.predict import Outcome
    from fewtags.data.annotations import Annotations
    from fewtags.data.prepare import RunData

SIDECARS = (".xmp", ".txt")  # that a writer may have left next to a photo it tagged


@dataclass(frozen=True)
class Tagging:
    """Where the tags of new photos go; nowhere if neither is given."""

    write: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    out: Path | None = None
    thresholds: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.write is not None or self.out is not None


@dataclass
class Plan:
    photos: list[str]  # the folders and files that were looked at
    todo: list[str]  # photos to tag
    seen: list[str]  # about the photos, as sentences
    learned: list[str] | None = None  # about labels and the refit, once that is done
    begun: bool = False  # to tag


@dataclass(frozen=True)
class Updated:
    sentences: list[str]
    problems: list[str]  # that a person should know of, also when asked to be quiet


def update(run: Path, photos: Sequence[Path], tagging: Tagging, *, quiet: bool = False) -> Updated:
    if not quiet:
        print(f"Looking for changes in {places(photos)}.", file=sys.stderr, flush=True)
    with working("Looking for changes", quiet=quiet):
        state = State(run)
        if state.is_current(photos, tagging):
            return Updated([f"Nothing has changed in {places(photos)} since the last update of {run}."], [])
    with working(f"Opening {run}", quiet=quiet):
        must_be_finished(run)
        state.must_be_there(photos)
    with only_process_in(run, "fewtags update"), working(f"Updating {run}", quiet=quiet):
        remove_leftovers(state.folder, older_than=0)  # of an update that was killed: there is no other one now
        plan, now = state.plan(photos, besides(run, tagging))
        if plan.learned is None:
            plan.learned = learn(run, state, quiet)
            state.keep(plan, now)
        tagged, problems = tag(run, plan, tagging, state, now, quiet)
        state.finish(plan, now, besides(run, tagging), pending=[] if tagging else plan.todo)
    return Updated([*plan.seen, *plan.learned, *tagged], problems)


def must_be_finished(run: Path) -> None:
    from fewtags.engine.run_folder import RunFolder

    if not RunFolder(run).must_be_run().is_finished:
        raise UserError(f"{run} is not finished; resume it first (fewtags train --resume {run}).")


def besides(run: Path, tagging: Tagging) -> list[Path]:
    """Files that may be among the photos and are none of them."""
    out = [] if tagging.out is None else [tagging.out, tagging.out.with_name(tagging.out.name + ".json")]
    return [run, *out]


def places(photos: Sequence[Path]) -> str:
    return ", ".join(map(str, photos))


# --- what has changed ---


class State:
    """What is known from update to update."""

    def __init__(self, run: Path):
        self.run, self.folder = run, run / "update"
        self.before = Snapshot.load(self.folder / "seen.npz")

    @property
    def next(self) -> Path:
        return self.folder / "next"

    def is_current(self, photos: Sequence[Path], tagging: Tagging) -> bool:
        """Is there nothing to do? Answered without opening the run, whose libraries alone take a while."""
        if self.before is None or (self.folder / "plan.json").is_file():
            return False
        snapshot, about = self.before
        watched = [*map(str, photos), *about["watched"]]
        if about["photos"] != absolute(photos) or (about["pending"] and tagging):
            return False
        return look(filter(exists, watched), besides=besides(self.run, tagging)) == snapshot

    def must_be_there(self, photos: Sequence[Path]) -> None:
        """A folder without any photo that had those of the run is a disk that is not mounted: to take them for removed
        would forget all that was learned from them, and tag them all as new when they are back."""
        for place in photos:
            if not place.exists():
                raise DataError(f"{place} does not exist. Is its disk mounted?")
        empty = [place for place in photos if not has_photos(place)]
        if empty and any(is_below(path, absolute(empty)) for path in self.own_photos()):
            raise DataError(
                f"{places(empty)} has no photos any more, and {self.run} was trained on some in it. Is its disk "
                "mounted? Nothing was changed."
            )

    def own_photos(self) -> set[str]:
        """That the run was trained on."""
        from fewtags.engine.record import load_labels

        root = self.root()
        return {str(Path(root, image).absolute()) for image in load_labels(self.run).images}

    def plan(self, photos: Sequence[Path], besides: Sequence[Path]) -> tuple[Plan, Snapshot]:
        """The plan of an update that was interrupted, or a new one."""
        from fewtags.engine.run_folder import RunFolder

        kept = Snapshot.load(self.folder / "planned.npz")
        file = self.folder / "plan.json"
        if file.is_file() and kept is not None:
            plan = Plan(**json.loads(file.read_text(encoding="utf-8")))
            if plan.photos == absolute(photos) and (plan.learned is not None or RunFolder(self.next).is_finished):
                return plan, kept[0]
        file.unlink(missing_ok=True)
        now = look(filter(exists, [*photos, *self.watched()]), besides=besides)
        changes = self._changes(photos, now)
        pending = [path for path in (self.before[1]["pending"] if self.before else []) if exists(path)]
        todo = sorted({*pending, *changes.new, *changes.changed})
        plan = Plan(absolute(photos), without_pairs(todo, now), [about_photos(changes, photos)])
        self.keep(plan, now)
        return plan, now

    def _changes(self, photos: Sequence[Path], now: Snapshot) -> Changes:
        before = self.before[0] if self.before else self._as_trained(now)
        found, roots = changes_between(before, now), absolute(photos)
        inside = [path for path in found.new if is_below(path, roots)]
        return Changes(inside, found.changed, found.moved, found.removed, found.others)

    def _as_trained(self, now: Snapshot) -> Snapshot:
        """Before the first update: the images that the run was trained on are not new."""
        known, stamps = self.own_photos(), now.stamp_of()
        return Snapshot.of({path: stamp for path, stamp in stamps.items() if path in known or not is_image(path)})

    def root(self) -> Path:
        """The folder that the names of the run's images are relative to."""
        from fewtags.engine.record import load_run_config

        source = Path(load_run_config(self.run).data.source)
        return source if source.is_dir() else source.parent

    def watched(self) -> list[str]:
        """Where the run's labels come from."""
        from fewtags.engine.record import load_run_config

        data = load_run_config(self.run).data
        return absolute([Path(place) for place in (data.source, data.tags) if place])

    def keep(self, plan: Plan, now: Snapshot) -> None:
        if not (self.folder / "plan.json").is_file():
            now.save(self.folder / "planned.npz", {})
        write_json(self.folder / "plan.json", asdict(plan))

    def finish(self, plan: Plan, now: Snapshot, besides: Sequence[Path], pending: Sequence[str]) -> None:
        """What was seen, with the sidecars that this update has written itself."""
        stamps = now.stamp_of()
        own = {side for photo in plan.todo for side in sidecars_of(photo)}
        after = look(filter(exists, [*plan.photos, *self.watched()]), besides=besides).stamp_of()
        stamps |= {path: stamp for path, stamp in after.items() if path in own}
        about = {"photos": plan.photos, "watched": self.watched(), "pending": list(pending)}
        Snapshot.of(stamps).save(self.folder / "seen.npz", about)
        shutil.rmtree(self.next, ignore_errors=True)
        for name in ("planned.npz", "plan.json"):  # the plan last: as long as it is there, the next update cleans up
            (self.folder / name).unlink(missing_ok=True)


def absolute(photos: Sequence[Path]) -> list[str]:
    return sorted(str(photo.absolute()) for photo in photos)


def exists(place: str | Path) -> bool:
    return Path(place).exists()


def has_photos(place: Path) -> bool:
    return place.is_file() or any(is_image(name) for _, _, names in os.walk(place) for name in names)


def is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/\\") + "/") for root in roots)


def sidecars_of(photo: str) -> list[str]:
    path = Path(photo)
    return [
        str(other) for suffix in SIDECARS for other in (path.with_name(path.name + suffix), path.with_suffix(suffix))
    ]


def without_pairs(todo: Sequence[str], now: Snapshot) -> list[str]:
    """A RAW file next to a picture is the same photo."""
    pictures = stems_of_pictures(now.paths)
    return [path for path in todo if not is_half_of_a_pair(path, pictures)]


def about_photos(changes: Changes, photos: Sequence[Path]) -> str:
    numbers = {"new": changes.new, "changed": changes.changed, "moved": changes.moved, "removed": changes.removed}
    first, *rest = [(name, len(found)) for name, found in numbers.items() if len(found)] or [("new or changed", 0)]
    text = ", ".join([f"{plural(first[1], f'{first[0]} photo')}", *(f"{number:,} {name}" for name, number in rest)])
    return f"{text} in {places(photos)}."


# --- labels and model ---


def learn(run: Path, state: State, quiet: bool) -> list[str]:
    """Fit the run again if its data differs from what it was trained on."""
    from fewtags.engine.record import load_run_config, load_run_data
    from fewtags.engine.run_folder import RunFolder
    from fewtags.engine.training import train
    from fewtags.methods import objective_class

    files = RunFolder(state.next)
    if files.is_finished:  # interrupted while it replaced the run
        return [*json.loads((state.next / "sentences.json").read_text(encoding="utf-8")), install(run, state.next)]
    data, config = load_run_data(run), load_run_config(run)
    if not differs(data, run):
        return ["The labels are as before."]
    sentences = about_labels(run, data)
    if objective_class(config.method_name).trains:
        return [
            *sentences,
            f"Method '{config.method_name}' trains, so the model stays as it is; to learn them, train again.",
        ]
    shutil.rmtree(state.next, ignore_errors=True)
    state.next.mkdir(parents=True)
    write_json(state.next / "sentences.json", sentences)
    train(config, state.next, data=data, quiet=quiet)
    return [*sentences, install(run, state.next)]


def differs(data: RunData, run: Path) -> bool:
    from fewtags.engine.run_folder import RunFolder
    from fewtags.models.saved import read_object

    record = read_object(RunFolder(run).data)
    parts = {"train": data.train, "val": data.val, "test": data.test}
    now = {name: part.content_hash() for name, part in parts.items() if part is not None}
    return now != {name: record[name]["hash"] for name in parts if record.get(name)}


def install(run: Path, made: Path) -> str:
    """Replace the files of the run by those of the refitted one, the result last. May be repeated at any point.

    A folder cannot be replaced in one step: the old one is put aside, where readers of the model find it until the new
    one is in its place.
    """
    from fewtags.engine.run_folder import RunFolder
    from fewtags.models.places import OLD_MODEL
    from fewtags.models.saved import read_object

    there, here = RunFolder(made), RunFolder(run)
    record = read_object(there.data) if there.data.is_file() else None
    if record is not None:  # settings stay as they were given, with paths relative to the same place
        old = read_object(here.data)
        write_json(there.data, {**record, **({"relative_to": old["relative_to"]} if "relative_to" in old else {})})
    aside = run / OLD_MODEL
    for file in sorted(made.iterdir(), key=lambda file: file == there.result):
        if file in (there.config, made / "sentences.json") or file.name.startswith("."):
            continue
        if file.is_dir() and (run / file.name).exists():  # else it is aside already, and nothing else is there
            shutil.rmtree(aside, ignore_errors=True)
            (run / file.name).replace(aside)
        file.replace(run / file.name)
    shutil.rmtree(aside, ignore_errors=True)
    images = read_object(here.data)["train"]["images"]
    shutil.rmtree(made)
    return f"Fitted again to {plural(images, 'photo')}."


def about_labels(run: Path, data: RunData) -> list[str]:
    """How the labels differ from those the run was trained on."""
    from fewtags.engine.record import load_labels

    old = load_labels(run)
    parts = [part for part in (data.train, data.val, data.test) if part is not None]
    before, now = known_tags([old]), known_tags(parts)
    gained, lost = len(now - before), len(before - now)
    categories = [name for name in data.train.categories if name not in set(old.categories)]
    text = f"{plural(gained, 'tag')} learned of, {lost:,} gone"
    if categories:
        more = ", ".join(categories[:5]) + (" …" if len(categories) > 5 else "")
        text += f"; new: {more}"
    return [f"{text}."] if gained or lost or categories else []


def known_tags(parts: Sequence[Annotations]) -> set[tuple[str, str]]:
    from fewtags.labels import PRESENT

    found: set[tuple[str, str]] = set()
    for part in parts:
        rows, columns = (part.labels == PRESENT).nonzero()
        found |= {(part.images[row], part.categories[column]) for row, column in pairs(rows, columns)}
    return found


def pairs(rows: np.ndarray, columns: np.ndarray) -> zip[tuple[int, int]]:
    return zip(rows.tolist(), columns.tolist(), strict=True)


# --- tags ---


def tag(
    run: Path, plan: Plan, tagging: Tagging, state: State, now: Snapshot, quiet: bool
) -> tuple[list[str], list[str]]:
    """Sentences about what was tagged, and about problems."""
    from fewtags.commands.predict import choose_writer, write_predictions

    photos = [Path(path) for path in plan.todo if exists(path)]
    if not photos:
        return [], []
    if not tagging:
        return [f"{plural(len(photos), 'photo')} not tagged yet; --write xmp or --out FILE does it."], []
    resumed, plan.begun = plan.begun, True
    state.keep(plan, now)
    writer = choose_writer(tagging.write, tagging.options, None, photos, dry_run=False)
    outcome = write_predictions(
        run, photos, tagging.out, overwrite=not resumed, writer=writer, quiet=quiet, **tagging.thresholds
    )
    sentences = [about_tags(outcome, before=len(photos) - sum(outcome))]
    sentences += [writer.close()] if writer is not None else []
    return sentences, [f"{plural(outcome.failed, 'photo')} could not be read."] if outcome.failed else []


def about_tags(outcome: Outcome, before: int) -> str:
    """`before`: photos whose rows were written by an update that was interrupted."""
    parts = [f"{plural(outcome.tagged, 'photo')} tagged"]
    if outcome.untagged:
        parts.append(f"{outcome.untagged:,} without a tag that is probable enough")
    if before:
        parts.append(f"{before:,} done before the interruption")
    return ", ".join(parts) + "."


def paragraph(updated: Updated, say: Callable[[str], object]) -> None:
    say(" ".join([*updated.sentences, *updated.problems]))
