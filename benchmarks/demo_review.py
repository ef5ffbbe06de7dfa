"""The whole loop on the demo's pictures: train, decide about the first 200 suggestions, apply, train again, compare.

    .venv/bin/python benchmarks/demo_review.py [--work demo-review] [--method instant] [--out results/demo-review]

The reviewer goes through the page's own API and answers with the truth: always the next screen of the tag that the page
calls the surest. Everything else is done by the commands that a person would type.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from fastapi.testclient import TestClient

from fewtags.commands.demo import NUM_PICTURES, demo_config
from fewtags.data.prepare import split_data
from fewtags.data.scenes import make_scenes
from fewtags.engine.training import train
from fewtags.labels import PRESENT
from fewtags.review.guard import Address
from fewtags.review.opening import open_review
from fewtags.review.server import make_app

KNOWN, SEED, DECISIONS, SCREEN = 0.15, 0, 200, 20
TOKEN = "demo"


def first_run(folder: Path, method: str, quick: bool) -> Path:
    """The demo's run of this method, hidden labels and all."""
    scenes = make_scenes(folder / "pictures", *((160, 80) if quick else NUM_PICTURES), seed=SEED)
    config = demo_config(method, folder, KNOWN, SEED, quick)
    shutil.rmtree(folder / "before", ignore_errors=True)
    return train(config, folder / "before", data=split_data(scenes, config.data, SEED), quiet=True).folder


def review(run: Path, truth: dict[tuple[str, str], int], number: int) -> int:
    """Answer so many suggestions with the truth; how many were right."""
    opened = open_review(run, reviewer="truth", quiet=True)
    address = Address("127.0.0.1", 8321)
    app = make_app(opened.session, opened.pictures, None, about=opened.about, address=address, token=TOKEN)
    client = TestClient(app, base_url="http://127.0.0.1:8321", headers={"x-fewtags-token": TOKEN})
    right = decided = 0
    while decided < number:
        tag = max(client.get("/api/session").json()["tags"], key=lambda tag: tag["next"])["name"]
        queue = client.get("/api/queues", params={"tag": tag, "lowest": 0}).json()["id"]
        screen = client.get(f"/api/queues/{queue}", params={"limit": SCREEN}).json()["stacks"]
        images = [image for stack in screen for image in stack["images"]][: min(SCREEN, number - decided)]
        answers = [
            {"image": image["image"], "tag": tag, "label": truth[image["name"], tag], "version": image["version"]}
            for image in images
        ]
        client.post("/api/decisions", json={"queue": "missing", "answers": answers}).raise_for_status()
        decided += len(answers)
        right += sum(answer["label"] == PRESENT for answer in answers)
    opened.session.store.close()
    return right


def fewtags(*arguments: object) -> str:
    command = [sys.executable, "-m", "fewtags", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("demo-review"))
    parser.add_argument("--method", default="instant")
    parser.add_argument("--out", type=Path, default=Path("results/demo-review"))
    parser.add_argument("--quick", action="store_true", help="few pictures, to see that it works")
    options = parser.parse_args()
    before = first_run(options.work, options.method, options.quick)
    scenes = make_scenes(options.work / "pictures", *((160, 80) if options.quick else NUM_PICTURES), seed=SEED)
    labels = {
        (image, tag): int(label)
        for image, row in zip(scenes.images, scenes.labels, strict=True)
        for tag, label in zip(scenes.categories, row, strict=True)
    }
    right = review(before, labels, 20 if options.quick else DECISIONS)
    shutil.rmtree(before / "reviewed", ignore_errors=True)
    applied = fewtags("apply", before, "--yes").splitlines()
    after = options.work / "after"
    shutil.rmtree(after, ignore_errors=True)
    fewtags("train", "--reviewed", before, "--out", after, "-q")
    compared = fewtags("compare", before, after)
    would = next(line for line in applied if "would change" in line)
    text = [
        f"# Before and after a review of {20 if options.quick else DECISIONS} suggestions, on the demo's pictures\n",
        f"    .venv/bin/python benchmarks/demo_review.py --method {options.method}  (seed {SEED}, {KNOWN:.0%} known)\n",
        f"{right} of them were right. `fewtags apply`: {would.partition(', to ')[0]}.\n",
        "`fewtags train --reviewed before --out after`, `fewtags compare before after`:\n",
        *(f"    {line}" for line in compared.rstrip().splitlines()),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
