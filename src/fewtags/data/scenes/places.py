"""PLACES: where a scene takes place, which objects are likely there, and how its background is sketched.

Backgrounds use the same coordinates as objects, with the whole image as the unit square. Every place may have any
colour: it shows in lines and patterns, so the mean colour reveals neither the place nor the objects in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fewtags.data.scenes.sketch import Sketch, any_colour, curve, shade


def street(rng: Generator, horizon: float) -> Sketch:
    s = _two_halves(rng, horizon)
    road, kerb = any_colour(rng, 0.2, 0.7, strongest=0.4), horizon + rng.uniform(0.06, 0.14)
    s.box(road, -0.1, kerb, 1.1, 1.1)
    s.box(shade(road, 1.5), -0.1, kerb - 0.02, 1.1, kerb)
    middle = (kerb + 1) / 2
    for x in np.arange(-rng.random() / 4, 1.1, 0.25):
        s.box((235, 235, 225), x, middle, x + 0.13, middle + 0.02)
    return s


def garden(rng: Generator, horizon: float) -> Sketch:
    s = _two_halves(rng, horizon)
    fence, height = any_colour(rng, 0.4), rng.uniform(0.1, 0.2)
    s.box(shade(fence, 0.8), -0.1, horizon - height * 0.6, 1.1, horizon - height * 0.4)
    for x in np.arange(-rng.random() / 10, 1.1, 0.1):
        top = horizon - height
        s.polygon(fence, (x, top), (x + 0.03, top - 0.03), (x + 0.06, top), (x + 0.06, horizon), (x, horizon))
    return s


def park(rng: Generator, horizon: float) -> Sketch:
    s = _two_halves(rng, horizon)
    hill, path = any_colour(rng, 0.3, 0.8, 0.6), any_colour(rng, 0.5, 0.9, 0.5)
    for x in rng.uniform(0, 1, 2):
        s.polygon(
            hill, *curve((x - 0.5, horizon + 0.01), (x, horizon - rng.uniform(0.2, 0.5)), (x + 0.5, horizon + 0.01))
        )
    foot = rng.uniform(0.1, 0.6)
    left = curve((rng.uniform(0.3, 0.7), horizon), (rng.uniform(0, 1), (horizon + 1) / 2), (foot, 1.1))
    right = [(x + 0.06 + 0.25 * k / len(left), y) for k, (x, y) in enumerate(left)]
    s.polygon(path, *left, *right[::-1])
    return s


def seaside(rng: Generator, horizon: float) -> Sketch:
    s = _two_halves(rng, horizon)
    foam = shade(s.shapes[-1][0], rng.choice([0.75, 1.35]))
    for y in np.arange(horizon + 0.05, 1.0, 0.1):
        start = rng.uniform(0, 0.15)
        crests = [(x, y + 0.012 * (-1) ** k) for k, x in enumerate(np.arange(start - 0.2, 1.2, 0.07))]
        s.stroke(foam, 0.015, *crests)
    return s


def room(rng: Generator, horizon: float) -> Sketch:
    s = _two_halves(rng, horizon)
    wall, floor = s.shapes[0][0], s.shapes[1][0]
    for x in np.arange(rng.uniform(0, 0.1), 1.0, rng.uniform(0.1, 0.2)):
        s.box(shade(wall, 0.9), x, -0.1, x + 0.04, horizon)
    s.box(shade(floor, 0.7), -0.1, horizon - 0.03, 1.1, horizon + 0.01)
    x, y = rng.uniform(0.05, 0.65), rng.uniform(0.03, 0.12)
    s.box(any_colour(rng, 0.3), x, y, x + 0.26, y + 0.22)  # a picture
    s.box(any_colour(rng, 0.5), x + 0.03, y + 0.03, x + 0.23, y + 0.19)
    return s


def _two_halves(rng: Generator, horizon: float) -> Sketch:
    s = Sketch()
    s.box(any_colour(rng, 0.35, strongest=0.6), -0.1, -0.1, 1.1, horizon)
    s.box(any_colour(rng, 0.35, strongest=0.6), -0.1, horizon, 1.1, 1.1)
    return s


@dataclass(frozen=True)
class Place:
    weight: float  # how often scenes take place here
    background: Callable[[Generator, float], Sketch]
    odds: dict[str, float]  # odds of each category being the next object


PLACES: dict[str, Place] = {
    "street": Place(
        weight=0.28,
        background=street,
        odds={"car": 10, "person": 5, "house": 5, "bicycle": 3, "tree": 3, "dog": 1.5, "umbrella": 1, "cat": 1},
    ),
    "garden": Place(
        weight=0.2,
        background=garden,
        odds={"tree": 7, "flower": 6, "house": 3, "cat": 3, "person": 2, "bird": 2, "dog": 1.5, "chair": 1, "ball": 1},
    ),
    "park": Place(
        weight=0.24,
        background=park,
        odds={"tree": 9, "person": 5, "dog": 3, "bird": 3, "ball": 3, "bicycle": 2, "flower": 2, "umbrella": 0.5},
    ),
    "seaside": Place(
        weight=0.12,
        background=seaside,
        odds={"boat": 8, "bird": 4, "fish": 4, "person": 2, "umbrella": 1, "ball": 2},
    ),
    "room": Place(
        weight=0.16,
        background=room,
        odds={"table": 6, "chair": 6, "cup": 3, "person": 3, "cat": 4, "flower": 2, "dog": 1, "ball": 1},
    ),
}

# Objects that occur together more often than the place alone explains: factors on the odds of the second.
COMPANIONS: dict[tuple[str, str], float] = {
    ("table", "chair"): 3.0,
    ("chair", "table"): 3.0,
    ("table", "cup"): 4.0,
    ("person", "dog"): 2.5,
    ("dog", "person"): 2.5,
    ("person", "umbrella"): 2.0,
    ("umbrella", "person"): 3.0,
    ("boat", "bird"): 1.5,
}
