"""Line charts as inline SVG. Colours are classes of the page's style sheet, so they follow light and dark mode.

Every line has its own dash pattern and marker besides its colour, and its name at its end: a chart can be read
in greyscale and by colour-blind readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup, escape

NUM_COLOURS = 8
DASHES = ("", "7 3", "2 3")  # after NUM_COLOURS lines the colours repeat with the next pattern
LEVEL = "1 5"
MARKERS = ("circle", "square", "diamond", "triangle")
LINE_HEIGHT = 14.0


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    style: int  # index into the palette
    spread: Sequence[float | None] = field(default_factory=list)  # standard deviation at each point
    level: bool = False  # one value for the whole axis, e.g. of a method without epochs


@dataclass(frozen=True)
class Frame:
    """Maps data coordinates to the picture."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float = 38

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        inner_width = self.width - self.left - self.right
        inner_height = self.height - self.top - self.bottom
        return self.left + across * inner_width, self.top + (1 - up) * inner_height


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    size: tuple[int, int] = (420, 280),
    name_lines: bool = True,
) -> Markup:
    """An <svg> that scales with its box; `title` is for screen readers. Empty if there is no line to draw."""
    if all(one.level or len(one.points) < 2 for one in series):
        return Markup("")  # a single dot shows no trend
    series = drawn_along([one for one in series if one.points])
    name_lines = name_lines and len(series) > 1
    frame = frame_for(series, y_range, x_ticks, size, name_lines)
    parts = [_grid(frame, x_ticks), _axis_names(frame, x_label, y_label), *(_line(frame, one) for one in series)]
    if name_lines:
        parts.append(_end_names(frame, series))
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img"><title>{}</title>{}</svg>').format(
        *size, title, Markup("").join(parts)
    )


def drawn_along(series: Sequence[Series]) -> list[Series]:
    """Levels drawn as lines from the first to the last point of the others."""
    xs = [x for one in series for x, _ in one.points if not one.level]
    return [
        replace(one, points=[(min(xs), one.points[0][1]), (max(xs), one.points[0][1])]) if one.level else one
        for one in series
    ]


def frame_for(
    series: Sequence[Series],
    y_range: tuple[float, float] | None,
    x_ticks: Sequence[float] | None,
    size: tuple[int, int],
    name_lines: bool,
) -> Frame:
    xs = [*(x for one in series for x, _ in one.points), *(x_ticks or ())]
    low, high = _wide(*(y_range or _data_range(series)))
    ticks = nice_ticks(low, high, _about(size[1]))
    if y_range is None:
        low, high = ticks[0], ticks[-1]
    left = 12 + 7.4 * max(len(f"{tick:g}") for tick in ticks)
    right = 14 + (7.6 * max(len(one.name) for one in series) if name_lines else 0)
    return Frame(_wide(min(xs), max(xs)), (low, high), *size, left=left, right=right, top=28 if size[1] > 200 else 10)


def _data_range(series: Sequence[Series]) -> tuple[float, float]:
    """The range of all points with their standard deviations."""
    ends = []
    for one in series:
        spread = [*(value or 0.0 for value in one.spread), *[0.0] * len(one.points)]
        ends += [y + sign * s for (_, y), s in zip(one.points, spread, strict=False) for sign in (-1, 1)]
    return min(ends), max(ends)


def _about(height: int | float) -> int:
    """How many ticks fit legibly."""
    return 5 if height > 200 else 3


def _wide(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that span low to high."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / about))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (factor * step) <= about)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(k * step, 10) for k in range(first, last + 1)]


def _grid(frame: Frame, x_ticks: Sequence[float] | None) -> Markup:
    parts = []
    for y in nice_ticks(*frame.y, _about(frame.height)):
        if frame.y[0] <= y <= frame.y[1]:
            _, at = frame.place(frame.x[0], y)
            line = '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
            parts.append(Markup(line).format(frame.left, frame.width - frame.right, at, at))
            parts.append(_text(frame.left - 6, at + 4, f"{y:g}", "end"))
    for x in x_ticks or [x for x in nice_ticks(*frame.x) if x == int(x)]:
        if frame.x[0] <= x <= frame.x[1]:
            at, _ = frame.place(x, frame.y[0])
            parts.append(_text(at, frame.height - frame.bottom + 15, f"{x:g}", "middle"))
    return Markup("").join(parts)


def _axis_names(frame: Frame, x_label: str, y_label: str) -> Markup:
    middle = (frame.left + frame.width - frame.right) / 2
    across = _text(middle, frame.height - 5, x_label, "middle", "axis")
    return across + _text(4, 14, y_label, "start", "heading")


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, text)


def _line(frame: Frame, one: Series) -> Markup:
    places = [frame.place(x, y) for x, y in one.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [Markup('<polyline class="line c{}"{} points="{}"/>').format(one.style % NUM_COLOURS, dash(one), path)]
    for point, spread in zip(one.points, one.spread, strict=False):
        if spread is not None:
            parts.append(_error_bar(frame, point, spread, one.style))
    if len(places) <= 30 and not one.level:
        parts += [_point(place, one, values) for place, values in zip(places, one.points, strict=True)]
    return Markup('<g class="series" data-series="{}">{}</g>').format(one.name, Markup("").join(parts))


def dash(one: Series) -> Markup:
    pattern = LEVEL if one.level else DASHES[one.style // NUM_COLOURS % len(DASHES)]
    return Markup(' stroke-dasharray="{}"').format(pattern) if pattern else Markup("")


def _error_bar(frame: Frame, point: tuple[float, float], spread: float, style: int) -> Markup:
    x, low = frame.place(point[0], point[1] - spread)
    _, high = frame.place(point[0], point[1] + spread)
    return Markup('<line class="spread c{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
        style % NUM_COLOURS, x, x, low, high
    )


def _point(place: tuple[float, float], one: Series, values: tuple[float, float]) -> Markup:
    said = Markup("<title>{}: {:g} → {:.4g}</title>").format(one.name, *values)
    return marker(*place, one.style, said)


def marker(x: float, y: float, style: int, inside: Markup = Markup("")) -> Markup:
    kind, colour, r = MARKERS[style % len(MARKERS)], style % NUM_COLOURS, 3.0
    if kind == "circle":
        return Markup('<circle class="mark c{}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>').format(
            colour, x, y, r, inside
        )
    corners = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "diamond": [(0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)],
        "triangle": [(0, -r - 1), (r + 1, r), (-r - 1, r)],
    }[kind]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return Markup('<polygon class="mark c{}" points="{}">{}</polygon>').format(colour, points, inside)


def _end_names(frame: Frame, series: Sequence[Series]) -> Markup:
    """The lines' names at their right ends, moved apart if they would overlap."""
    wanted = sorted((frame.place(*one.points[-1])[1], place) for place, one in enumerate(series))
    heights = spread_out([height for height, _ in wanted], frame.top, frame.height - frame.bottom)
    parts = []
    for height, (_, place) in zip(heights, wanted, strict=True):
        one = series[place]
        name = _text(frame.width - frame.right + 8, height + 4, one.name, "start", f"name c{one.style % NUM_COLOURS}")
        parts.append(name)
    return Markup("").join(parts)


def spread_out(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Ascending heights, at least LINE_HEIGHT apart and, as far as they fit, between top and bottom."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + LINE_HEIGHT if placed else top))
    limit = max(bottom, top + LINE_HEIGHT * (len(placed) - 1))
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - LINE_HEIGHT
    return placed


def legend(styles: Mapping[str, int]) -> Markup:
    """Marker and name of each line with its style, for charts too small for labels."""
    items = []
    for name, style in styles.items():
        key = Markup('<svg class="key" viewBox="0 0 26 12" aria-hidden="true"><polyline class="line c{}" '
                     'points="1,6 25,6"/>{}</svg>').format(style % NUM_COLOURS, marker(13, 6, style))  # fmt: skip
        items.append(Markup("<li>{}{}</li>").format(key, escape(name)))
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))
