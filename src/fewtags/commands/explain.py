"""`fewtags explain`: an image next to its heat maps, one per tag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from fewtags.data.images import open_image
from fewtags.data.preprocess import read_square
from fewtags.errors import UserError, did_you_mean
from fewtags.models.attention_maps import evidence_maps, overlay
from fewtags.models.saved import SavedModel, load_model

SIDE, CAPTION, GAP, MOST = 320, 22, 6, 5


def explain(
    run: Path, image: Path, out: Path | None = None, tags: list[str] | None = None
) -> tuple[Path, dict[str, float]]:
    """Write the heat maps of the chosen or predicted tags; returns the file and the tags with probabilities."""
    saved = load_model(run)
    picture = open_image(image)
    pixels = torch.from_numpy(np.asarray(read_square(image, saved.input.size)).copy()).permute(2, 0, 1)[None]
    with torch.inference_mode():
        said = saved.classifier.eval()(pixels).logits[0].sigmoid().numpy()
    probabilities = saved.tree.raised(said, saved.categories)
    columns = chosen_columns(saved, probabilities, tags)
    captions = {saved.categories[c]: float(probabilities[c]) for c in columns}
    maps = evidence_maps(saved.classifier, pixels, torch.tensor([columns]))[0]
    if maps.shape[1] * maps.shape[2] == 1:
        raise UserError(
            f"The model's feature map has a single location, so there is no heat map; train with a larger input than "
            f"input.size={saved.input.size}, or with model.output_stride=16."
        )
    panels = [(picture, image.name)]
    panels += [
        (overlay(picture, heat), f"{saved.categories[c]}  {probabilities[c]:.2f}")
        for c, heat in zip(columns, maps, strict=True)
    ]
    out = out or Path(f"{image.stem}-explained.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    side_by_side(panels).save(out)
    return out, captions


def chosen_columns(saved: SavedModel, probabilities: np.ndarray, tags: list[str] | None) -> list[int]:
    """The given tags; else those that reach their threshold, most probable first; else the most probable one."""
    for tag in tags or []:
        if tag not in saved.categories:
            raise UserError(f"The model has no category '{tag}'; {did_you_mean(tag, saved.categories)}")
    if tags:
        return [saved.categories.index(tag) for tag in tags]
    order = np.argsort(-probabilities, kind="stable")
    return [int(c) for c in order if probabilities[c] >= saved.thresholds[c]][:MOST] or [int(order[0])]


def side_by_side(panels: list[tuple[Image.Image, str]]) -> Image.Image:
    sheet = Image.new("RGB", (len(panels) * (SIDE + GAP) - GAP, SIDE + CAPTION), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (picture, caption) in enumerate(panels):
        left = place * (SIDE + GAP)
        sheet.paste(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC), (left, CAPTION))
        draw.text((left + 4, 4), caption, fill="black")
    return sheet
