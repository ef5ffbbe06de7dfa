"""Example images for the report: what was known, found and missed, and where the model looked."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewtags.contract import Batch, Progress
from fewtags.data.annotations import Annotations
from fewtags.data.images import BadImage, open_image, open_resized
from fewtags.data.prepare import RunData
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.run import build_learner
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import DataError, UserError
from fewtags.experiments.runs import RunRecord, label
from fewtags.labels import ABSENT, PRESENT
from fewtags.models.attention_maps import evidence_maps, is_informative, overlay
from fewtags.models.build import make_problem
from fewtags.models.saved import damaged, load_model, read_thresholds
from fewtags.models.tensor_files import read_arrays

NUM_IMAGES = 8
NUM_MAPS = 2  # heat maps per image, for its most probable tags
NUM_CANDIDATES = 96  # training images searched for found and rejected labels
THUMBNAIL = 320  # pixels; the width of a card on the page
JPEG_QUALITY = 72

# Verdicts on a tag. If it is unknown whether a tag applies, it is not called wrong.
VERDICTS = {
    "right": ("✓", "right"),
    "wrong": ("✗", "wrong"),
    "missed": ("○", "missed"),
    "unknown": ("?", "not known whether it applies"),
    "known": ("•", "known in training"),
}


@dataclass(frozen=True)
class Tag:
    name: str
    verdict: str  # a key of VERDICTS
    score: float | None = None


@dataclass(frozen=True)
class TagList:
    title: str
    tags: list[Tag]


@dataclass(frozen=True)
class Example:
    file: str
    picture: str  # a data: URL
    lists: list[TagList]
    maps: list[tuple[str, str]] = field(default_factory=list)  # category, and the picture under its heat map
    others: list[TagList] = field(default_factory=list)  # of other runs, collapsed on the page


@dataclass(frozen=True)
class Gallery:
    title: str
    sentence: str
    examples: list[Example]

    @property
    def has_maps(self) -> bool:
        return any(example.maps for example in self.examples)

    @property
    def verdicts(self) -> set[str]:
        lists = (one for example in self.examples for one in (*example.lists, *example.others))
        return {tag.verdict for one in lists for tag in one.tags}


def data_of(run: RunRecord, moved_to: Path | None = None) -> RunData:
    """The data a run was trained on. Raises UserError if it is missing or has changed."""
    data = load_run_data(run.folder, moved_to)
    noted = run.data.get("train")
    if not isinstance(noted, dict) or "categories" not in run.data or "known_positives" not in run.data:
        raise damaged(RunFolder(run.folder).data)
    if data.train.content_hash() != noted.get("hash"):
        raise DataError(f"The training images of {run.folder} or their labels have changed since it was trained.")
    return data


# --- test images: what each run predicts ---


def test_gallery(runs: Sequence[RunRecord], data: RunData) -> Gallery | None:
    """The same test images for every run, the first run in full; None if there are no predictions."""
    part = data.test if runs[0].split == "test" else data.val
    scores = {run.folder: _probabilities(run) for run in runs}
    shown = [run for run in runs if part is not None and scores[run.folder].shape == part.labels.shape]
    if part is None or not shown:
        return None
    examples, best = [], shown[0]
    rows = choose_images(part.labels == PRESENT)
    lists = {row: [tags_of(run, scores[run.folder], part, row) for run in shown] for row in rows}
    maps = heat_maps(best, part, {row: [tag.name for tag in lists[row][0].tags[:NUM_MAPS]] for row in rows})
    for row in rows:
        example = example_of(part, row, lists[row][:1], maps.get(row, {}), lists[row][1:])
        examples += [example] if example is not None else []
    known = "known" if not part.complete else "true"
    sentence = f"Tags predicted by {label(best)}, with probabilities, and {known} tags that it missed."
    sentence += " The heat maps show the evidence for a tag." if maps else ""
    title = "Test images" if best.split == "test" else "Validation images"
    return Gallery(title, sentence, examples) if examples else None


def tags_of(run: RunRecord, probabilities: np.ndarray, part: Annotations, row: int) -> TagList:
    return TagList(label(run), judge(probabilities[row], part.labels[row], part.categories, _thresholds(run)))


def _probabilities(run: RunRecord) -> np.ndarray:
    file = RunFolder(run.folder).predictions(str(run.split))
    return read_arrays(file, "probabilities")[0] if file.is_file() else np.zeros((0, 0))


def _thresholds(run: RunRecord) -> np.ndarray:
    try:
        return read_thresholds(run.folder)
    except UserError:  # its model was removed
        return np.full(len(run.data["categories"]), 0.5)


def choose_images(present: np.ndarray) -> list[int]:
    """A fixed sample of the images with the most tags."""
    counts = present.sum(1)
    candidates = np.argsort(-counts, kind="stable")[: max(4 * NUM_IMAGES, int((counts > 1).sum()))]
    drawn = np.random.default_rng(0).permutation(candidates)[:NUM_IMAGES]
    return [int(row) for row in drawn]


def judge(
    probabilities: np.ndarray, labels: np.ndarray, categories: Sequence[str], thresholds: np.ndarray
) -> list[Tag]:
    """Predicted tags, most probable first, then known tags that were missed. Unreadable images have none."""
    tags, missed = [], []
    for c in np.argsort(-probabilities, kind="stable"):
        score = float(probabilities[c])
        if score >= thresholds[c]:
            tags.append(Tag(categories[c], verdict_on(labels[c]), score))
        elif labels[c] == PRESENT:
            missed.append(Tag(categories[c], "missed", score))
    return tags + missed


def verdict_on(label: int) -> str:
    """The verdict on a predicted tag, given what is known."""
    return "right" if label == PRESENT else "wrong" if label == ABSENT else "unknown"


def heat_maps(
    run: RunRecord, part: Annotations, wanted: Mapping[int, Sequence[str]]
) -> dict[int, dict[str, Image.Image]]:
    """For each row, pictures of the `wanted` categories; none for 1 x 1 maps, which show nothing."""
    try:
        saved = load_model(run.folder)
    except UserError:
        return {}
    images, kept = _load(part, [row for row, names in wanted.items() if names], saved.input.size)
    maps: dict[int, dict[str, Image.Image]] = {}
    for pixels, row in zip(images, kept, strict=True):
        columns = torch.tensor([[part.categories.index(name) for name in wanted[row]]])
        evidence = evidence_maps(saved.classifier, pixels[None], columns)[0]
        picture = thumbnail(open_image(part.path(row)))
        drawn = {
            name: overlay(picture, heat)
            for name, heat in zip(wanted[row], evidence, strict=True)
            if is_informative(heat)
        }
        maps |= {row: drawn} if drawn else {}
    return maps


def _load(part: Annotations, rows: Sequence[int], size: int) -> tuple[torch.Tensor, list[int]]:
    """The readable images as bytes [B, 3, H, W], and their rows."""
    pixels, kept = [], []
    for row in rows:
        try:
            image = open_resized(part.path(row), (size, size))
        except BadImage:
            continue
        pixels.append(np.asarray(image))
        kept.append(row)
    stacked = np.stack(pixels) if pixels else np.zeros((0, size, size, 3), dtype=np.uint8)
    return torch.from_numpy(stacked).permute(0, 3, 1, 2), kept


# --- training images: what the method decided about their unknown labels ---


def training_gallery(run: RunRecord, data: RunData) -> Gallery | None:
    """Unknown labels that the method found or rejected after its last epoch; None for methods without decisions."""
    file = RunFolder(run.folder).last
    if not file.is_file():
        return None
    rows = np.random.default_rng(0).permutation(len(data.train))[:NUM_CANDIDATES].tolist()
    kept, decisions, probabilities = decide(run, data.train, rows, file)
    meaning = what_is_done(decisions)
    examples: list[Example] = []
    for place, row in enumerate(kept):
        decided = [TagList(name, _decided(decisions[name][place], probabilities[place], data, row)) for name in meaning]
        if any(one.tags for one in decided) and len(examples) < NUM_IMAGES:
            example = example_of(data.train, row, [known_tags(data.train, row), *decided], {})
            examples += [example] if example is not None else []
    sentence = (
        f"Of {len(kept)} random training images, the first in which {label(run)} made decisions about "
        f"unknown tags: {', '.join(f'{name} ones are {done}' for name, done in meaning.items())}."
    )
    return Gallery(f"Training images, {label(run)}", sentence, examples) if examples else None


def what_is_done(decisions: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The kinds of decisions to show, and what each means. If both concern the same labels, only one is shown."""
    found, rejected = decisions.get("found"), decisions.get("rejected")
    meaning = {"found": "trained as present", "rejected": "no longer trained as absent"}
    if found is not None and rejected is not None and np.array_equal(found, rejected):
        return {"found": " and ".join(meaning.values())}
    return {name: meaning.get(name, "decided") for name in decisions}


@torch.inference_mode()
def decide(
    run: RunRecord, train: Annotations, rows: Sequence[int], file: Path
) -> tuple[list[int], dict[str, np.ndarray], np.ndarray]:
    """Readable rows, the masks of the method's decisions [B, C], and probabilities [B, C]."""
    config = load_run_config(run.folder)
    config = config.model_copy(update={"cache": config.cache.model_copy(update={"enabled": False})})
    checkpoint = load_checkpoint(file)
    fresh = config.model_copy(update={"model": config.model.model_copy(update={"pretrained": False, "weights": None})})
    problem = make_problem(config.head_name, config.words, train.categories, train.labels, config.seed)
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
    torch.manual_seed(0)  # CANR is random
    decisions = learner.objective.decide(batch, outputs, Progress.at_end(config.train.epochs))
    return kept, {name: mask.numpy() for name, mask in decisions.items()}, outputs.logits.sigmoid().numpy()


def known_tags(train: Annotations, row: int) -> TagList:
    known = np.flatnonzero(train.labels[row] == PRESENT).tolist()
    return TagList("known", [Tag(train.categories[c], "known") for c in known])


def _decided(mask: np.ndarray, scores: np.ndarray, data: RunData, row: int) -> list[Tag]:
    """A decision is right if the label is truly present, whether it was found or no longer trained as absent."""
    known = data.train.labels if data.truth is None else data.truth
    found = sorted(np.flatnonzero(mask).tolist(), key=lambda c: -scores[c])
    return [Tag(data.train.categories[c], verdict_on(known[row, c]), float(scores[c])) for c in found]


# --- pictures ---


def example_of(
    part: Annotations, row: int, lists: list[TagList], maps: dict[str, Image.Image], others: Sequence[TagList] = ()
) -> Example | None:
    try:
        picture = data_address(thumbnail(open_image(part.path(row))))
    except BadImage:
        return None
    drawn = [(name, data_address(image)) for name, image in maps.items()]
    name = "/".join(Path(part.images[row]).parts[-2:])  # what fits under a picture
    return Example(name, picture, lists, drawn, list(others))


def thumbnail(image: Image.Image) -> Image.Image:
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return small


def data_address(image: Image.Image) -> str:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
