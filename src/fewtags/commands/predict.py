"""`fewtags predict`: tags of image files, written as they come."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from fewtags.engine.prediction import find_images, predict_files
from fewtags.errors import UserError
from fewtags.models.saved import load_model
from fewtags.progress import progress_bar


def write_predictions(
    run: Path,
    images: Sequence[Path],
    out: Path | None,
    *,
    threshold: float | None,
    top: int | None,
    all_scores: bool,
    batch_size: int,
    device: str,
    quiet: bool,
) -> int:
    """Tag images into a CSV or JSON lines file as it goes, or as CSV to standard output. Returns how many failed."""
    if out is not None and out.suffix not in (".csv", ".jsonl"):
        raise UserError(f"{out} should end in .csv or .jsonl.")
    files = find_images(images)
    saved = load_model(run)
    thresholds = saved.thresholds if threshold is None else np.full(len(saved.categories), threshold)
    failed = 0
    with writing_to(out) as stream, progress_bar("Tagging", -(-len(files) // batch_size), quiet=quiet) as bar:
        as_jsonl = out is not None and out.suffix == ".jsonl"
        write = rows_as_jsonl(stream) if as_jsonl else rows_as_csv(stream, saved.categories if all_scores else [])
        for prediction in predict_files(saved, files, device=device, batch_size=batch_size, on_step=bar.step):
            failed += prediction.probabilities is None
            tags = prediction.tags(saved.categories, thresholds)
            row: dict[str, Any] = {"image": prediction.image, "tags": dict(list(tags.items())[:top])}
            row["error"] = prediction.problem
            if all_scores:
                values = prediction.probabilities
                row["scores"] = {} if values is None else dict(zip(saved.categories, values.tolist(), strict=True))
            write(row)
    return failed


@contextmanager
def writing_to(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as stream:
        yield stream


def rows_as_csv(stream: IO[str], scored: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """Columns image, tags and their probabilities (with ';' between), error; then one per `scored` category."""
    writer = csv.writer(stream)
    writer.writerow(["image", "tags", "probabilities", "error", *scored])

    def write(row: dict[str, Any]) -> None:
        chosen = [f"{p:.4f}" for p in row["tags"].values()]
        more = [f"{row['scores'][name]:.4f}" if row["scores"] else "" for name in scored]
        writer.writerow([row["image"], ";".join(row["tags"]), ";".join(chosen), row["error"], *more])
        stream.flush()

    return write


def rows_as_jsonl(stream: IO[str]) -> Callable[[dict[str, Any]], None]:
    def write(row: dict[str, Any]) -> None:
        kept = {key: value for key, value in row.items() if key != "error" or value}
        stream.write(json.dumps(kept, ensure_ascii=False) + "\n")
        stream.flush()

    return write
