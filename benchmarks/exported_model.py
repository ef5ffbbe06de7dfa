"""An exported model beside torch on real photos: the same tags? how large, how fast, and what do eight bits cost?

    .venv/bin/python benchmarks/exported_model.py RUN DATA [--photos 500] [--out results/export]

DATA is completely labelled (VOC, COCO, ...); photos of its test split are used. Eight-bit ranges come from the run's
own training images.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from fewtags.commands.export import own_data, own_images
from fewtags.data.formats import read_annotations
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.engine.prediction import predict_files
from fewtags.export.onnx_file import INT8_IMAGES, export_model
from fewtags.labels import PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.models.saved import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    saved = load_model(options.run)
    test = read_annotations(options.data).split("test")
    test = test.take(np.arange(min(options.photos, len(test))))
    truth = test.labels[:, [test.categories.index(name) for name in saved.categories]] == PRESENT
    files = [test.path(row) for row in range(len(test))]
    weights = options.run / "model" / "model.safetensors"

    rows = []
    expected, seconds = timed(predict_files(saved, files, runtime="torch", device="cpu"))
    rows.append(row("torch", expected, expected, saved.thresholds, truth, seconds, weights.stat().st_size))
    with tempfile.TemporaryDirectory() as folder:
        for name, to, int8 in (("ONNX", "onnx", False), ("OpenVINO", "openvino", False), ("ONNX, int8", "onnx", True)):
            file = Path(folder) / f"{to}{int8}{'.xml' if to == 'openvino' else '.onnx'}"
            export_model(saved, file, to=to, int8=int8, images=own_images(own_data(options.run), INT8_IMAGES))
            tagger = ExportedTagger(file)
            probabilities, seconds = timed(tagger.predict_files(files))
            size = sum(part.stat().st_size for part in (file, file.with_suffix(".bin")) if part.is_file())
            rows.append(row(name, probabilities, expected, saved.thresholds, truth, seconds, size))
            print(rows[-1], flush=True)
    report = table(rows, options, len(files))
    print(report)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(report)
        (options.out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")


def timed(predictions) -> tuple[np.ndarray, float]:
    """[N, C], and how long it took with the photos opened, the first of them left out of the time."""
    rows, started = [], 0.0
    for prediction in predictions:
        started = started or time.monotonic()
        rows.append(prediction.probabilities)
    return np.stack(rows), time.monotonic() - started


def row(
    name: str,
    probabilities: np.ndarray,
    expected: np.ndarray,
    thresholds: np.ndarray,
    truth: np.ndarray,
    seconds: float,
    size: int,
) -> dict[str, float | str]:
    difference = np.abs(probabilities - expected)
    given, should = probabilities >= thresholds, expected >= thresholds
    return {
        "what": name, "largest": float(difference.max()), "mean": float(difference.mean()),
        "tags": int(should.sum()), "tags_changed": int((given != should).sum()),
        "map": round(100 * mean_average_precision(probabilities, truth), 2),
        "f1": round(100 * 2 * float((given & truth).sum()) / float(given.sum() + truth.sum()), 2),
        "images_per_second": round(len(truth) / seconds, 1), "megabytes": round(size / 1e6, 1),
    }  # fmt: skip


def table(rows: list[dict], options: argparse.Namespace, num_photos: int) -> str:
    lines = [
        f"{num_photos} photos of the test split of {options.data.name}, {rows[0]['tags']} tags given by torch.",
        "",
        "| | largest difference | mean difference | tags that differ | mAP | OF1 | images/s | MB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in rows:
        lines.append(
            f"| {one['what']} | {one['largest']:.1e} | {one['mean']:.1e} | {one['tags_changed']} | {one['map']} "
            f"| {one['f1']} | {one['images_per_second']} | {one['megabytes']} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
