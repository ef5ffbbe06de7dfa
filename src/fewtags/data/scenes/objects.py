"""OBJECTS: the categories of the scenes, each with a function that sketches one in a random shape, pose and colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from numpy.random import Generator

from fewtags.data.scenes.sketch import Colour, Point, Sketch, any_colour, curve, pick, shade

INK: Colour = (28, 26, 30)
WHITE: Colour = (246, 246, 246)
SKIN: list[Colour] = [(246, 214, 186), (224, 172, 132), (178, 120, 82), (120, 78, 52), (84, 54, 40)]


def person(rng: Generator) -> Sketch:
    s = Sketch()
    skin, hair, shirt, trousers = pick(rng, SKIN), any_colour(rng, 0.1, 0.7), any_colour(rng), any_colour(rng)
    stride, swing = rng.uniform(0.02, 0.16), rng.uniform(-0.05, 0.2, 2)
    for side in (-1, 1):
        foot = 0.5 + side * (0.05 + stride)
        s.stroke(trousers, 0.09, (0.5 + side * 0.05, 0.58), (foot, 0.97))
        s.oval(INK, foot + 0.03, 0.97, 0.06, 0.03)
    for side, lift in zip((-1, 1), swing, strict=True):
        elbow, hand = (0.5 + side * (0.16 + lift / 2), 0.42), (0.5 + side * (0.18 + lift), 0.58 - 1.2 * max(lift, 0))
        s.stroke(shade(shirt, 0.85), 0.07, (0.5 + side * 0.08, 0.28), elbow, hand)
        s.oval(skin, *hand, 0.04)
    hem = rng.choice([0.09, 0.1, 0.2])  # the widest is a dress
    s.polygon(shirt, (0.39, 0.25), (0.61, 0.25), (0.5 + hem, 0.63), (0.5 - hem, 0.63))
    s.box(skin, 0.47, 0.2, 0.53, 0.26)
    s.oval(hair, 0.5, 0.11, 0.105, 0.105 + rng.uniform(0, 0.06))
    s.oval(skin, 0.51, 0.14, 0.085, 0.09)
    for x in (0.48, 0.55):
        s.oval(INK, x, 0.13, 0.013)
    return s


def _four_legs(s: Sketch, rng: Generator, coat: Colour, top: float, width: float) -> None:
    for x, dark in ((0.3, 0.75), (0.66, 0.75), (0.24, 1.0), (0.6, 1.0)):
        s.stroke(shade(coat, dark), width, (x, top), (x + rng.uniform(-0.07, 0.07), 1.0))


def dog(rng: Generator) -> Sketch:
    s = Sketch()
    coat, ear = any_colour(rng, 0.3), rng.uniform(0.5, 0.7)
    s.stroke(coat, 0.06, *curve((0.18, 0.52), (0.04, 0.5), (0.02 + rng.uniform(0, 0.06), 0.2)))
    _four_legs(s, rng, coat, 0.62, 0.085)
    s.oval(coat, 0.44, 0.57, 0.3, rng.uniform(0.13, 0.18))
    s.polygon(coat, (0.58, 0.5), (0.68, 0.25), (0.82, 0.34), (0.72, 0.66))
    s.oval(coat, 0.75, 0.27, 0.13, 0.12)
    s.oval(shade(coat, 1.1), 0.89, 0.32, 0.12, 0.07)  # a long snout
    s.oval(INK, 0.985, 0.29, 0.03)
    s.oval(shade(coat, ear), 0.68, 0.33, 0.055, 0.14, tilt=12)  # a hanging ear
    s.oval(INK, 0.79, 0.23, 0.022)
    s.stroke(any_colour(rng, 0.5), 0.05, (0.6, 0.42), (0.77, 0.45))
    return s


def cat(rng: Generator) -> Sketch:
    return _sitting_cat(rng) if rng.random() < 0.5 else _walking_cat(rng)


def _cat_head(s: Sketch, coat: Colour, x: float, y: float, r: float) -> None:
    for side in (-1, 1):
        s.polygon(coat, (x + side * 0.95 * r, y - 1.6 * r), (x + side * 0.1 * r, y - 0.8 * r), (x + side * r, y))
    s.oval(coat, x, y, 1.1 * r, r)
    for side in (-1, 1):
        s.oval((225, 230, 110), x + side * 0.45 * r, y - 0.1 * r, 0.24 * r, 0.26 * r)
        s.oval(INK, x + side * 0.45 * r, y - 0.1 * r, 0.09 * r, 0.24 * r)
        for droop in (0.25, 0.65):
            s.stroke((240, 240, 240), 0.14 * r, (x + side * 0.4 * r, y + 0.4 * r), (x + side * 1.7 * r, y + droop * r))
    s.oval((230, 130, 140), x, y + 0.3 * r, 0.17 * r, 0.13 * r)


def _sitting_cat(rng: Generator) -> Sketch:
    s = Sketch()
    coat = any_colour(rng, 0.25, 0.9)
    s.stroke(shade(coat, 0.8), 0.075, *curve((0.6, 0.93), (1.1, 0.98), (0.9, 0.5 + rng.uniform(-0.1, 0.1))))
    s.oval(coat, 0.5, 0.76, 0.23, 0.25)
    s.oval(shade(coat, 1.25), 0.5, 0.74, 0.11, 0.16)
    for x in (0.41, 0.59):
        s.oval(shade(coat, 0.85), x, 0.96, 0.075, 0.045)
    _cat_head(s, coat, 0.5, 0.4, 0.21)
    return s


def _walking_cat(rng: Generator) -> Sketch:
    s = Sketch()
    coat = any_colour(rng, 0.25, 0.9)
    s.stroke(coat, 0.055, *curve((0.2, 0.58), (-0.05, 0.5), (0.12 + rng.uniform(-0.08, 0.1), 0.12)))
    _four_legs(s, rng, coat, 0.68, 0.065)
    s.oval(coat, 0.44, 0.63, 0.29, 0.13)
    for x in (0.32, 0.42, 0.52):
        s.stroke(shade(coat, 0.65), 0.035, (x, 0.51), (x - 0.02, 0.64))
    _cat_head(s, coat, 0.77, 0.45, 0.16)
    return s


def bird(rng: Generator) -> Sketch:
    s = Sketch()
    body, wing, beak = any_colour(rng), any_colour(rng), pick(rng, [(240, 160, 40), (235, 200, 60), (70, 60, 60)])
    if flying := rng.random() < 0.6:
        tip = rng.uniform(0.05, 0.25)
        s.polygon(shade(wing, 0.75), (0.45, 0.55), (0.62, tip), (0.66, 0.55))
    else:
        for x in (0.48, 0.58):
            s.stroke(beak, 0.03, (x, 0.72), (x, 1.0))
    s.polygon(wing, (0.02, 0.48), (0.32, 0.55), (0.3, 0.66), (0.0, 0.68))  # tail
    s.oval(body, 0.5, 0.62, 0.27, 0.16, tilt=-10)
    s.oval(body, 0.75, 0.47, 0.13)
    s.polygon(beak, (0.85, 0.41), (1.02, 0.49), (0.85, 0.54))
    s.oval(WHITE, 0.78, 0.44, 0.042)
    s.oval(INK, 0.785, 0.44, 0.025)
    if flying:
        s.polygon(wing, (0.34, 0.58), (0.28, tip - 0.05), (0.42, tip + 0.1), (0.6, 0.6))
    else:
        s.oval(wing, 0.45, 0.62, 0.17, 0.09, tilt=15)
    return s


def fish(rng: Generator) -> Sketch:
    s = Sketch()
    body, fin = any_colour(rng, 0.35), any_colour(rng, 0.35)
    height = rng.uniform(0.17, 0.27)
    s.polygon(fin, (0.3, 0.6), (0.0, 0.36), (0.06, 0.6), (0.0, 0.84))
    s.polygon(fin, (0.42, 0.64 - height), (0.5, 0.5 - height), (0.72, 0.66 - height))
    s.polygon(fin, (0.48, 0.55 + height), (0.5, 0.7 + height), (0.66, 0.54 + height))
    s.oval(body, 0.58, 0.6, 0.37, height)
    for x in (0.38, 0.5, 0.62)[: int(rng.integers(4))]:
        s.stroke(fin, 0.045, (x, 0.6 - 0.8 * height), (x - 0.03, 0.6), (x, 0.6 + 0.8 * height))
    s.stroke(shade(body, 0.6), 0.02, *curve((0.74, 0.6 - 0.7 * height), (0.68, 0.6), (0.74, 0.6 + 0.7 * height)))
    s.oval(WHITE, 0.83, 0.55, 0.05)
    s.oval(INK, 0.84, 0.55, 0.028)
    return s


def tree(rng: Generator) -> Sketch:
    s = Sketch()
    leaves, bark = any_colour(rng, 0.25, 0.95), any_colour(rng, 0.15, 0.5)
    s.polygon(bark, (0.46, 0.5), (0.54, 0.5), (0.57, 1.0), (0.43, 1.0))
    if rng.random() < 0.4:  # a fir
        for k, top in enumerate((0.42, 0.22, 0.0)):
            half = 0.34 - 0.07 * k
            s.polygon(shade(leaves, 0.85 + 0.12 * k), (0.5, top), (0.5 + half, top + 0.4), (0.5 - half, top + 0.4))
        return s
    s.stroke(bark, 0.04, (0.5, 0.7), (0.68, 0.48))
    for k, (x, y) in enumerate(((0.3, 0.42), (0.7, 0.42), (0.4, 0.22), (0.62, 0.24), (0.5, 0.38))):
        r = rng.uniform(0.17, 0.24)
        s.oval(shade(leaves, 0.8 + 0.08 * k), x + rng.uniform(-0.05, 0.05), y, r, 0.9 * r)
    return s


def flower(rng: Generator) -> Sketch:
    s = Sketch()
    petal, heart, stem = any_colour(rng, 0.5), any_colour(rng, 0.3), any_colour(rng, 0.2, 0.6)
    lean = rng.uniform(0.42, 0.58)
    s.stroke(stem, 0.045, *curve((0.5, 1.0), (0.5, 0.7), (lean, 0.3)))
    for side, y in ((-1, rng.uniform(0.7, 0.85)), (1, rng.uniform(0.65, 0.85))):
        s.oval(stem, 0.5 + side * 0.13, y, 0.14, 0.055, tilt=-side * 30)
    num_petals = int(rng.integers(5, 9))
    reach = rng.uniform(0.15, 0.19)
    for k in range(num_petals):
        a = 2 * math.pi * k / num_petals
        s.oval(
            shade(petal, 0.85 + 0.15 * (k % 2)),
            lean + reach * math.cos(a),
            0.3 + reach * math.sin(a),
            0.125,
            0.08,
            tilt=math.degrees(a),
        )
    s.oval(heart, lean, 0.3, 0.085)
    return s


def house(rng: Generator) -> Sketch:
    s = Sketch()
    wall, roof, door, glass = any_colour(rng, 0.4), any_colour(rng, 0.2, 0.8), any_colour(rng), any_colour(rng, 0.6)
    eaves = rng.uniform(0.38, 0.52)
    s.box(shade(roof, 0.7), 0.68, 0.1, 0.78, eaves)  # chimney
    s.box(wall, 0.1, eaves, 0.9, 1.0)
    ridge = rng.uniform(0.3, 0.5)
    s.polygon(roof, (0.02, eaves + 0.03), (ridge, 0.04), (1 - ridge, 0.04), (0.98, eaves + 0.03))
    x = rng.uniform(0.16, 0.64)
    s.box(door, x, 0.68, x + 0.17, 1.0)
    windows = [w for w in (0.16, 0.4, 0.66) if abs(w - x) > 0.2]
    for w in windows:
        s.box(WHITE, w, 0.6, w + 0.19, 0.8)
        s.box(glass, w + 0.02, 0.62, w + 0.085, 0.78)
        s.box(glass, w + 0.105, 0.62, w + 0.17, 0.78)
    return s


def car(rng: Generator) -> Sketch:
    s = Sketch()
    paint, glass = any_colour(rng, 0.25), any_colour(rng, 0.6)
    roof, front, rear = rng.uniform(0.28, 0.4), rng.uniform(0.58, 0.7), rng.uniform(0.1, 0.34)
    s.polygon(paint, (rear - 0.08, 0.62), (rear, roof), (front, roof), (front + 0.16, 0.62))
    s.polygon(glass, (rear, 0.6), (rear + 0.05, roof + 0.05), (0.44, roof + 0.05), (0.44, 0.6))
    s.polygon(glass, (0.48, 0.6), (0.48, roof + 0.05), (front - 0.02, roof + 0.05), (front + 0.09, 0.6))
    s.polygon(paint, (0.02, 0.62), (0.9, 0.6), (0.99, 0.7), (0.99, 0.86), (0.01, 0.86))
    s.box(shade(paint, 0.7), 0.01, 0.8, 0.99, 0.86)
    s.oval((255, 245, 190), 0.95, 0.71, 0.035)
    for x in (0.23, 0.77):
        s.oval(INK, x, 0.87, 0.125)
        s.oval((190, 190, 195), x, 0.87, 0.06)
    return s


def bicycle(rng: Generator) -> Sketch:
    s = Sketch()
    frame, tyre = any_colour(rng), any_colour(rng, 0.05, 0.35)
    pedals, saddle, head = (0.46, 0.78), (0.36, 0.44), (0.68, 0.42)
    for x in (0.22, 0.78):
        s.ring(tyre, x, 0.78, 0.22, 0.04)
        for angle in (20, 80, 140):
            dx, dy = 0.2 * math.cos(math.radians(angle)), 0.2 * math.sin(math.radians(angle))
            s.stroke((170, 170, 175), 0.012, (x - dx, 0.78 - dy), (x + dx, 0.78 + dy))
    for start, end in (
        ((0.22, 0.78), pedals),
        (pedals, saddle),
        (pedals, head),
        (head, (0.38, 0.52)),
        ((0.22, 0.78), (0.38, 0.52)),
        ((0.78, 0.78), (0.66, 0.34)),
    ):
        s.stroke(frame, 0.042, start, end)
    s.oval(INK, 0.35, 0.42, 0.09, 0.035)
    s.stroke(INK, 0.04, (0.6, 0.36), (0.67, 0.33), (0.76, 0.36 - rng.uniform(0, 0.1)))
    s.oval(INK, *pedals, 0.05)
    return s


def boat(rng: Generator) -> Sketch:
    s = Sketch()
    hull, sail, jib = any_colour(rng, 0.25), any_colour(rng, 0.6), any_colour(rng, 0.5)
    mast = rng.uniform(0.42, 0.54)
    s.box((110, 84, 60), mast - 0.015, 0.03, mast + 0.015, 0.76)
    s.polygon(sail, (mast + 0.03, 0.06), (mast + rng.uniform(0.3, 0.42), 0.68), (mast + 0.03, 0.68))
    if rng.random() < 0.7:
        s.polygon(jib, (mast - 0.03, 0.14), (mast - rng.uniform(0.22, 0.34), 0.68), (mast - 0.03, 0.68))
    s.polygon(hull, (0.04, 0.74), (0.97, 0.74), (0.82, 0.98), (0.18, 0.98))
    s.polygon(shade(hull, 1.3), (0.04, 0.74), (0.97, 0.74), (0.94, 0.79), (0.07, 0.79))
    return s


def table(rng: Generator) -> Sketch:
    s = Sketch()
    wood = any_colour(rng, 0.25, 0.9)
    slant = rng.uniform(0.05, 0.14)
    for x, top, dark in ((0.12 + slant, 0.5, 0.6), (0.84 - slant, 0.5, 0.6), (0.06, 0.55, 0.8), (0.89, 0.55, 0.8)):
        s.box(shade(wood, dark), x, top, x + 0.055, 0.92 if dark < 0.7 else 1.0)
    s.polygon(wood, (slant + 0.03, 0.42), (0.97 - slant, 0.42), (1.0, 0.55), (0.0, 0.55))
    s.box(shade(wood, 0.7), 0.0, 0.55, 1.0, 0.61)
    return s


def chair(rng: Generator) -> Sketch:
    s = Sketch()
    wood, seat = any_colour(rng, 0.2, 0.9), any_colour(rng)
    lean = rng.uniform(0.0, 0.08)
    for x, bottom in ((0.36, 0.93), (0.76, 0.93)):
        s.stroke(shade(wood, 0.7), 0.05, (x, 0.6), (x, bottom))
    s.stroke(wood, 0.06, (0.24 - lean, 0.03), (0.26, 0.6), (0.24, 1.0))
    s.stroke(shade(wood, 0.85), 0.05, (0.38 - lean, 0.03), (0.4, 0.56))
    for y in (0.1, 0.25, 0.4):
        s.box(wood, 0.23 - lean, y, 0.41 - lean, y + 0.07)
    s.polygon(seat, (0.22, 0.61), (0.36, 0.54), (0.82, 0.54), (0.74, 0.61))
    s.box(shade(seat, 0.75), 0.22, 0.61, 0.74, 0.67)
    s.stroke(wood, 0.06, (0.71, 0.66), (0.71, 1.0))
    return s


def cup(rng: Generator) -> Sketch:
    s = Sketch()
    china, drink, band = any_colour(rng, 0.45), any_colour(rng, 0.15, 0.5), any_colour(rng, 0.3)
    foot = rng.uniform(0.16, 0.28)
    s.ring(shade(china, 0.85), 0.76, 0.58, 0.19, 0.075)
    s.polygon(china, (0.14, 0.3), (0.74, 0.3), (0.44 + foot, 0.96), (0.44 - foot, 0.96))
    s.oval(china, 0.44, 0.96, foot, 0.04)
    if rng.random() < 0.5:
        s.polygon(band, (0.2, 0.52), (0.68, 0.52), (0.66, 0.66), (0.22, 0.66))
    s.oval(shade(china, 1.2), 0.44, 0.3, 0.31, 0.1)
    s.oval(drink, 0.44, 0.31, 0.25, 0.07)
    if rng.random() < 0.6:
        for x in (0.34, 0.52):
            s.stroke((235, 235, 240), 0.04, (x, 0.18), (x + 0.05, 0.11), (x, 0.04))
    return s


def umbrella(rng: Generator) -> Sketch:
    s = Sketch()
    cloth, other, shaft = any_colour(rng, 0.3), any_colour(rng, 0.3), any_colour(rng, 0.1, 0.5)
    s.stroke(shaft, 0.035, (0.5, 0.02), (0.5, 0.86))
    s.stroke(shaft, 0.04, *curve((0.5, 0.84), (0.52, 1.08), (0.64, 0.88)))
    ribs = [0.5 - 0.48 * math.cos(math.pi * k / 4) for k in range(5)]
    for k in range(4):
        left, right = ribs[k], ribs[k + 1]
        outer = curve((0.5, 0.08), (left if k < 2 else right, 0.1), (left if k < 2 else right, 0.5))
        inner = curve((right if k < 2 else left, 0.5), (right if k < 2 else left, 0.2), (0.5, 0.08))
        middle = ((left + right) / 2, 0.43)  # cloth is higher between two ribs
        s.polygon(cloth if k % 2 else other, *outer, middle, *inner)
    return s


def ball(rng: Generator) -> Sketch:
    s = Sketch()
    first, second = any_colour(rng, 0.4), any_colour(rng, 0.2)
    s.oval(first, 0.5, 0.55, 0.45)
    if rng.random() < 0.5:  # a beach ball
        start = rng.uniform(0, 120)
        for k in range(3):
            rim = _around_the_middle(0.45, (start + 120 * k + step for step in (0, 15, 30, 45, 60)))
            s.polygon(second, (0.5, 0.5), *rim)
        s.oval(WHITE, 0.5, 0.5, 0.07)
    else:  # a football
        s.polygon(second, *_around_the_middle(0.17, (72 * k for k in range(5))))
        for k in range(5):
            s.stroke(second, 0.03, *_around_the_middle(0.15, [72 * k]), *_around_the_middle(0.3, [72 * k]))
            rim = _around_the_middle(0.45, (72 * k + step for step in (-17, 0, 17)))
            s.polygon(second, *_around_the_middle(0.28, [72 * k]), *rim)
    return s


def _around_the_middle(radius: float, degrees: Iterable[float]) -> list[Point]:
    return [(0.5 + radius * math.cos(a), 0.55 + radius * math.sin(a)) for a in map(math.radians, degrees)]


@dataclass(frozen=True)
class Kind:
    sketch: Callable[[Generator], Sketch]
    size: float  # usual height and width, as a share of the image's side
    tilt: float = 6.0  # largest, in degrees
    flies: bool = False


OBJECTS: dict[str, Kind] = {
    "ball": Kind(ball, 0.22, tilt=180),
    "bicycle": Kind(bicycle, 0.44),
    "bird": Kind(bird, 0.27, tilt=20, flies=True),
    "boat": Kind(boat, 0.44),
    "car": Kind(car, 0.46),
    "cat": Kind(cat, 0.33),
    "chair": Kind(chair, 0.42),
    "cup": Kind(cup, 0.25),
    "dog": Kind(dog, 0.36),
    "fish": Kind(fish, 0.3, tilt=25),
    "flower": Kind(flower, 0.36, tilt=12),
    "house": Kind(house, 0.52, tilt=2),
    "person": Kind(person, 0.52),
    "table": Kind(table, 0.48),
    "tree": Kind(tree, 0.56),
    "umbrella": Kind(umbrella, 0.4, tilt=25),
}
