"""How soon the paper's queues fill, from the labels alone: a bound on what CALD and CANR can decide in few epochs.

    python benchmarks/queue_fill.py VOCdevkit

An empty place of a queue counts as similarity 0 (`queue_fill=zeros`, the authors' code), so no similarity to a category
is above the share of its queue that is filled: known positives of the category x epochs / 100.
"""

from __future__ import annotations

import argparse

import numpy as np

from fewtags.data.prepare import DataConfig, prepare_data
from fewtags.methods.category_adaptive import theta_schedule

QUEUE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a data set with complete labels")
    parser.add_argument("--known", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 5, 10, 20])
    args = parser.parse_args()
    for share in args.known:
        train = prepare_data(DataConfig(source=args.source, known=share)).train
        known = (train.labels == 1).sum(0)
        full = QUEUE / np.maximum(known, 1)
        print(f"{share:.0%} known: {known.min()} to {known.max()} positives a category, median {np.median(known):.0f};")
        print(f"  a queue is full after {np.median(full):.1f} epochs (median), the last one after {full.max():.1f}.")
        for epochs in args.epochs:
            filled = np.minimum(known * epochs / QUEUE, 1)
            theta = theta_schedule(epochs - 1)
            reach, reject = int((filled >= theta).sum()), int((filled > theta / 2).sum())
            print(
                f"  in epoch {epochs}: theta {theta:g}; of {len(known)} categories {reach} could reach it, {reject} "
                "could have a label rejected, as theta_neg is at least theta / 2"
            )


if __name__ == "__main__":
    main()
