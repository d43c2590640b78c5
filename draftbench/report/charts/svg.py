"""Axes, lines, intervals and words → one SVG drawing, coloured by the page or file it stands in.

Drawn here rather than with a plotting library: a page takes the drawings as markup whose colours
follow its light or dark style, and needs a dozen of them in a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.acceptance.intervals import Estimate
from draftbench.report.markup import Html, element
from draftbench.report.terminal.text import plain

WIDTH, HEIGHT = 400.0, 250.0
SERIES = 7
# At 12 px a character is about so wide.
_CHARACTER = 7.0
_LINE = 15.0
_LONGEST = 26
_TOP, _BOTTOM, _TITLE = 28.0, 38.0, 28.0


# A drawing in a file of its own has no page whose style it could take: white paper.
FILE_STYLE = """
svg { background: #fff; color: #1b1f24; font: 12px system-ui, sans-serif; }
text { fill: currentColor; } .tick, .axis { fill: #5b626b; } .value { font-weight: 600; }
.grid { stroke: #e2dfd7; } .mark { stroke: #1b1f24; stroke-dasharray: 4 3; }
.shade { fill: #f1efe9; } .ring { fill: none; stroke: #1b1f24; stroke-width: 1.2; }
.line { fill: none; stroke: currentColor; stroke-width: 2; }
.interval { stroke: currentColor; stroke-width: 2.5; stroke-opacity: 0.45; }
.band { fill: currentColor; fill-opacity: 0.14; } .dot { fill: currentColor; }
.hollow { fill: #fff; stroke: currentColor; stroke-width: 2; }
.c0 { color: #0072b2; } .c1 { color: #c2500a; } .c2 { color: #00795a; } .c3 { color: #a8508a; }
.c4 { color: #976800; } .c5 { color: #6b6b6b; } .c6 { color: #2f86b5; }
"""


@dataclass(frozen=True)
class Axis:
    """A range with the values that are marked on it; `log` spaces doublings alike."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value stands: 0 at the low end, 1 at the high one; values outside are moved to
        the end.
        """
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)


def values_axis(label: str, values: Sequence[float], unit: str = "") -> Axis:
    """An axis that holds all values with a little room, marked at three to seven round ones."""
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1.0)
    low, high = low - 0.04 * span if low else low, high + 0.04 * span
    power = 10.0 ** math.floor(math.log10(span / 6))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= span / 6)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    marks = [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Axis(label, low, high, tuple((mark, f"{mark:.{digits}f}{unit}") for mark in marks))


def shares_axis(label: str) -> Axis:
    """0 to 100 %."""
    return Axis(label, 0, 1, tuple((at / 4, f"{25 * at} %") for at in range(5)))


def counts_axis(label: str, counts: Sequence[int]) -> Axis:
    """Whole numbers side by side, with half a step of room at either end."""
    low, high = min(counts), max(counts)
    every = max(1, math.ceil((high - low) / 10))
    marks = range(low, high + 1, every)
    return Axis(label, low - 0.5, high + 0.5, tuple((float(at), str(at)) for at in marks))


def doublings_axis(label: str, counts: Sequence[int]) -> Axis:
    """Whole numbers on a logarithmic scale, each of them marked."""
    ticks = tuple((float(at), str(at)) for at in counts)
    return Axis(label, min(counts) / 1.3, max(counts) * 1.3, ticks, log=True)


def rows_axis(names: Sequence[str]) -> Axis:
    """Names below one another, the first on top at 0, the next at -1."""
    ticks = tuple((float(-at), short(name)) for at, name in enumerate(names))
    return Axis("", 0.5 - max(len(names), 1), 0.5, ticks)


def short(name: str) -> str:
    """A name from a file as a label that keeps its end, where a quantization level stands."""
    shown = plain(name).replace("\n", " ")
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 10]}…{shown[-9:]}"


class Plot:
    """A drawing in the making: two axes with a grid, then whatever is put on them.

    Args:
        room: units right of the axes, for names and figures that stand there.
        upright: the grid lines mark values of x, because y holds names.
    """

    def __init__(
        self,
        x: Axis,
        y: Axis,
        *,
        height: float = HEIGHT,
        room: float = 12.0,
        upright: bool = False,
    ) -> None:
        self.x, self.y, self.height = x, y, height
        widest = max((len(words) for _, words in y.ticks), default=0)
        self._left = 10.0 + _CHARACTER * widest
        self._right, self._bottom = WIDTH - room, height - (_BOTTOM if x.label else 20.0)
        self._top = 4.0 if upright else _TOP
        self._parts: list[Html] = []
        for value, words in x.ticks:
            at = self._across(value)
            if upright:
                self._add("line", "grid", x1=at, x2=at, y1=self._top, y2=self._bottom)
            self._words(at, self._bottom + 16, words, "middle", "tick")
        for value, words in y.ticks:
            at = self._down(value)
            if not upright:
                self._add("line", "grid", x1=self._left, x2=self._right, y1=at, y2=at)
            self._words(self._left - 8, at + 4, words, "end", None if upright else "tick")
        self._words(2, 12, y.label, "start", "axis")
        self._words((self._left + self._right) / 2, height - 4, x.label, "middle", "axis")

    def _across(self, value: float) -> float:
        return self._left + self.x.place(value) * (self._right - self._left)

    def _down(self, value: float) -> float:
        return self._bottom - self.y.place(value) * (self._bottom - self._top)

    def line(
        self, points: Sequence[tuple[float, float]], series: int, *, dashed: bool = False
    ) -> None:
        """A line through points."""
        path = " ".join(f"{self._across(x):.1f},{self._down(y):.1f}" for x, y in points)
        dashes = "5 4" if dashed else None
        self._add("polyline", f"line c{series}", points=path, stroke_dasharray=dashes)

    def band(self, places: Sequence[tuple[float, Estimate]], series: int) -> None:
        """What the intervals of a line cover."""
        above = [f"{self._across(x):.1f},{self._down(e.high):.1f}" for x, e in places]
        below = [f"{self._across(x):.1f},{self._down(e.low):.1f}" for x, e in reversed(places)]
        self._add("polygon", f"band c{series}", points=" ".join(above + below))

    def point(self, x: float, y: Estimate, series: int, *, hollow: bool = False) -> None:
        """A figure with its interval, upright."""
        at = self._across(x)
        ends = {"y1": self._down(y.low), "y2": self._down(y.high)}
        self._add("line", f"interval c{series}", x1=at, x2=at, **ends)
        self._dot(at, self._down(y.value), series, hollow)

    def bar(self, x: Estimate, y: float, series: int, *, hollow: bool = False) -> None:
        """A figure with its interval, lying."""
        at = self._down(y)
        ends = {"x1": self._across(x.low), "x2": self._across(x.high)}
        self._add("line", f"interval c{series}", y1=at, y2=at, **ends)
        self._dot(self._across(x.value), at, series, hollow)

    def _dot(self, x: float, y: float, series: int, hollow: bool) -> None:
        self._add("circle", f"{'hollow' if hollow else 'dot'} c{series}", cx=x, cy=y, r=3.5)

    def mark_x(self, value: float) -> None:
        """An upright dashed line, such as 1× where speculation neither wins nor loses."""
        at = self._across(value)
        self._add("line", "mark", x1=at, x2=at, y1=self._top, y2=self._bottom)

    def mark_y(self, value: float) -> None:
        """A level dashed line."""
        at = self._down(value)
        self._add("line", "mark", x1=self._left, x2=self._right, y1=at, y2=at)

    def shade_left_of(self, value: float) -> None:
        """The part of the drawing below a value, washed."""
        wide = self._across(value) - self._left
        tall = self._bottom - self._top
        self._add("rect", "shade", x=self._left, y=self._top, width=wide, height=tall)

    def ring(self, x: float, y: float, words: str, top: float) -> None:
        """A circle around a point, and a word above everything that reaches up to `top`."""
        self._add("circle", "ring", cx=self._across(x), cy=self._down(y), r=8.0)
        self._words(self._across(x), min(self._down(top), self._down(y) - 6) - 8, words, "middle")

    def figure(self, y: float, words: str) -> None:
        """A figure in a column right of the axes."""
        self._words(WIDTH - 2, self._down(y) + 4, words, "end", "value")

    def above(self, x: float, y: float, words: str) -> None:
        """Words above a point."""
        self._words(self._across(x), self._down(y) - 9, words, "middle")

    def names(self, ends: Sequence[tuple[float, str, int]]) -> None:
        """Names (height, name, series) of lines at their right ends, moved apart where they would
        stand on one another.
        """
        ordered = sorted(ends, key=lambda end: self._down(end[0]))
        places: list[float] = []
        for height, _, _ in ordered:
            free = places[-1] + _LINE if places else 0.0
            places.append(max(self._down(height), free))
        over = max(0.0, places[-1] - self._bottom) if places else 0.0
        for place, (_, name, series) in zip(places, ordered, strict=True):
            self._words(self._right + 8, place + 4 - over, short(name), "start", f"c{series}")

    def key(self, names: Sequence[tuple[str, int]]) -> None:
        """Names of the colours below the drawing, which grows by their lines."""
        x = self._left
        self.height += 6
        for name, series in names:
            wide = 26 + _CHARACTER * len(short(name))
            if x + wide > WIDTH or x == self._left:
                x, self.height = self._left, self.height + 17
            self._dot(x + 5, self.height - 8, series, hollow=False)
            self._words(x + 14, self.height - 4, short(name))
            x += wide

    def svg(self, description: str) -> Html:
        """The drawing; `description` stands for it where it cannot be seen."""
        return element(
            "svg",
            *self._parts,
            viewBox=f"0 0 {WIDTH:g} {self.height:g}",
            role="img",
            aria_label=description,
        )

    def file(self, title: str) -> str:
        """The drawing as an SVG file with its title, on white."""
        tall = self.height + _TITLE
        inner = [
            element("style", Html(FILE_STYLE)),
            element("text", title, x=8.0, y=18.0, class_="value"),
            element("g", *self._parts, transform=f"translate(0 {_TITLE:g})"),
        ]
        size = {"width": f"{2 * WIDTH:g}", "height": f"{2 * tall:g}"}
        box = f"0 0 {WIDTH:g} {tall:g}"
        svg = element("svg", *inner, viewBox=box, xmlns="http://www.w3.org/2000/svg", **size)
        return f"{svg}\n"

    def _words(
        self, x: float, y: float, words: str, anchor: str = "start", kind: str | None = None
    ) -> None:
        if words:
            shown = None if anchor == "start" else anchor
            self._parts.append(element("text", words, x=x, y=y, text_anchor=shown, class_=kind))

    def _add(self, name: str, kind: str, **attributes: str | float | None) -> None:
        self._parts.append(element(name, class_=kind, **attributes))


def room_for(names: Sequence[str]) -> float:
    """Units right of the axes that `Plot.names` needs."""
    return 14 + _CHARACTER * max((len(short(name)) for name in names), default=0)
