"""`fewtags export`: a trained model as one deployable file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.image_files import find_images
from fewtags.data.prepare import RunData
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.engine.prediction import predict_annotations
from fewtags.engine.predictions import Predictions, gathered, measure
from fewtags.engine.record import load_run_data
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError
from fewtags.export.onnx_file import INT8_IMAGES, export_model, write_layout
from fewtags.export.timm_folder import export_to_timm
from fewtags.models.saved import SavedModel, load_model
from fewtags.review.store import DecisionStore, decisions_file, has_decisions
from fewtags.review.tag_book import TagBook

NUM_CHECKED = 64  # images the exported file is compared on
NUM_MEASURED = 500  # held-out images the cost of quantisation is measured on


def export(
    run: Path, *, to: str, out: Path | None, int8: bool, images: Sequence[Path], layout: bool
) -> tuple[Path, list[str]]:
    """Write the file; returns sentences about how it compares with torch, and about tags that it has not."""
    saved = load_model(run)
    missing = tags_of_the_page(run, saved.categories)
    if to == "timm":
        if int8 or layout:
            raise UserError(f"--to timm writes a folder for timm; remove {'--int8' if int8 else '--layout'}.")
        folder = out or run / "timm"
        difference = export_to_timm(saved, folder)
        return folder, [f"Compared with timm's own model: largest difference of a logit {difference:.2g}.", *missing]
    suffix = ".xml" if to == "openvino" else ".onnx"
    file = (out or run / "model").with_suffix(suffix) if out is None or not out.suffix else out
    if layout:
        if to != "onnx":
            raise UserError(f"--layout writes a folder with an ONNX file; remove --to {to}.")
        file = (out or run / "export") / "model.onnx"
    data = own_data(run)
    wanted = INT8_IMAGES + NUM_CHECKED if int8 else NUM_CHECKED  # calibration and comparison use different images
    checked = find_images(images)[:wanted] if images else own_images(data, wanted)
    check = export_model(saved, file, to=to, int8=int8, images=checked, for_imgutils=layout)
    if layout:
        write_layout(saved, file.parent)
    return file, [str(check), *([cost] if int8 and (cost := int8_cost(saved, file, data)) else []), *missing]


def tags_of_the_page(run: Path, categories: Sequence[str]) -> list[str]:
    """A sentence, if reviewers have made or renamed tags since the model was trained."""
    if not RunFolder(run).is_run or not has_decisions(run):
        return []
    with DecisionStore(decisions_file(run), read_only=True) as store:
        names = [tag.name for tag in TagBook.of(categories, store).tags if not tag.gone]
    new = [name for name in names if name not in categories]
    if not new:
        return []
    return [
        f"Not in it: {', '.join(new)}, as named on the review page since this model was trained. "
        f"`fewtags train --reviewed {run}` makes a model to export that knows {'it' if len(new) == 1 else 'them'}."
    ]


def own_data(run: Path) -> RunData | None:
    """The data the run was trained on, if it still exists."""
    if not RunFolder(run).is_run:
        return None
    try:
        return load_run_data(run)
    except UserError:
        return None


def own_images(data: RunData | None, most: int) -> list[Path]:
    return [] if data is None else [data.train.path(row) for row in range(min(len(data.train), most))]


def int8_cost(saved: SavedModel, file: Path, data: RunData | None) -> str:
    """mAP with and without quantisation on held-out images; empty if there are none."""
    part = None if data is None else data.test or data.val
    if part is None:
        return ""
    part = part.take(np.arange(min(len(part), NUM_MEASURED)))
    before = measure(predict_annotations(saved, part, device="cpu"), part).map
    after = measure(predictions_of(ExportedTagger(file), part), part).map
    labels = "" if part.complete else " with partial labels"
    return (
        f"On {len(part)} held-out images{labels}: mAP {100 * before:.2f} with torch, {100 * after:.2f} quantised "
        f"({100 * (after - before):+.2f})."
    )


def predictions_of(tagger: ExportedTagger, part: Annotations) -> Predictions:
    return gathered(tagger.predict_files(part.path(row) for row in range(len(part))), part.labels.shape)
