"""Example images for the report: what was known, found and missed, and where the model looked."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewtags.config import resolve
from fewtags.contract import Batch, Outputs, Progress
from fewtags.data.annotations import Annotations
from fewtags.data.images import BadImage, open_image
from fewtags.data.prepare import RunData, prepare_data
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.run import build_learner
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError
from fewtags.experiments.runs import RunRecord
from fewtags.labels import PRESENT
from fewtags.models.attention_maps import overlay
from fewtags.models.build import make_problem
from fewtags.models.saved import load_model

NUM_IMAGES = 8
NUM_CANDIDATES = 96  # training images that are looked through for found and rejected labels
THUMBNAIL = 168
JPEG_QUALITY = 72
THRESHOLD = 0.5


@dataclass(frozen=True)
class Tag:
    name: str
    verdict: str  # "right", "wrong" or "missed"
    score: float | None = None


@dataclass(frozen=True)
class TagList:
    title: str
    tags: list[Tag]


@dataclass(frozen=True)
class Example:
    file: str
    picture: str  # a data: address
    lists: list[TagList]
    maps: list[tuple[str, str]] = field(default_factory=list)  # category and picture, for heads with attention


@dataclass(frozen=True)
class Gallery:
    title: str
    sentence: str
    examples: list[Example]


# --- test images: what each run says about them ---


def test_gallery(runs: Sequence[RunRecord]) -> Gallery | None:
    """The same test images under every run; None where images or predictions are absent."""
    part = _evaluated(runs[0])
    scores = {run.folder: _probabilities(run) for run in runs}
    shown = [run for run in runs if part is not None and _fits(scores[run.folder], part)]
    if part is None or not shown:
        return None
    rows = choose_images(part.labels == PRESENT)
    maps = attention_maps(shown[-1], part, rows)
    examples = []
    for row in rows:
        lists = [
            TagList(run.method, judge(scores[run.folder][row], part.labels[row], part.categories)) for run in shown
        ]
        example = _example(part, row, lists, maps.get(row, {}))
        examples += [example] if example is not None else []
    looked = f" The heat maps show where {shown[-1].method} looked." if maps else ""
    sentence = f"Tags with a probability of at least {THRESHOLD:g}, and true tags that were missed.{looked}"
    return Gallery(f"{str(runs[0].split).capitalize()} images", sentence, examples) if examples else None


def _evaluated(run: RunRecord) -> Annotations | None:
    data = _data(run)
    return None if data is None else data.test if run.split == "test" else data.val


def _data(run: RunRecord) -> RunData | None:
    """The data that the run's settings name; None where it is gone or has changed."""
    try:
        config = resolve(run.config)
        data = prepare_data(config.data, config.seed)
    except (UserError, OSError):
        return None
    return data if data.train.content_hash() == run.data["train"]["hash"] else None


def _probabilities(run: RunRecord) -> np.ndarray:
    file = RunFolder(run.folder).predictions(str(run.split))
    return np.load(file)["probabilities"] if file.is_file() else np.zeros((0, 0))


def _fits(probabilities: np.ndarray, part: Annotations) -> bool:
    return probabilities.shape == part.labels.shape


def choose_images(present: np.ndarray) -> list[int]:
    """A fixed draw among the images with the most tags, so that there is something to see."""
    counts = present.sum(1)
    candidates = np.argsort(-counts, kind="stable")[: max(4 * NUM_IMAGES, int((counts > 1).sum()))]
    drawn = np.random.default_rng(0).permutation(candidates)[:NUM_IMAGES]
    return [int(row) for row in drawn]


def judge(probabilities: np.ndarray, labels: np.ndarray, categories: Sequence[str]) -> list[Tag]:
    """Given tags, most probable first, then the true ones that were not given. Unreadable images have none."""
    tags, missed = [], []
    for c in np.argsort(-probabilities, kind="stable"):
        score, true = float(probabilities[c]), labels[c] == PRESENT
        if score >= THRESHOLD:
            tags.append(Tag(categories[c], "right" if true else "wrong", score))
        elif true:
            missed.append(Tag(categories[c], "missed", score))
    return tags + missed


def attention_maps(run: RunRecord, part: Annotations, rows: Sequence[int]) -> dict[int, dict[str, Image.Image]]:
    """For each row, pictures of the two most probable categories; nothing for heads without attention."""
    try:
        saved = load_model(run.folder)
    except UserError:
        return {}
    images, kept = _load(part, rows, saved.input.size)
    if not kept:
        return {}
    with torch.inference_mode():
        outputs: Outputs = saved.classifier(images)
    if outputs.attention is None:
        return {}
    maps: dict[int, dict[str, Image.Image]] = {}
    for place, row in enumerate(kept):
        picture = thumbnail(open_image(part.path(row)))
        top = outputs.logits[place].argsort(descending=True)[:2].tolist()
        maps[row] = {part.categories[c]: overlay(picture, outputs.attention[place, c]) for c in top}
    return maps


def _load(part: Annotations, rows: Sequence[int], size: int) -> tuple[torch.Tensor, list[int]]:
    """The readable images as bytes [B, 3, H, W], and their rows."""
    pixels, kept = [], []
    for row in rows:
        try:
            image = open_image(part.path(row)).resize((size, size), Image.Resampling.BICUBIC)
        except BadImage:
            continue
        pixels.append(np.asarray(image))
        kept.append(row)
    stacked = np.stack(pixels) if pixels else np.zeros((0, size, size, 3), dtype=np.uint8)
    return torch.from_numpy(stacked).permute(0, 3, 1, 2), kept


# --- training images: what the method decided about their unknown labels ---


def training_gallery(run: RunRecord) -> Gallery | None:
    """Unknown labels that the method found or rejected after its last epoch; None for methods that decide nothing."""
    file, data = RunFolder(run.folder).last, _data(run)
    if data is None or not file.is_file():
        return None
    rows = np.random.default_rng(0).permutation(len(data.train))[:NUM_CANDIDATES].tolist()
    kept, decisions, probabilities = decide(run, data.train, rows, file)
    if not decisions:
        return None
    examples: list[Example] = []
    for place, row in enumerate(kept):
        decided = [
            TagList(name, _decided(mask[place], probabilities[place], data, row)) for name, mask in decisions.items()
        ]
        if any(one.tags for one in decided) and len(examples) < NUM_IMAGES:
            example = _example(data.train, row, [_known(data.train, row), *decided], {})
            examples += [example] if example is not None else []
    sentence = (
        f"Of {len(kept)} training images drawn at random, the first with decisions of {run.method} about labels that "
        "nobody wrote down: found ones are trained as present, rejected ones are no longer trained as absent."
    )
    return Gallery(f"Training images, {run.method}", sentence, examples) if examples else None


@torch.inference_mode()
def decide(
    run: RunRecord, train: Annotations, rows: Sequence[int], file: Path
) -> tuple[list[int], dict[str, np.ndarray], np.ndarray]:
    """Readable rows, the masks of the method's decisions about them [B, C], and probabilities [B, C]."""
    config = resolve(run.config)
    config = config.model_copy(update={"cache": config.cache.model_copy(update={"enabled": False})})
    checkpoint = load_checkpoint(file)
    fresh = config.model_copy(update={"model": config.model.model_copy(update={"pretrained": False, "weights": None})})
    problem = make_problem(config.head_name, config.words, train.categories, train.labels, train.name, config.seed)
    learner = build_learner(fresh, problem)
    learner.model.load_state_dict(checkpoint["model"])
    learner.objective.load_state_dict(checkpoint["objective"])
    learner.eval()
    images, kept = _load(train, rows, config.input.size)
    if not kept:
        return [], {}, np.zeros((0, len(train.categories)))
    index = torch.tensor(kept)
    outputs = learner.model(images)
    batch = Batch(images, torch.from_numpy(train.labels)[index], index)
    torch.manual_seed(0)  # CANR draws
    decisions = learner.objective.decide(batch, outputs, Progress.at_end(config.train.epochs))
    return kept, {name: mask.numpy() for name, mask in decisions.items()}, outputs.logits.sigmoid().numpy()


def _known(train: Annotations, row: int) -> TagList:
    known = np.flatnonzero(train.labels[row] == PRESENT).tolist()
    return TagList("known", [Tag(train.categories[c], "known") for c in known])


def _decided(mask: np.ndarray, scores: np.ndarray, data: RunData, row: int) -> list[Tag]:
    """Right is a label that is truly there: to find it, and to stop training it as absent, are both right."""
    tags = []
    for c in np.flatnonzero(mask).tolist():
        verdict = "unjudged" if data.truth is None else "right" if data.truth[row, c] == PRESENT else "wrong"
        tags.append(Tag(data.train.categories[c], verdict, float(scores[c])))
    return tags


# --- pictures ---


def _example(part: Annotations, row: int, lists: list[TagList], maps: dict[str, Image.Image]) -> Example | None:
    try:
        picture = data_address(thumbnail(open_image(part.path(row))))
    except BadImage:
        return None
    return Example(part.images[row], picture, lists, [(name, data_address(image)) for name, image in maps.items()])


def thumbnail(image: Image.Image) -> Image.Image:
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return small


def data_address(image: Image.Image) -> str:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
