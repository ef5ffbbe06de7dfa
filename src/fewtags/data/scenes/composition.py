"""From a random number generator to a picture: choose a setting and objects, place them, draw them, take the photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw

from fewtags.data.scenes.objects import OBJECTS
from fewtags.data.scenes.places import COMPANIONS, PLACES, Place
from fewtags.data.scenes.sketch import Sketch, any_colour, shade, turned

LEAST_VISIBLE = 0.35  # an object less visible than this is removed from the scene
OBJECT_COUNTS = {1: 0.18, 2: 0.34, 3: 0.28, 4: 0.14, 5: 0.06}
SUPERSAMPLING = 2  # drawn at this scale, then averaged, for smooth edges
MARGIN = 0.4  # how far beyond the image's edge objects are rendered, as a share of its side


@dataclass(frozen=True)
class Placed:
    """A sketch and its placement: point u lies at u @ matrix.T + offset; the image is the unit square."""

    sketch: Sketch
    matrix: np.ndarray  # [2, 2]
    offset: np.ndarray  # [2]
    category: str | None = None  # None for the background and clutter
    foot: float = 0.0  # y of the point it stands on: lower in the image is nearer

    def at(self, points: np.ndarray) -> np.ndarray:
        return points @ self.matrix.T + self.offset


Scene = list[Placed]  # from back to front


def draw_scene(rng: Generator, size: int = 96) -> tuple[Image.Image, set[str]]:
    """A picture of `size` x `size` pixels and the categories visible in it, at least one."""
    while True:
        scene = compose(rng)
        picture, visible = render(scene, size)
        while hidden := {k for k, share in visible.items() if share < LEAST_VISIBLE}:
            scene = [placed for k, placed in enumerate(scene) if k not in hidden]
            picture, visible = render(scene, size)
        present = {placed.category for placed in scene if placed.category}
        if present:
            return take_photo(picture, rng), present


def draw_portrait(rng: Generator, category: str, size: int = 64) -> Image.Image:
    """A picture of one large object, like the photos backbones are usually pretrained on."""
    place = list(PLACES.values())[rng.integers(len(PLACES))]
    background = Placed(place.background(rng, rng.uniform(0.35, 0.6)), np.eye(2), np.zeros(2))
    side = rng.uniform(0.4, 0.95)
    portrait = _stand(category, rng, rng.uniform(0.35, 0.65), rng.uniform(0.5 + side / 2, 1.0), side)
    clutter = [_clutter(rng, 0.3) for _ in range(rng.integers(0, 4))]
    picture, _ = render([background, *clutter, portrait], size)
    return take_photo(picture, rng)


# --- what is in the scene, and where ---


def compose(rng: Generator) -> Scene:
    place = list(PLACES.values())[_draw(rng, [place.weight for place in PLACES.values()])]
    horizon = rng.uniform(0.35, 0.6)
    background = Placed(place.background(rng, horizon), np.eye(2), np.zeros(2))
    behind = [_clutter(rng, 0.3) for _ in range(rng.integers(0, 4))]
    objects = _place_objects(choose_categories(place, rng), rng, horizon)
    before = [_clutter(rng, 0.17) for _ in range(rng.integers(0, 3))]
    return [background, *behind, *sorted(objects, key=lambda placed: placed.foot), *before]


def choose_categories(place: Place, rng: Generator) -> list[str]:
    """Draws one object after the other, each more likely next to its companions; some occur twice."""
    chosen: list[str] = []
    for _ in range(list(OBJECT_COUNTS)[_draw(rng, list(OBJECT_COUNTS.values()))]):
        odds = dict(place.odds)
        for present in set(chosen):
            odds[present] *= 0.3
        for pair, factor in COMPANIONS.items():
            if pair[0] in chosen and pair[1] in odds:
                odds[pair[1]] *= factor
        chosen.append(list(odds)[_draw(rng, list(odds.values()))])
    return chosen


def _draw(rng: Generator, weights: Sequence[float]) -> int:
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))


def _place_objects(categories: list[str], rng: Generator, horizon: float) -> list[Placed]:
    placed: list[Placed] = []
    for category in sorted(categories, key=lambda category: category == "cup"):  # cups go on a table
        size = OBJECTS[category].size * rng.uniform(0.7, 1.25)
        table = next((other for other in placed if other.category == "table"), None)
        if category == "cup" and table:
            x, y = table.at(np.array([rng.uniform(0.2, 0.8), 0.49]))
            placed.append(_stand(category, rng, x, y, 0.7 * size, foot=table.foot + 1e-3))
        elif OBJECTS[category].flies:
            placed.append(_stand(category, rng, rng.uniform(0.12, 0.88), rng.uniform(size, horizon + 0.2), size))
        else:
            y = rng.uniform(max(horizon + 0.06, 0.8 * size), 1.0)
            placed.append(_stand(category, rng, rng.uniform(0.12, 0.88), y, size))
    return placed


def _stand(category: str, rng: Generator, x: float, y: float, size: float, foot: float | None = None) -> Placed:
    """The object with its foot at (x, y), stretched, flipped and tilted a little."""
    kind = OBJECTS[category]
    stretch, flip = rng.uniform(0.87, 1.15), rng.choice([-1, 1])
    matrix = turned(rng.uniform(-kind.tilt, kind.tilt)) @ np.diag([flip * size * stretch, size / stretch])
    offset = np.array([x, y - size / stretch / 2]) - matrix @ (0.5, 0.5)  # tilted about its middle
    return Placed(kind.sketch(rng), matrix, offset, category, y if foot is None else foot)


def _clutter(rng: Generator, largest: float) -> Placed:
    """A meaningless shape: a splinter, a bent bar or a blot."""
    sketch, colour = Sketch(), any_colour(rng)
    shape = rng.integers(3)
    if shape == 0:
        sketch.polygon(colour, *rng.random((int(rng.integers(3, 6)), 2)))
    elif shape == 1:
        sketch.stroke(colour, rng.uniform(0.05, 0.25), *rng.random((3, 2)))
    else:
        for x, y, radius in rng.uniform(0.2, 0.5, (3, 3)):
            sketch.oval(shade(colour, 0.8 + radius), 2 * x, y, radius, radius / 2)
    size = largest * rng.uniform(0.4, 1.0)
    return Placed(sketch, size * turned(rng.uniform(0, 360)), rng.uniform(-0.05, 0.95, 2))


# --- rendering ---


def render(scene: Scene, size: int) -> tuple[Image.Image, dict[int, float]]:
    """The picture, and for each object (by position in the scene) the share of it that is visible.

    A second canvas, wider by a margin, stores in each pixel which object is visible there. An object's own area is
    counted when it has just been drawn, its visible area when the scene is finished and cut to the image.
    """
    picture = Image.new("RGB", (size * SUPERSAMPLING,) * 2)
    margin = round(MARGIN * size)
    seen = Image.new("L", (size + 2 * margin,) * 2)
    paint, mark = ImageDraw.Draw(picture), ImageDraw.Draw(seen)
    area: dict[int, int] = {}
    for k, placed in enumerate(scene):
        for colour, corners in placed.sketch.shapes:
            points = placed.at(corners) * size
            paint.polygon((points * SUPERSAMPLING).ravel().tolist(), fill=colour)
            mark.polygon((points + margin).ravel().tolist(), fill=k)
        if placed.category:
            area[k] = seen.histogram()[k]
    in_image = seen.crop((margin, margin, margin + size, margin + size)).histogram()
    return picture.reduce(SUPERSAMPLING), {k: in_image[k] / area[k] for k in area}


def take_photo(picture: Image.Image, rng: Generator) -> Image.Image:
    """Light from one side, exposure and sensor noise."""
    pixels = np.asarray(picture, dtype=np.float32)
    side = len(pixels)
    ramp = np.linspace(rng.uniform(0.6, 1.1), rng.uniform(0.6, 1.1), side, dtype=np.float32)
    pixels = pixels * (ramp[:, None, None] if rng.random() < 0.5 else ramp[None, :, None])
    grain = rng.standard_normal((side, side, 1), dtype=np.float32) * np.float32(rng.uniform(1, 11))
    return Image.fromarray((pixels + grain + np.float32(rng.uniform(0, 30))).clip(0, 255).astype(np.uint8))
