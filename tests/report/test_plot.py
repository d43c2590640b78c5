import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.report.plot import COLOURS, Axis, Plot, counts_axis, rows_axis, short, values_axis

SHARES = Axis("share", 0, 1, ((0, "0%"), (1, "100%")))


def texts(plot):
    """Every text of a drawing with its place: (words, x, y)."""
    texts = [(words, at) for tag, at, words in plot.shapes() if tag == "text"]
    return [(words, float(at["x"]), float(at["y"])) for words, at in texts]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([0.93, 2.51], ["1.0", "1.5", "2.0", "2.5"]),
        ([0.0, 84.2], ["0", "20", "40", "60", "80"]),
        ([1.02, 1.04], ["1.020", "1.025", "1.030", "1.035", "1.040"]),
    ],
)
def test_an_axis_is_marked_at_round_values_within_the_data(values, marks):
    axis = values_axis("", values)
    assert axis.low <= min(values) <= max(values) <= axis.high
    drawn = Plot(axis, rows_axis(["row"]), upright=True)
    assert [words for words, _, _ in texts(drawn) if words != "row"] == marks


def test_names_at_the_ends_of_lines_stand_apart_in_the_order_of_the_lines():
    lines = [(0.5, "middle", 0), (0.5, "also", 1), (0.02, "low", 2), (0.9, "high", 3)]
    plot = Plot(counts_axis("k", [1, 8]), SHARES, names=[name for _, name, _ in lines])
    plot.names(lines)
    places = {words: y for words, _, y in texts(plot)}
    ordered = [places[name] for name in ("high", "middle", "also", "low")]
    assert ordered == sorted(ordered)
    assert min(b - a for a, b in pairwise(ordered)) >= 15


def test_an_interval_reaches_from_its_low_to_its_high_end():
    plot = Plot(values_axis("x", [0.0, 1.0]), rows_axis(["row"]), upright=True)
    plot.bar(Estimate(0.5, 0.0, 1.0), 0, 0)
    plot.bar(Estimate(0.5, 0.25, 0.75), 0, 1)
    lines = [path for _, path, _ in plot.shapes() if path.get("stroke-width") == "2.5"]
    ends = [[float(x) for x in re.findall(r"[ML] (\S+)", line["d"])][::2] for line in lines]
    whole, half = (high - low for low, high in ends)
    assert half == pytest.approx(whole / 2)


@pytest.fixture
def everything():
    """A drawing with all that can be put on one."""
    plot = Plot(counts_axis("$k$", [1, 2]), SHARES)
    places = [(1, Estimate(0.5, 0.4, 0.6)), (2, Estimate(0.7, 0.6, 0.8))]
    plot.line(places, 3)
    plot.point(*places[0], 3, hollow=True)
    plot.ring(1, places[0][1], "choice", places[0][1].high)
    plot.threshold(0.5)
    plot.slower(1.5)
    plot.names([(0.7, "$\\frac$ <b> #0072b2 \ufffe 中", 3)])
    plot.words((1, 0.5), "$a$")
    return plot


def test_a_drawing_takes_its_colours_from_the_page(everything):
    nodes = [attributes for _, attributes, _ in everything.shapes()]
    drawn = {node.get(key) for node in nodes for key in ("fill", "stroke")} - {None, "none"}
    assert drawn <= {f"var(--{name})" for name in COLOURS}
    assert drawn >= {"var(--c3)", "var(--paper)", "var(--rule)", "var(--soft)"}


def test_a_drawing_on_the_page_has_no_id_link_clip_or_style(everything):
    shapes = list(everything.shapes())
    assert {tag for tag, _, _ in shapes} == {"path", "text"}
    assert not {name for _, at, _ in shapes for name in at} & {"id", "href", "style", "class"}
    assert not any("url(" in value for _, at, _ in shapes for value in at.values())


def test_a_name_is_drawn_as_it_is_and_never_read_as_a_formula(everything):
    words = [words for words, _, _ in texts(everything)]
    assert {"$k$", "$\\frac$ <b> #0072b2 \ufffd 中", "$a$"} <= set(words)


def test_a_file_is_a_drawing_with_its_title(everything, tmp_path):
    everything.save(tmp_path / "chart", "A <title> of $x$")
    root = ElementTree.parse(tmp_path / "chart.svg").getroot()
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "A <title> of $x$" in words
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_short_name_stands_within_the_drawing():
    """In DejaVu Sans, the widest of the page's fonts, `ngram` is 39.2 pixels wide."""
    drawn = Plot(values_axis("", [0.0, 1.0]), rows_axis(["ngram"]), upright=True)
    (end,) = [x for words, x, _ in texts(drawn) if words == "ngram"]
    assert end > 39.2


def test_a_long_name_keeps_its_quantization():
    assert short("organisation/model-of-many-words:int4") == "organisation/mod…ords:int4"
