"""Tags for image files from a trained model, streaming: one bad image does not stop it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from fewtags.data.annotations import Annotations
from fewtags.data.dataset import Loaded
from fewtags.data.formats.common import IMAGE_SUFFIXES
from fewtags.data.loaders import image_batches
from fewtags.engine.run import choose_device
from fewtags.errors import UserError
from fewtags.models.build import SavedModel, load_model
from fewtags.ticker import ticking

FEW_FILES = 200  # starting worker processes would take longer than reading so few


@dataclass(frozen=True)
class Prediction:
    """What the model says about one image, or why its file could not be read."""

    image: str
    probabilities: np.ndarray | None  # [C]; None where the file could not be read
    problem: str = ""

    def tags(self, categories: Sequence[str], thresholds: np.ndarray) -> dict[str, float]:
        """The tags whose probability reaches their threshold, most probable first."""
        if self.probabilities is None:
            return {}
        order = np.argsort(-self.probabilities, kind="stable")
        chosen = [c for c in order if self.probabilities[c] >= thresholds[c]]
        return {categories[c]: float(self.probabilities[c]) for c in chosen}


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Image files as given, and those below the given folders, in sorted order."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{path} does not exist.")
    if not found:
        raise UserError(f"No images were found; looked for files ending in {', '.join(IMAGE_SUFFIXES)}.")
    return found


@torch.inference_mode()
def predict_files(
    saved: SavedModel,
    files: Sequence[Path],
    *,
    device: str = "auto",
    batch_size: int = 32,
    workers: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Prediction]:
    """One Prediction per file, in order, batch by batch."""
    where = choose_device(device)
    model = saved.classifier.to(where).eval()
    for loaded in file_batches(saved, files, batch_size, workers):
        rows = {row: Prediction(str(files[row]), None, problem) for row, problem in loaded.broken.items()}
        if loaded.batch is not None:
            probabilities = model(loaded.batch.images.to(where)).logits.sigmoid().cpu().numpy()
            for row, values in zip(loaded.batch.index.tolist(), probabilities, strict=True):
                rows[row] = Prediction(str(files[row]), values)
        yield from (rows[row] for row in sorted(rows))
        on_step()


@torch.inference_mode()
def pooled_features(saved: SavedModel, files: Sequence[Path], *, device: str = "auto") -> torch.Tensor:
    """[N, D] the average over each image's feature map."""
    where = choose_device(device)
    model = saved.classifier.to(where).eval()
    features = []
    for loaded in file_batches(saved, files):
        for problem in loaded.broken.values():
            raise UserError(f"{problem} Take it out.")
        assert loaded.batch is not None
        features.append(model.feature_map(loaded.batch.images.to(where)).float().mean((2, 3)).cpu())
    return torch.cat(features)


def file_batches(
    saved: SavedModel, files: Sequence[Path], batch_size: int = 32, workers: int | None = None
) -> Iterator[Loaded]:
    labels = np.zeros((len(files), len(saved.categories)), dtype=np.int8)
    annotations = Annotations(Path(), [str(f) for f in files], saved.categories, labels, np.full(len(files), "test"))
    if workers is None and len(files) < FEW_FILES:
        workers = 0
    settings = saved.config.train.model_copy(update={"batch_size": batch_size, "workers": workers})
    inputs = saved.config.input.model_copy(update={"keep_in_memory": False})
    return image_batches(annotations, inputs, settings, augment=False).epoch()


# --- written to a file ---


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
    with writing_to(out) as stream, ticking("Tagging", -(-len(files) // batch_size), quiet=quiet) as ticker:
        as_jsonl = out is not None and out.suffix == ".jsonl"
        write = rows_as_jsonl(stream) if as_jsonl else rows_as_csv(stream, saved.categories if all_scores else [])
        for prediction in predict_files(saved, files, device=device, batch_size=batch_size, on_step=ticker.step):
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
