"""Inference fast are photographs as cameras make them? Ratios of things measured in one run, taken in turns.

    python benchmarks/photos.py --quick                      two ratios in less than a minute
    python benchmarks/photos.py --before ../old-checkout     everything; `--parts train,predict` only some of it

Photos are drawn scenes enlarged to 12 megapixels with a camera's noise (2.3 MB of JPEG). The files are made of 24
pictures, each with another comment in it, so that no two are equal. The backbone is tf_efficientnet_lite0 with the
weights in FEWTAGS_SHARED (default: ../shared), else with random ones: that changes the tags, not the time. The last
line is JSON; with `--out FILE` the measured parts are written into that file beside those it has.

pipeline   reading to 224 px, CPU time of one thread: a torchvision DataLoader against ours
pass       features of all photos: the pass against reading alone and the network alone, each with half of the threads,
           which is what an ideal pipeline of two stages would take; and against the sum of their CPU time on all cores
train      `fewtags train` (instant) against the version in --before
refined     `fewtags train --method refined` against instant; how often the backbone saw each image
predict    `fewtags predict` against the feature pass
check      `fewtags check` of many small JPEGs, and where its time goes
difference what the scaled decode changes: pixels, features and mAP on real photos enlarged to 12 megapixels
           (`--tagger RUN`, the folder of a run on Pascal VOC, whose test images are taken)
prepare    an epoch of augmented crops from files against one from the store of `fewtags prepare`
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from fewtags.commands.models import Inference
from fewtags.commands.predict import write_predictions
from fewtags.data.dataset import Collate, Sample
from fewtags.data.formats import read_annotations
from fewtags.data.images import open_image, open_resized
from fewtags.data.loaders import image_batches
from fewtags.data.prefetch import default_workers, in_order, num_cores
from fewtags.data.preprocess import InputConfig, read_square
from fewtags.data.scenes import draw_scene
from fewtags.data.store import make_store
from fewtags.engine.feature_pass import FeaturePass, average
from fewtags.engine.record import load_run_config
from fewtags.engine.runtime import Runtime, choose_runtime, own_threads, use_one_core
from fewtags.metrics import mean_average_precision
from fewtags.models.backbones import create_backbone
from fewtags.models.saved import load_model

PROJECT = Path(__file__).resolve().parent.parent
LITE0 = (
    Path(os.environ.get("FEWTAGS_SHARED", PROJECT.parent / "shared"))
    / "weights"
    / "tf_efficientnet_lite0_fp16.safetensors"
)
BACKBONE = ["model.backbone=tf_efficientnet_lite0"] + (
    [f"model.weights={LITE0}"] if LITE0.is_file() else ["model.pretrained=false", "model.train_from=head"]
)
SIZE, PICTURES, LARGE, SMALL = 224, 24, (4000, 3000), (500, 375)


# --- photos ---


def make_photos(folder: Path, number: int, size: tuple[int, int], pictures: int = PICTURES) -> list[Path]:
    """Files with their tags in tags.csv; made once."""
    files = [folder / f"{index:05d}.jpg" for index in range(number)]
    if (folder / "tags.csv").is_file():
        return files
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    taken = [take_photo(rng, size) for _ in range(min(pictures, number))]
    rows = ["image,tags"]
    for index, file in enumerate(files):
        jpeg, tags = taken[index % len(taken)]
        comment = f"photo {index:05d}".encode()
        file.write_bytes(jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:])
        rows.append(f"{file.name},{';'.join(tag for tag in sorted(tags) if rng.random() < 0.5)}")
    (folder / "tags.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return files


def take_photo(rng: np.random.Generator, size: tuple[int, int]) -> tuple[bytes, set[str]]:
    scene, tags = draw_scene(rng, 256)
    return enlarged(scene, size, rng), tags


def enlarged(picture: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> bytes:
    """As a JPEG with noise in it."""
    pixels = np.asarray(picture.resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = pixels + rng.integers(-6, 7, (*pixels.shape[:2], 1), dtype=np.int16)
    content = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(content, "JPEG", quality=90)
    return content.getvalue()


# --- timing ---


def in_turns(rounds: int, **things: Callable[[], object]) -> dict[str, dict[str, float]]:
    """The median wall and CPU seconds of each, taken in turns, so that what disturbs one disturbs all."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in things}
    for _ in range(rounds):
        for name, thing in things.items():
            wall, cpu = time.perf_counter(), time.process_time()
            thing()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: {"wall": statistics.median(t[0] for t in taken), "cpu": statistics.median(t[1] for t in taken)}
        for name, taken in times.items()
    }


class Took(NamedTuple):
    wall: float
    cpu: float


def fewtags(arguments: list[str], source: Path = PROJECT / "src", cache: Path | None = None) -> Took:
    """Seconds of a command, without features that another one left."""
    more = {} if cache is None else {"XDG_CACHE_HOME": str(cache)}
    started, cpu = time.perf_counter(), children_cpu()
    done = subprocess.run(
        [sys.executable, "-m", "fewtags", *arguments], env={**os.environ, "PYTHONPATH": str(source), **more},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"fewtags {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return Took(time.perf_counter() - started, children_cpu() - cpu)


def children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system


# --- the parts ---


def pipeline(files: list[Path], rounds: int) -> dict[str, Any]:
    """CPU milliseconds an image, read to a batch of 224 px by one thread."""
    files = files[:PICTURES]
    torch.set_num_threads(1)
    times = in_turns(rounds, torchvision=lambda: torchvision_epoch(files), ours=lambda: our_epoch(files))
    torch.set_num_threads(num_cores())
    cpu = {name: 1000 * times[name]["cpu"] / len(files) for name in times}
    return {
        "torchvision_ms": cpu["torchvision"],
        "ours_ms": cpu["ours"],
        "pipeline_vs_torchvision": cpu["torchvision"] / cpu["ours"],
    }


def torchvision_epoch(files: list[Path]) -> None:
    """As its documentation shows it: the default loader, Resize, ToTensor."""
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms
    from torchvision.datasets.folder import default_loader

    class Photos(Dataset):  # type: ignore[type-arg]
        prepare = transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()])

        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, row: int) -> torch.Tensor:
            return self.prepare(default_loader(str(files[row])))

    for _ in DataLoader(Photos(), batch_size=8):
        pass


def read(numbered: tuple[int, Path]) -> list[Sample]:
    return [Sample(np.asarray(read_square(numbered[1], SIZE)), numbered[0])]


def our_epoch(files: list[Path], workers: int = 0) -> None:
    """Read and collated as the feature pass does it."""
    groups = [list(enumerate(files[first : first + 8])) for first in range(0, len(files), 8)]
    collate = Collate(None)
    for _ in in_order(lambda g: collate([read(one)[0] for one in g]), groups, workers=workers, ahead=max(1, workers)):
        pass


def network_epoch(runtime: Runtime, num_images: int, workers: int) -> None:
    images = torch.randint(0, 256, (8, SIZE, SIZE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    batches = range(-(-num_images // 8))
    with own_threads():
        work = in_order(
            lambda _: average(runtime.run(images)), batches, workers=workers, ahead=workers, initializer=use_one_core
        )
        for _ in work:
            pass


def make_runtime(name: str) -> Runtime:
    weights = LITE0 if LITE0.is_file() else None
    backbone = create_backbone("tf_efficientnet_lite0", pretrained=False, weights=weights, input_size=SIZE).eval()
    backbone.freeze_before("head")
    backbone.to(memory_format=torch.channels_last)
    return choose_runtime(backbone, name, SIZE, torch.device("cpu"))


def whole_pass(runtime: Runtime, files: list[Path]) -> None:
    for _ in FeaturePass(runtime, average).over(enumerate(files), read):
        pass


def feature_pass(files: list[Path], rounds: int, runtime_name: str) -> dict[str, Any]:
    runtime, half = make_runtime(runtime_name), max(1, default_workers() // 2)
    times = in_turns(
        rounds,
        decode=lambda: our_epoch(files, workers=half),
        network=lambda: network_epoch(runtime, len(files), half),
        both=lambda: whole_pass(runtime, files),
        decode_all=lambda: our_epoch(files, workers=default_workers()),
        network_all=lambda: network_epoch(runtime, len(files), default_workers()),
    )
    wall = {name: times[name]["wall"] for name in times}
    at_best = (times["decode"]["cpu"] + times["network"]["cpu"]) / num_cores()
    return {
        "runtime": runtime.name,
        "images": len(files),
        "images_per_second": len(files) / wall["both"],
        "seconds": wall,
        "pass_over_slower_part": wall["both"] / max(wall["decode"], wall["network"]),
        "pass_over_all_cores_busy": wall["both"] / at_best,
        "pass_over_slower_part_on_all_cores": wall["both"] / max(wall["decode_all"], wall["network_all"]),
    }


def train(folder: Path, before: Path | None, rounds: int, scratch: Path) -> dict[str, Any]:
    """`fewtags train` with nothing else said, each time without features from before."""
    versions = {"now": PROJECT / "src", **({"before": before / "src"} if before else {})}
    seconds: dict[str, list[Took]] = {name: [] for name in versions}
    for number in range(rounds):
        for name, source in versions.items():
            out, cache = scratch / f"train-{name}-{number}", scratch / f"cache-{name}-{number}"
            seconds[name].append(fewtags([*training(folder, out), "--method", "instant"], source, cache))
    found: dict[str, Any] = {"images": len(list(folder.glob("*.jpg")))}
    for name, times in seconds.items():
        found[f"{name}_seconds"] = statistics.median(took.wall for took in times)
        found[f"{name}_cpu_seconds"] = statistics.median(took.cpu for took in times)
    if before:
        found["speed_up"] = found["before_seconds"] / found["now_seconds"]
        found["speed_up_of_cpu_time"] = found["before_cpu_seconds"] / found["now_cpu_seconds"]
    return found


def training(folder: Path, out: Path) -> list[str]:
    return ["train", str(folder), *BACKBONE, "--tags", str(folder / "tags.csv"), "--out", str(out)]


def refined(folder: Path, scratch: Path) -> dict[str, Any]:
    """Both with defaults and without features from before."""
    times = {
        method: fewtags(
            [*training(folder, scratch / method), "--method", method], cache=scratch / f"{method}-cache"
        ).wall
        for method in ("instant", "refined")
    }
    caches = [json.loads(file.read_text()) for file in (scratch / "refined-cache").rglob("about.json")]
    lines = [json.loads(line) for line in (scratch / "refined" / "metrics.jsonl").read_text().splitlines()]
    epochs = [line["seconds"] for line in lines if line["kind"] == "train"]
    epoch_seconds = epochs[-1] - epochs[0] + (epochs[-1] - epochs[0]) / max(1, len(epochs) - 1)
    return {
        "images": len(list(folder.glob("*.jpg"))),
        "times_the_backbone_ran": sum(about["shape"][0] * about["shape"][1] for about in caches),
        "instant_seconds": times["instant"],
        "refined_seconds": times["refined"],
        "epochs_seconds": epoch_seconds,
        "without_epochs_over_instant": (times["refined"] - epoch_seconds) / times["instant"],
    }


def predict(files: list[Path], rounds: int, scratch: Path, runtime_name: str) -> dict[str, Any]:
    """Both by the same runtime, which is ready before the time starts for the pass, and is made in it for predict.

    So a fifth of the photos is tagged too: the difference of both times has no start in it.
    """
    folder = files[0].parent
    if not (scratch / "tagger").is_dir():
        fewtags([*training(folder, scratch / "tagger"), "--method", "instant"], cache=scratch / "cache-tagger")
    runtime = make_runtime(runtime_name)
    out = scratch / "tags.jsonl"

    def tag(some: list[Path]) -> None:
        write_predictions(
            scratch / "tagger", some, out, overwrite=True, inference=Inference(runtime=runtime.name), quiet=True
        )

    few = files[: len(files) // 5]
    times = in_turns(
        rounds, features=lambda: whole_pass(runtime, files), predict=lambda: tag(files), predict_few=lambda: tag(few)
    )
    wall = {name: times[name]["wall"] for name in times}
    each = (wall["predict"] - wall["predict_few"]) / (len(files) - len(few))
    return {
        "runtime": runtime.name,
        "images": len(files),
        "seconds": wall,
        "predict_over_feature_pass": wall["predict"] / wall["features"],
        "throughput_over_feature_pass": len(files) * each / wall["features"],
        "seconds_to_start": wall["predict"] - len(files) * each,
    }


def check(folder: Path, files: list[Path]) -> dict[str, Any]:
    arguments = ["check", str(folder), "--tags", str(folder / "tags.csv")]
    seconds, cpu = fewtags(arguments)
    sample = files[:2000]
    times = in_turns(
        3,
        read=lambda: [file.read_bytes() for file in sample],
        decode=lambda: [open_image(file) for file in sample],
    )
    scale = len(files) / len(sample)
    return {
        "images": len(files),
        "seconds": seconds,
        "images_per_second": len(files) / seconds,
        "cores_used": cpu / seconds,
        "decoding_of_cpu_time": times["decode"]["cpu"] * scale / cpu,
        "reading_files_of_cpu_time": times["read"]["cpu"] * scale / cpu,
    }


def difference(run: Path, number: int) -> dict[str, Any]:
    """Every pixel decoded, as Pillow does it, against `read_square`."""
    saved, record = load_model(run), load_run_config(run)
    test = read_annotations(Path(record.data.source)).split("test")
    rows = np.linspace(0, len(test) - 1, number).astype(int)
    rng, truth = np.random.default_rng(0), test.labels[rows] == 1
    pixels, features, scores = [], [], []
    for row in rows:
        with Image.open(test.path(int(row))) as picture:
            jpeg = enlarged(picture.convert("RGB"), LARGE, rng)
        whole = np.asarray(Image.open(io.BytesIO(jpeg)).resize((SIZE, SIZE), Image.Resampling.BICUBIC))
        ours = np.asarray(open_resized(jpeg, (SIZE, SIZE)))
        pixels.append(np.abs(whole.astype(int) - ours).mean())
        with torch.inference_mode():
            images = torch.from_numpy(np.stack([whole, ours])).permute(0, 3, 1, 2)
            maps = saved.classifier.eval().backbone(images)
            pooled = maps.mean((2, 3))
            features.append(float((pooled[0] - pooled[1]).norm() / pooled[0].norm()))
            scores.append(saved.classifier.head(saved.classifier.neck(maps).float()).logits.numpy())
    present = truth.any(0)
    maps_of = [
        mean_average_precision(np.stack([score[which] for score in scores])[:, present], truth[:, present])
        for which in (0, 1)
    ]
    return {
        "images": number,
        "grey_levels": float(np.mean(pixels)),
        "relative_difference_of_features": float(np.mean(features)),
        "map_of_every_pixel": 100 * maps_of[0],
        "map_of_the_scaled_decode": 100 * maps_of[1],
    }


def prepare(folder: Path, files: list[Path], scratch: Path) -> dict[str, Any]:
    """One thread's CPU time an image: crops of 448 px of images kept at 512 px, as in the paper."""
    config = InputConfig(size=448, keep_in_memory=False)
    annotations = read_annotations(folder, tags=folder / "tags.csv")
    started = time.perf_counter()
    make_store(annotations, config, scratch / "store")
    seconds = time.perf_counter() - started

    def epoch(store: str | None) -> None:
        for _ in image_batches(annotations, config, augment=True, workers=0, store=store).epoch(0):
            pass

    epoch(str(scratch / "store"))  # checksums are compared at the first reading only
    times = in_turns(3, files=lambda: epoch(None), store=lambda: epoch(str(scratch / "store")))
    cpu = {name: 1000 * times[name]["cpu"] / len(files) for name in times}
    return {
        "images": len(files),
        "files_ms": cpu["files"],
        "store_ms": cpu["store"],
        "files_over_store": cpu["files"] / cpu["store"],
        "seconds_to_prepare": seconds,
    }


# --- all of it ---


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    if options.quick:
        files = make_photos(scratch / "photos", 16, LARGE, pictures=8)
        return {"pipeline": pipeline(files, 2), "pass": feature_pass(2 * files, 2, "torch")}
    found: dict[str, Any] = {}
    parts = options.parts.split(",")
    photos = scratch / "photos"
    needed = not {"pipeline", "pass", "train", "predict"}.isdisjoint(parts)
    files = make_photos(photos, options.photos, LARGE) if needed else []
    if "pipeline" in parts:
        found["pipeline"] = pipeline(files, 3)
    if "pass" in parts:
        found["pass"] = {name: feature_pass(files[:120], 2, name) for name in ("torch", "auto")}
    if "train" in parts:
        found["train"] = train(photos, options.before, options.rounds, scratch)
    if "refined" in parts:
        make_photos(scratch / "many", 4 * options.photos, LARGE)
        found["refined"] = refined(scratch / "many", scratch)
    if "predict" in parts:
        found["predict"] = predict(files, 2, scratch, "auto")
    if "check" in parts:
        small = make_photos(scratch / "small", options.small, SMALL)
        found["check"] = check(scratch / "small", small)
    if "difference" in parts and options.tagger is not None:
        found["difference"] = difference(options.tagger, 400)
    if "prepare" in parts:
        small = make_photos(scratch / "middling", 200, SMALL)
        found["prepare"] = prepare(scratch / "middling", small, scratch)
    return found


def machine() -> dict[str, Any]:
    return {"cores": num_cores(), "processor": platform.machine(), "python": platform.python_version(),
            "torch": torch.__version__, "load_before": os.getloadavg()[0]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two ratios in less than a minute")
    parser.add_argument("--before", type=Path, help="checkout of the version to compare `train` with")
    parser.add_argument("--tagger", type=Path, help="a run on Pascal VOC, for `difference`")
    parser.add_argument("--parts", default="pipeline,pass,train,refined,predict,check,difference,prepare")
    parser.add_argument("--photos", type=int, default=500, help="of 12 megapixels; four times as many for refined")
    parser.add_argument("--small", type=int, default=28_000, help="small JPEGs for check")
    parser.add_argument("--rounds", type=int, default=1, help="times that train is run")
    parser.add_argument("--scratch", type=Path, help="folder for photos and runs; by default a temporary one")
    parser.add_argument("--out", type=Path, help="JSON file that the measured parts are written to")
    options = parser.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory() as name:
        found = measure(options, options.scratch or Path(name))
    found = {part: {**rounded(values), "machine": about} for part, values in found.items()}
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.is_file() else {}
        options.out.write_text(json.dumps({**before, **found}, indent=2) + "\n", encoding="utf-8")
    for part, values in found.items():
        print(part, json.dumps(values))
    print(json.dumps({key: value for values in found.values() for key, value in values.items() if key != "machine"}))


def rounded(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    return round(values, 3) if isinstance(values, float) else values


if __name__ == "__main__":
    main()
