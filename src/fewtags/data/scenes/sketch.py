"""A sketch is a list of coloured polygons, so it can be scaled, rotated, flipped and redrawn."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence

import numpy as np

Colour = tuple[int, int, int]
Point = tuple[float, float]

_CORNERS = 20  # of an oval
_CIRCLE = np.array([(math.cos(a), math.sin(a)) for a in np.linspace(0, 2 * math.pi, _CORNERS, endpoint=False)])
_RIM = np.array([(math.cos(a), math.sin(a)) for a in np.linspace(0, 2 * math.pi, _CORNERS + 1)])


class Sketch:
    """Shapes from back to front. An object is in the unit square: x to the right, y down, its foot at (0.5, 1)."""

    def __init__(self) -> None:
        self.shapes: list[tuple[Colour, np.ndarray]] = []  # fill, corners [K, 2]

    def polygon(self, colour: Colour, *corners: Point) -> None:
        self.shapes.append((colour, np.array(corners)))

    def box(self, colour: Colour, left: float, top: float, right: float, bottom: float) -> None:
        self.polygon(colour, (left, top), (right, top), (right, bottom), (left, bottom))

    def oval(self, colour: Colour, x: float, y: float, rx: float, ry: float | None = None, tilt: float = 0.0) -> None:
        """Centre, radii and tilt in degrees; a circle if only one radius is given."""
        corners = _CIRCLE * (rx, rx if ry is None else ry)
        self.shapes.append((colour, corners @ turned(tilt).T + (x, y)))

    def ring(self, colour: Colour, x: float, y: float, radius: float, width: float) -> None:
        corners = np.concatenate([_RIM * radius, _RIM[::-1] * (radius - width)])
        self.shapes.append((colour, corners + np.array((x, y))))

    def stroke(self, colour: Colour, width: float, *points: Point) -> None:
        """A band of constant width along a path."""
        path = np.array(points)
        along = np.concatenate([path[1:], path[-1:]]) - np.concatenate([path[:1], path[:-1]])
        aside = along[:, ::-1] * (-width / 2, width / 2) / np.hypot(along[:, :1], along[:, 1:])
        self.shapes.append((colour, np.concatenate([path + aside, (path - aside)[::-1]])))


def turned(degrees: float) -> np.ndarray:
    """[2, 2] rotation."""
    a = math.radians(degrees)
    return np.array([(math.cos(a), -math.sin(a)), (math.sin(a), math.cos(a))])


def curve(start: Point, bend: Point, end: Point, num_points: int = 7) -> list[Point]:
    """A quadratic Bézier curve."""
    t = np.linspace(0, 1, num_points)[:, None]
    path = (1 - t) ** 2 * np.array(start) + 2 * t * (1 - t) * np.array(bend) + t**2 * np.array(end)
    return [(x, y) for x, y in path.tolist()]


def any_colour(rng: np.random.Generator, low: float = 0.2, high: float = 1.0, strongest: float = 1.0) -> Colour:
    """Any hue, with a brightness between `low` and `high` and a saturation up to `strongest`."""
    red, green, blue = colorsys.hsv_to_rgb(rng.random(), strongest * rng.random() ** 0.6, rng.uniform(low, high))
    return int(red * 255), int(green * 255), int(blue * 255)


def shade(colour: Colour, factor: float) -> Colour:
    """Darker below 1, lighter above."""
    red, green, blue = (min(255, int(channel * factor)) for channel in colour)
    return red, green, blue


def pick(rng: np.random.Generator, choices: Sequence[Colour]) -> Colour:
    return choices[int(rng.integers(len(choices)))]
