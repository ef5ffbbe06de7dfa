"""Where in an image a category was seen, for any model, and as a picture."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewtags.models.classifier import Classifier

# From no evidence to the most: black, purple, red, orange, pale yellow; readable in greyscale and if colour-blind.
COLOURS = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=float)


@torch.inference_mode(False)
def evidence_maps(model: Classifier, images: Tensor, columns: Tensor) -> Tensor:
    """[B, K, h, w]: how much each location of the feature map supports the categories `columns` [B, K] of its image.

    To first order a logit is the sum over locations and channels of the map times the gradient, so every location has
    its share in it (the idea of Grad-CAM, on the map the head sees). Locations with negative evidence count 0. This
    works for every head. A head's attention (`Outputs.attention`) shows where it took its features from, not whether
    they support the category: on the demo's pictures it often points next to the object.
    """
    model.eval()
    with torch.no_grad():
        maps = model.feature_map(images).float().clone()
    with torch.enable_grad():
        logits = model.head(maps.requires_grad_()).logits.gather(1, columns.clone())
        shares = [torch.autograd.grad(logit.sum(), maps, retain_graph=True)[0] * maps for logit in logits.T]
    return torch.stack(shares, dim=1).sum(2).clamp(min=0).detach()


def is_informative(heat: Tensor) -> bool:
    """Does the map [h, w] distinguish locations? A constant or 1 x 1 map does not."""
    return bool(heat.max() > heat.min())


def overlay(image: Image.Image, heat_map: Tensor, opacity: float = 0.55) -> Image.Image:
    """The image under a `heat_map` [h, w], scaled so that its largest value is the hottest colour."""
    heat = heat_map.detach().float().cpu().numpy()
    heat = (heat - heat.min()) / max(float(np.ptp(heat)), 1e-12)
    smooth = Image.fromarray(np.uint8(255 * heat)).resize(image.size, Image.Resampling.BICUBIC)
    return Image.blend(image.convert("RGB"), Image.fromarray(_coloured(np.asarray(smooth) / 255)), opacity)


def _coloured(heat: np.ndarray) -> np.ndarray:
    """[h, w] in 0..1 -> [h, w, 3] bytes."""
    stops = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(heat, stops, COLOURS[:, channel]) for channel in range(3)], axis=-1).astype(np.uint8)
