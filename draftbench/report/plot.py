"""The style of every chart, over matplotlib: axes, intervals, names at the ends of lines.

matplotlib is imported where something is drawn: the commands that draw nothing start without it.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from draftbench.acceptance.intervals import Estimate
from draftbench.report.text import printable
from draftbench.safe_files import GENERATOR

# At 72 dots per inch a unit is a point, and a CSS pixel of a drawing that is not scaled.
WIDTH, HEIGHT, DPI = 400.0, 250.0, 72
SERIES = 7
# Width of a character at 12 px, what wide letters take more and the gap after them, height of a
# line, and most characters of a label.
_CHARACTER, _GAP, _LINE, _LONGEST = 7.0, 16.0, 15.0, 26
# Width of a point with the gap to the next one.
_POINT = 11.0

STYLE = files("draftbench.report").joinpath("page.css").read_text(encoding="utf-8")
# Files are drawn in the light colours of the page. On the page each colour becomes its CSS
# variable, which has another value in dark mode.
COLOURS = dict(re.findall(r"--(\w+): (#\w+);", STYLE.partition("@media")[0]))
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_STYLE: dict[Any, Any] = {
    # Names come from files: neither `$` nor `\` in them is a formula.
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "draftbench",
    "font.size": 12,
    "text.color": COLOURS["ink"],
    "axes.formatter.useoffset": False,
}
# The formats of files.
KINDS = ("svg", "png")
# The attributes that are kept for the page: no ids, links or clips, and no styles, which its policy
# forbids.
_KEPT = (
    *("d", "x", "y", "transform", "text-anchor", "font-weight", "fill", "fill-opacity"),
    *("stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity"),
)


@dataclass(frozen=True)
class Axis:
    """An axis: its range and its ticks, round numbers if None; `log` makes it logarithmic."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] | None = None
    log: bool = False


def values_axis(label: str, values: Sequence[float]) -> Axis:
    """An axis over all values, with a little room at both ends."""
    low, high = min(values), max(values)
    room = 0.04 * ((high - low) or max(abs(high), 1.0))
    return Axis(label, low - room if low else low, high + room)


def counts_axis(label: str, counts: Sequence[int]) -> Axis:
    """Whole numbers side by side, with half a step of room at either end."""
    low, high = min(counts), max(counts)
    marks = range(low, high + 1, max(1, math.ceil((high - low) / 10)))
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
    """A name as a label: a long one loses its middle, since a quantization level is at its end."""
    words = printable(name).replace("\n", " ")
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 10]}…{words[-9:]}"


class Plot:
    """A drawing: two axes with a grid, then whatever is put on them.

    Args:
        names: labels that `names` will put at the right, which must have room.
        upright: y has names of rows instead of values, so the grid lines are vertical.
    """

    def __init__(
        self, x: Axis, y: Axis, *, names: Sequence[str] = (), upright: bool = False
    ) -> None:
        from matplotlib.figure import Figure

        marks = ["0.00"] if y.ticks is None else [words for _, words in y.ticks]
        self._left = _GAP + _CHARACTER * max(map(len, marks), default=0)
        room = 14 + _CHARACTER * max((len(short(name)) for name in names), default=0)
        top, self._bottom = 4.0 if upright else 28.0, 38.0 if x.label else 20.0
        self.width, self._upright = WIDTH, upright
        self.height = 44.0 + 34.0 * len(marks) if upright else HEIGHT
        wide, tall = self._size = (WIDTH - self._left - room, self.height - top - self._bottom)
        with _styled():
            self._figure = Figure(dpi=DPI)
            self.axes = axes = self._figure.add_axes((0, 0, 1, 1), frame_on=False)
            axes.locator_params(nbins=6, steps=[1, 2, 5, 10])
            axes.set(axisbelow=True, **({"xscale": "log"} if x.log else {}))
            for axis, spec in ((axes.xaxis, x), (axes.yaxis, y)):
                if spec.ticks is not None:
                    axis.set_ticks([at for at, _ in spec.ticks], [word for _, word in spec.ticks])
                axis.minorticks_off()
                colour = COLOURS["ink" if upright and spec is y else "soft"]
                axis.set_tick_params(length=0, pad=8, labelcolor=colour)
            axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high))
            axes.grid(axis="x" if upright else "y", color=COLOURS["rule"], linewidth=1)
        self.words((2 - self._left, tall + 16), y.label, "left", "soft", "axes points")
        self.words((wide / 2, 4 - self._bottom), x.label, "center", "soft", "axes points")

    def line(self, points: Sequence[tuple[float, Estimate]], series: int) -> None:
        """A line through figures, in the band that their intervals cover."""
        x, y, low, high = zip(*((x, e.value, e.low, e.high) for x, e in points), strict=True)
        colour = COLOURS[f"c{series}"]
        self.axes.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
        self.axes.plot(x, y, color=colour, linewidth=2)

    def point(self, x: float, y: Estimate, series: int, *, hollow: bool = False) -> None:
        """A figure with its interval as a vertical line."""
        self._estimate((x, x, x), (y.low, y.value, y.high), series, hollow)

    def side_by_side(self, count: int) -> list[float]:
        """How far from a whole number each of so many points around it stands: a point's width
        apart, if the next number leaves room.
        """
        low, high = self.axes.get_xlim()
        step = min(_POINT * (high - low) / self._size[0], 0.9 / count)
        return [step * (at - (count - 1) / 2) for at in range(count)]

    def bar(self, x: Estimate, y: float, series: int, *, hollow: bool = False) -> None:
        """A figure with its interval as a horizontal line."""
        self._estimate((x.low, x.value, x.high), (y, y, y), series, hollow)

    def _estimate(self, x: Sequence[float], y: Sequence[float], series: int, hollow: bool) -> None:
        colour = COLOURS[f"c{series}"]
        self.axes.plot(x, y, color=colour, linewidth=2.5, alpha=0.45, solid_capstyle="butt")
        (dot,) = self.axes.plot(x[1], y[1], "o", ms=7, mew=0, color=colour, zorder=3, clip_on=False)
        if hollow:
            dot.set(mfc=COLOURS["paper"], mew=2)

    def slower(self, asked: float) -> None:
        """Shade all below 1×, and draw dashed lines at 1× and at the speed-up that is asked for."""
        self.axes.axvspan(self.axes.get_xlim()[0], 1, color=COLOURS["wash"], zorder=0)
        for value in {1.0, asked}:
            self.threshold(value)

    def threshold(self, at: float) -> None:
        """A dashed line across, as at 1×, where speculation neither wins nor loses."""
        line = self.axes.axvline if self._upright else self.axes.axhline
        line(at, color=COLOURS["ink"], linewidth=1, dashes=(4, 3))

    def ring(self, x: float, y: Estimate, words: str, top: float) -> None:
        """A circle around a point, and words above the intervals that reach up to `top`."""
        ink = COLOURS["ink"]
        self.axes.plot(x, y.value, "o", ms=16, mfc="none", mec=ink, mew=1.2, clip_on=False)
        self.words((x, top), words, above=12)

    def names(self, lines: Sequence[tuple[float, str, int]]) -> None:
        """Names at the right ends of lines (height, name, series), moved apart so as not to
        overlap.
        """
        ordered = sorted(lines, key=lambda line: -line[0])
        (low, high), (wide, tall) = self.axes.get_ylim(), self._size
        places: list[float] = []
        for value, _, _ in ordered:
            free = places[-1] - _LINE if places else tall
            places.append(min(tall * (value - low) / (high - low), free))
        below = min([0.0, *places])
        for at, (_, name, series) in zip(places, ordered, strict=True):
            place = (wide + 8, at - below - 4)
            self.words(place, short(name), "left", f"c{series}", "axes points")

    def words(
        self,
        place: tuple[float, float],
        words: str,
        align: str = "center",
        colour: str = "ink",
        coords: str = "data",
        above: float = 0,
    ) -> None:
        """Words at a place, in `coords` of matplotlib's `annotate`, and `above` units higher."""
        with _styled():
            text = self.axes.annotate(printable(words), place, (0, above), coords, "offset points")
        text.set(ha=align, color=COLOURS[colour], annotation_clip=False)

    def shapes(self) -> Iterator[tuple[str, dict[str, str], str | None]]:
        """The elements of the drawing as an SVG, in the colours of the page's variables: tag,
        attributes, text.

        The page forbids style attributes, and ids would clash with those of other drawings: each
        style becomes an attribute, and each use of a shape by id the shape itself.
        """
        outlines: dict[str, str] = {}
        for node in ElementTree.fromstring(self._drawn("svg")).iter():
            tag, words = node.tag.rpartition("}")[2], node.attrib
            if tag == "path" and "id" in words:
                outlines[f"#{words['id']}"] = words["d"]
            elif tag in ("path", "text", "use"):
                for part in filter(None, words.get("style", "").split("; ")):
                    name, value = part.split(": ", 1)
                    words[name] = _VARIABLES.get(value, value)
                if tag == "use":
                    tag, words["d"] = "path", outlines[words["{http://www.w3.org/1999/xlink}href"]]
                    words["transform"] = f"translate({words.pop('x')} {words.pop('y')})"
                yield tag, {name: words[name] for name in _KEPT if name in words}, node.text

    def save(self, path: Path, title: str) -> None:
        """Write `PATH.svg` and `PATH.png` with a title, on white."""
        for kind in KINDS:
            path.with_name(f"{path.name}.{kind}").write_bytes(self._drawn(kind, printable(title)))

    def _drawn(self, kind: str, title: str = "") -> bytes:
        (wide, tall), height = self._size, self.height + (28 if title else 0)
        place = (self._left / WIDTH, self._bottom / height, wide / WIDTH, tall / height)
        self._figure.set_size_inches(WIDTH / DPI, height / DPI)
        self.axes.set_position(place)
        how: dict[str, Any] = {"metadata": {"Software": GENERATOR}, "dpi": 2 * DPI}
        if kind == "svg":
            how = {"metadata": {"Creator": GENERATOR, "Date": None}}
        with _styled(), io.BytesIO() as file:
            at = {"x": 8 / WIDTH, "y": 1 - 6 / height}
            self._figure.suptitle(title, ha="left", fontsize=12, fontweight="bold", **at)
            self._figure.savefig(file, format=kind, transparent=not title, **how)
            return file.getvalue()


@contextmanager
def _styled() -> Iterator[None]:
    """matplotlib with the settings of charts, and without warnings of characters that its font
    lacks, since the reader's font has them.
    """
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Glyph|Matplotlib currently)")
        yield
