"""A drawing on matplotlib axes → SVG inside a page, or PNG and SVG files.

Inside a page the colours become the page's variables, so that one drawing reads on white, on black
and on paper, and styles become attributes, so that the page needs no inline styles. Knows how
things look; what is drawn is decided in `charts`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from draftbench.errors import UsageError
from draftbench.report.markup import Html
from draftbench.report.terminal.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's colours for the colour blind, darkened where they are too light for white paper.
PALETTE = ("#0072b2", "#d55e00", "#008060", "#a8508a", "#3a8fc0", "#a87400", "#6b6b6b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
INK, FAINT = "#1b1f24", "#b8bcc2"
VARIABLES = {INK: "currentColor", FAINT: "var(--faint)"} | {
    colour: f"var(--series-{at})" for at, colour in enumerate(PALETTE)
}

WIDTH, HEIGHT = 4.2, 3.0
_LONGEST = 26
_SVG = "http://www.w3.org/2000/svg"
_STYLE = {
    "font.size": 10,
    "xtick.labelsize": 9.2,
    "ytick.labelsize": 9.2,
    "legend.fontsize": 9.2,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.45,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    # Names come from files: a dollar sign in one is no formula.
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Drawing:
    """One figure: `sample` says how much it is drawn from, `note` how it is read."""

    name: str
    title: str
    sample: str
    note: str
    draw: Callable[[Axes], None]
    width: float = WIDTH
    height: float = HEIGHT


def label(name: str) -> str:
    """A name from a file as a short label that keeps its end, where a quantization level stands;
    matplotlib hides labels that begin with `_`.
    """
    shown = plain(name).replace("\n", " ")
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST - 10]}…{shown[-9:]}"
    return f" {shown}" if shown.startswith("_") else shown


def inline(drawing: Drawing, prefix: str) -> Html:
    """The drawing as an `<svg>` element without inline styles, in the colours of the page.

    `prefix` keeps its ids apart from those of another run's drawing.
    """
    stream = io.StringIO()
    options = {"svg.fonttype": "none", "svg.hashsalt": drawing.name, **_STYLE}
    with _drawn(drawing, options) as figure:
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for name in ("metadata", "style"):
            for child in parent.findall(f"{{{_SVG}}}{name}"):
                parent.remove(child)
    for node in root.iter():
        _unstyle(node)
    _rename(root, f"{prefix}{drawing.name}")
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"role": "img", "aria-label": plain(f"{drawing.title}. {drawing.sample}")}
    return Html(ElementTree.tostring(root, encoding="unicode"))


def save(drawing: Drawing, folder: Path) -> tuple[Path, Path]:
    """Write `NAME.png` and `NAME.svg`, on white, with their title and sample size.

    Raises:
        UsageError: the folder cannot be written.
    """
    paths = folder / f"{drawing.name}.png", folder / f"{drawing.name}.svg"
    options = {"svg.fonttype": "path", "svg.hashsalt": drawing.name, **_STYLE}
    with _drawn(drawing, options) as figure:
        words = f"{drawing.title}\n{drawing.sample}"
        figure.suptitle(words, x=0.02, ha="left", fontsize=10)
        wide, tall = figure.get_size_inches()
        figure.set_size_inches(1.25 * wide, 1.25 * tall + 0.3)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(paths[0], dpi=200)
            figure.savefig(paths[1], metadata={"Date": None})
        except OSError as error:
            raise UsageError(
                f"cannot write plots to `{folder}`: {error.strerror}",
                hint="take another folder for --plots",
            ) from error
    return paths


@contextmanager
def _drawn(drawing: Drawing, options: dict[str, object]) -> Iterator[Figure]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(options), warnings.catch_warnings():
        # A name in another script is drawn as boxes where the font lacks it; the page has it right.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(drawing.width, drawing.height), layout="constrained")
        drawing.draw(figure.subplots())
        yield figure


def _unstyle(node: ElementTree.Element) -> None:
    for declaration in node.attrib.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            # "9.5px 'DejaVu Sans', …": the size matters, the family is the page's.
            node.set("font-size", value.split()[0])
        elif name and not name.startswith("font-"):
            node.set(name, VARIABLES.get(value.lower(), value))
        elif name == "font-size":
            node.set(name, value)
    if node.tag == f"{{{_SVG}}}text" and "fill" not in node.attrib:
        node.set("fill", "currentColor")


def _rename(root: ElementTree.Element, name: str) -> None:
    """Ids that something refers to become unique in the page, the others go."""
    references = [
        (node, key, value.removeprefix("url(").removesuffix(")").removeprefix("#"))
        for node in root.iter()
        for key, value in node.attrib.items()
        if key.endswith("}href") or value.startswith("url(#")
    ]
    names = {old: f"{name}-{at}" for at, old in enumerate(sorted({r[2] for r in references}))}
    for node, key, old in references:
        node.set(key, node.attrib[key].replace(f"#{old}", f"#{names[old]}"))
    for node in root.iter():
        own = node.attrib.pop("id", None)
        if own in names:
            node.set("id", names[own])
