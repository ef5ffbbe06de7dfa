"""Does a long run grow? Small epochs for an hour: memory, open files and threads, once a minute.

    .venv/bin/python benchmarks/soak.py [--minutes 60] [--out results/reliability]

Trains `an` through the backbone on 48 drawn images of 32 px, evaluating and writing a checkpoint in every epoch, until
the time is over; then stops it by SIGTERM. soak.csv has a row for each minute.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import torch
from kill import SETTINGS, make_images

from fewtags.config import load_config
from fewtags.data.prepare import split_data
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.errors import Interrupted

COLUMNS = ("minute", "epochs", "memory_mb", "open_files", "threads", "files_in_folder")


def now(minute: int, run: Path) -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    epochs = sum(row["kind"] == "train" for row in read_rows(run / "metrics.jsonl"))
    files = sum(1 for _ in run.rglob("*"))
    values = (
        minute, epochs, round(int(status["VmRSS"].split()[0]) / 1000, 1), len(os.listdir("/proc/self/fd")),
        int(status["Threads"]), files,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def watch(run: Path, file: Path, minutes: int) -> None:
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        for minute in range(minutes + 1):
            writer.writerow(now(minute, run))
            out.flush()
            if minute < minutes:
                time.sleep(60)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/reliability"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = load_config(None, ["method=an", *SETTINGS, "model.train_from=all", "train.epochs=1000000"])
        data = split_data(make_images(root / "images"), config.data, config.seed)
        threading.Thread(
            target=watch, args=(root / "run", options.out / "soak.csv", options.minutes), daemon=True
        ).start()
        try:
            train(config, root / "run", data=data, quiet=True)
        except Interrupted as stopped:
            print(stopped)


if __name__ == "__main__":
    main()
