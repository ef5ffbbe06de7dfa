"""`fewtags export`: a trained model as one file to deploy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fewtags.engine.prediction import find_images
from fewtags.engine.run_folder import RunFolder
from fewtags.export.onnx_file import Check, export_model, write_layout
from fewtags.models.saved import load_model

NUM_CHECKED = 64  # images the exported file is compared on


def export(
    run: Path, *, to: str, out: Path | None, int8: bool, images: Sequence[Path], layout: bool
) -> tuple[Path, Check]:
    """Write the file and what the comparison with torch gave."""
    saved = load_model(run)
    suffix = ".xml" if to == "openvino" else ".onnx"
    file = (out or run / "model").with_suffix(suffix) if out is None or not out.suffix else out
    if layout:
        file = (out or run / "export") / "model.onnx"
    checked = find_images(images)[: 4 * NUM_CHECKED if int8 else NUM_CHECKED] if images else own_images(run)
    check = export_model(saved, file, to=to, int8=int8, images=checked)
    if layout:
        write_layout(saved, file.parent)
    return file, check


def own_images(run: Path) -> list[Path]:
    """Some of the run's own training images, where they are still there."""
    from fewtags.data.prepare import prepare_data
    from fewtags.engine.record import load_run_config
    from fewtags.errors import UserError

    if not RunFolder(run).is_run:
        return []
    try:
        config = load_run_config(run)
        train = prepare_data(config.data, config.seed).train
    except UserError:
        return []
    return [train.path(row) for row in range(min(len(train), NUM_CHECKED))]
