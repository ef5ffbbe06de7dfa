"""`fewtags predict`: tags of image files, written incrementally.

Output files are append-only. Next to one, `<file>.json` says which model and settings its rows are from;
run again, the command resumes after the last complete row.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fewtags.atomic import naming, write_json
from fewtags.commands.models import Inference, open_model
from fewtags.data.csv_cells import protected, unprotected
from fewtags.data.image_files import Skipped, iter_images, no_images
from fewtags.data.remote import remote_url
from fewtags.data.tag_tree import TagTree
from fewtags.engine.predictions import NO_TREE, NOT_A_NUMBER, Prediction, name_of
from fewtags.errors import Interrupted, RunFailed, UserError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.locks import only_writer_of
from fewtags.progress import progress_bar, working

if TYPE_CHECKING:
    from fewtags.data.writers import TagWriter
    from fewtags.engine.own_images import OwnPhotos

FLUSH_EVERY = 64  # rows

WriteRow = Callable[[Prediction], bool]  # whether the image got any tag


class Outcome(NamedTuple):
    """How many images of this call got tags, none (nothing is probable enough), or could not be read."""

    tagged: int
    untagged: int
    failed: int


def write_predictions(
    run: Path,
    images: Sequence[Path],
    out: Path | None,
    *,
    threshold: float | None = None,
    precision: float | None = None,
    recall: float | None = None,
    save_thresholds: bool = False,
    top: int | None = None,
    all_scores: bool = False,
    overwrite: bool = False,
    writer: TagWriter | None = None,
    inference: Inference | None = None,
    own: bool = True,
    quiet: bool = False,
) -> Outcome:
    """Tag images, streaming to a CSV or JSON lines file, or as CSV to standard output.

    With `own`, the run's own photos are judged by their labels too.
    """
    if out is not None and out.suffix not in (".csv", ".jsonl"):
        raise UserError(f"{out} should end in .csv or .jsonl.")
    if writer is not None and (elsewhere := next(filter(remote_url, images), None)) is not None:
        raise UserError(f"--write writes next to local images, but {remote_url(elsewhere)} is remote.")
    skipped = Skipped()
    with working("Looking for images", quiet=quiet):
        total = sum(1 for _ in iter_images(images, skipped))
    if not total:
        raise no_images()
    with working("Opening the model", quiet=quiet):
        model = open_model(run)
    thresholds = model.thresholds if threshold is None else np.full(len(model.categories), threshold)
    basis = ""
    if precision is not None or recall is not None:
        chosen, basis = model.purpose_thresholds(precision, recall)
        thresholds = chosen if threshold is None else np.maximum(chosen, threshold)
        if precision is not None:
            basis += about_the_least_probable(thresholds, precision)
    if save_thresholds:
        model.keep_thresholds(thresholds)
    rows = Rows(model.categories, thresholds, top, all_scores, model.tree)
    if writer is not None:
        writer.tree = model.tree
    about = {} if out is None else {
        "model": model.fingerprint(), "threshold": threshold, "precision": precision, "recall": recall, "top": top,
        "all_scores": all_scores,
    }  # fmt: skip
    written = Written() if out is None or overwrite else read_written(out, about)
    with (
        alone_beside_photos(writer),
        writing_to(out, about, written, overwrite) as stream,
        progress_bar("Tagging", total, quiet=quiet, unit="images") as bar,
    ):
        bar.say(skipped.sentence(images[0]))
        bar.say(basis)
        if written.count:
            bar.say(f"{out} already has {written.count} images; resuming with the rest.")
            bar.skip(written.count)
        write = row_writer(out, stream, rows, written, writer)
        todo = (path for path in iter_images(images) if name_of(path, 0) not in written)
        how = inference or Inference()
        predictions = model.predict(todo, how, total - written.count, bar.say)
        if own:
            predictions = with_own_photos(predictions, run, images, rows, how.device, bar.say)
        return write_all(predictions, write, stream, bar.step, out)


def with_own_photos(
    predictions: Iterator[Prediction],
    run: Path,
    images: Sequence[Path],
    rows: Rows,
    device: str,
    say: Callable[[str], object],
) -> Iterator[Prediction]:
    """For photos that the run was trained on, what `discover` and `review` say of them: a model knows the labels that
    it has learned from too well, so each unknown one is judged without."""
    own = own_photos(run, images, list(rows.categories), device)
    if own is None:
        yield from predictions
        return
    said = False
    for prediction in predictions:
        judged = None if prediction.probabilities is None else own.probabilities(Path(prediction.image))
        if judged is not None and not said:
            say(
                "Some of these photos are the run's own: their known tags stay as they are, and the others are judged "
                "as in `fewtags discover` (--as-new asks the model alone)."
            )
            said = True
        if judged is not None:
            prediction = replace(prediction, probabilities=rows.tree.raised(judged, rows.categories))
        yield prediction


def own_photos(run: Path, images: Sequence[Path], categories: list[str], device: str) -> OwnPhotos | None:
    """None if `run` is not a run with known and unknown tags of these `categories`, which its labels may have lost
    since, or none of the images is where its own are."""
    if run.is_file():  # an exported model, which needs no torch
        return None
    from fewtags.engine.run_folder import RunFolder

    if not RunFolder(run).is_run or any(remote_url(path) for path in images):
        return None
    from fewtags.engine.own_images import OwnImages, OwnPhotos
    from fewtags.engine.record import load_run_config, load_run_data
    from fewtags.models.saved import load_model
    from fewtags.review.store import standing_decisions

    config = load_run_config(run)
    place = Path(config.data.source).resolve()
    place = place if place.is_dir() else place.parent
    asked = [path.resolve() for path in images]
    if not any(path.is_relative_to(place) or place.is_relative_to(path) for path in asked):
        return None
    try:
        own = OwnImages.of(load_run_data(run))
    except UserError:  # the labels are gone
        return None
    labels = own.annotations.labels
    if not (labels == PRESENT).any() or not (labels == UNKNOWN).any() or own.annotations.categories != categories:
        return None
    _, judge = own.judge(lambda: load_model(run), config, run=run, device=device, quiet=True)
    return OwnPhotos.of(own, judge, standing_decisions(run))


def about_the_least_probable(thresholds: np.ndarray, precision: float) -> str:
    """A precision is of all tags that are written. Who reads it as one of every single tag is told."""
    least = float(thresholds.min())
    if least >= precision:
        return ""
    return (
        f" That is on average over what is predicted: single tags have probabilities down to {least:.2f}; "
        f"--threshold {precision:g} leaves out all below {precision:g}."
    )


def choose_writer(
    name: str | None, options: Mapping[str, Any], out: Path | None, images: Sequence[Path] = (), *, dry_run: bool
) -> TagWriter | None:
    if name is None:
        if options or dry_run:
            raise UserError("--option and --dry-run need --write; say where the tags go, for example --write xmp.")
        return None
    if dry_run and out is not None:
        raise UserError("--dry-run writes nothing; remove --out.")
    from fewtags.data.writers import WRITERS, open_writer
    from fewtags.data.writers.beside import folders_of

    writer = open_writer(name, options, folders=folders_of(images), dry_run=dry_run)
    if out is not None and out.exists() and not WRITERS[name].resumable:
        raise UserError(f"--write {name} needs all images in one run; {out} has some already, so choose another --out.")
    return writer


def alone_beside_photos(writer: TagWriter | None) -> AbstractContextManager[None]:
    if writer is None:
        return nullcontext()
    from fewtags.data.writers.beside import alone_in

    return alone_in(writer.folders, "fewtags predict --write")


def row_writer(out: Path | None, stream: IO[str], rows: Rows, written: Written, writer: TagWriter | None) -> WriteRow:
    """Writes rows to the stream; also to the writer if there is one, and only to it if no file was requested."""
    if writer is not None and out is None:
        return also_to(writer, rows, None)
    as_csv = out is None or out.suffix == ".csv"
    write = csv_rows(stream, rows, with_header=not written.end) if as_csv else jsonl_rows(stream, rows)
    return write if writer is None else also_to(writer, rows, write)


def also_to(writer: TagWriter, rows: Rows, write: WriteRow | None) -> WriteRow:
    """The writer comes first: images with a row in the file are not predicted again on resume."""

    def write_both(prediction: Prediction) -> bool:
        tags = rows.tags(prediction)
        if prediction.probabilities is not None:
            writer.write(Path(prediction.image), tags)
        if write is not None:
            write(prediction)
        return bool(tags)

    return write_both


def write_all(
    predictions: Iterator[Prediction],
    write: WriteRow,
    stream: IO[str],
    on_step: Callable[[], object],
    out: Path | None,
) -> Outcome:
    tagged = failed = no_number = done = 0
    try:
        for prediction in predictions:
            tagged += write(prediction)
            done += 1
            failed += prediction.probabilities is None
            no_number += prediction.problem.endswith(NOT_A_NUMBER)
            if done % FLUSH_EVERY == 0 or out is None:
                stream.flush()
            on_step()
    except KeyboardInterrupt:
        stream.flush()
        if out is None:
            raise
        raise Interrupted(f"Stopped; {done} rows were added to {out}. Run the same command to resume.") from None
    if no_number:
        raise RunFailed(f"For {no_number} of {done} images {NOT_A_NUMBER} Their rows say so.")
    return Outcome(tagged, done - tagged - failed, failed)


# --- what was written before ---


@dataclass
class Written:
    """The complete rows of a file: where they end, and their images."""

    end: int = 0
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # sorted: 8 bytes per image

    @property
    def count(self) -> int:
        return len(self.hashes)

    def __contains__(self, image: str) -> bool:
        place = int(np.searchsorted(self.hashes, name_hash(image)))
        return place < len(self.hashes) and int(self.hashes[place]) == name_hash(image)


def name_hash(image: str) -> int:
    return int.from_bytes(hashlib.blake2b(image.encode(errors="surrogateescape"), digest_size=8).digest(), "big")


def read_written(out: Path, about: Mapping[str, Any]) -> Written:
    """What `out` already has; rejected if it is from another model, other settings or another program."""
    if not out.exists() or out.stat().st_size == 0:
        return Written()
    known = about_file(out)
    try:
        before = json.loads(known.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        raise UserError(f"{out} exists without a record of its model; choose another --out, or use --overwrite.")
    for name, value in about.items():
        if before.get(name) != value:
            what = "from another model" if name == "model" else f"written with {option(name, before.get(name))}"
            raise UserError(f"The rows in {out} are {what}; choose another --out, or use --overwrite.")
    written, hashes = Written(), array("Q")
    for image, written.end in complete_rows(out):
        hashes.append(name_hash(image))
    if hashes:
        written.hashes = np.unique(np.frombuffer(hashes, dtype=np.uint64))
    return written


def option(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')} {value}" if value not in (None, False) else f"no --{name.replace('_', '-')}"


def complete_rows(out: Path) -> Iterator[tuple[str, int]]:
    """The image of every complete row, and where the row ends. A row cut off while being written is not complete."""
    with out.open("rb") as file:
        end, row = 0, b""
        header = out.suffix == ".csv"
        for line in file:
            row += line
            if not line.endswith(b"\n") or (out.suffix == ".csv" and row.count(b'"') % 2):
                continue  # cut off, or a name with a line break in it
            end += len(row)
            image = image_of(row, out.suffix)
            if image is None:
                raise UserError(f"{out} is damaged at byte {end - len(row)}; choose another --out, or use --overwrite.")
            if not header:
                yield image, end
            header, row = False, b""


def image_of(row: bytes, suffix: str) -> str | None:
    try:
        text = row.decode("utf-8", errors="surrogateescape")
        if suffix == ".csv":
            return unprotected(next(csv.reader(io.StringIO(text, newline="")))[0])
        return str(json.loads(text)["image"])
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, RecursionError, csv.Error):
        return None


# --- writing ---


def about_file(out: Path) -> Path:
    return out.with_name(out.name + ".json")


@contextmanager
def writing_to(out: Path | None, about: Mapping[str, Any], written: Written, overwrite: bool) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        naming(out),
        only_writer_of(out, "fewtags predict"),
        out.open("a", encoding="utf-8", errors="surrogateescape", newline="") as stream,
    ):
        write_json(about_file(out), about)
        stream.truncate(0 if overwrite else written.end)
        yield stream


@dataclass(frozen=True)
class Rows:
    """Formats a prediction as a row."""

    categories: Sequence[str]
    thresholds: np.ndarray
    top: int | None
    all_scores: bool
    tree: TagTree = NO_TREE

    def tags(self, prediction: Prediction) -> dict[str, float]:
        return dict(list(prediction.tags(self.categories, self.thresholds, self.tree).items())[: self.top])


def csv_rows(stream: IO[str], rows: Rows, with_header: bool) -> WriteRow:
    """Columns image, tags and their probabilities (separated by ';'), error; then one per category with
    --all-scores."""
    writer = csv.writer(stream)
    if with_header:
        writer.writerow(["image", "tags", "probabilities", "error", *(rows.categories if rows.all_scores else [])])

    def write(prediction: Prediction) -> bool:
        tags, scores = rows.tags(prediction), prediction.probabilities
        more: list[str] = []
        if rows.all_scores:
            more = [""] * len(rows.categories) if scores is None else [f"{score:.4f}" for score in scores]
        chosen = ";".join(f"{probability:.4f}" for probability in tags.values())
        cells = (prediction.image, ";".join(tags), chosen, prediction.problem)
        writer.writerow([*map(protected, cells), *more])
        return bool(tags)

    return write


def jsonl_rows(stream: IO[str], rows: Rows) -> WriteRow:
    def write(prediction: Prediction) -> bool:
        tags = rows.tags(prediction)
        row: dict[str, Any] = {"image": prediction.image, "tags": tags}
        if prediction.problem:
            row["error"] = prediction.problem
        if rows.all_scores:
            scores = prediction.probabilities
            row["scores"] = {} if scores is None else dict(zip(rows.categories, scores.tolist(), strict=True))
        stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        return bool(tags)

    return write
