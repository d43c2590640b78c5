import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.report.charts.svg import (
    Plot,
    counts_axis,
    doublings_axis,
    rows_axis,
    shares_axis,
    short,
    values_axis,
)


def texts(plot):
    """Every text of a drawing with its place: (words, x, y)."""
    root = ElementTree.fromstring(plot.svg("a drawing"))
    return [(t.text, float(t.get("x")), float(t.get("y"))) for t in root.iter("text")]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([0.93, 2.51], ["1.0", "1.5", "2.0", "2.5"]),
        ([0.0, 84.2], ["0", "20", "40", "60", "80"]),
        ([1.02, 1.04], ["1.020", "1.025", "1.030", "1.035", "1.040"]),
        ([3.0, 3.0], ["3.0"]),
    ],
)
def test_an_axis_is_marked_at_round_values_within_the_data(values, marks):
    axis = values_axis("", values)
    assert [words for _, words in axis.ticks] == marks
    assert axis.low <= min(values) <= max(values) <= axis.high


def test_a_value_outside_an_axis_is_moved_to_its_end():
    axis = shares_axis("")
    assert [axis.place(x) for x in (-1, 0, 0.25, 1, 3)] == [0, 0, 0.25, 1, 1]


def test_doublings_are_spaced_alike():
    axis = doublings_axis("", [1, 4, 16])
    one, four, sixteen = (axis.place(x) for x in (1, 4, 16))
    assert four - one == pytest.approx(sixteen - four)


def test_names_at_the_ends_of_lines_stand_apart_in_the_order_of_the_lines():
    plot = Plot(counts_axis("k", [1, 8]), shares_axis("share"), room=80)
    plot.names([(0.5, "middle", 0), (0.5, "also", 1), (0.02, "low", 2), (0.9, "high", 3)])
    places = {words: y for words, _, y in texts(plot)}
    ordered = [places[name] for name in ("high", "middle", "also", "low")]
    assert ordered == sorted(ordered)
    assert min(b - a for a, b in pairwise(ordered)) >= 15


def test_rows_stand_below_one_another_in_their_order():
    plot = Plot(values_axis("x", [0, 1]), rows_axis(["first", "second"]), upright=True)
    places = {words: y for words, _, y in texts(plot)}
    assert places["first"] < places["second"]


def test_an_interval_reaches_from_its_low_to_its_high_end():
    plot = Plot(values_axis("x", [0.0, 1.0]), rows_axis(["row"]), upright=True)
    plot.bar(Estimate(0.5, 0.0, 1.0), 0, 0)
    plot.bar(Estimate(0.5, 0.25, 0.75), 0, 1)
    root = ElementTree.fromstring(plot.svg(""))
    whole, half = [line for line in root.iter("line") if "interval" in line.get("class")]
    wide = [float(line.get("x2")) - float(line.get("x1")) for line in (whole, half)]
    assert wide[1] == pytest.approx(wide[0] / 2, abs=0.1)


def test_a_drawing_takes_its_colours_from_the_page():
    plot = Plot(counts_axis("k", [1, 2]), shares_axis("share"))
    plot.line([(1, 0.5), (2, 0.7)], 3)
    svg = plot.svg("words <for> it")
    assert not re.search(r"style=|(fill|stroke)=", svg)
    assert 'aria-label="words &lt;for&gt; it"' in svg


def test_a_file_is_an_svg_document_with_its_own_colours_and_title():
    plot = Plot(counts_axis("k", [1, 2]), shares_axis("share"))
    root = ElementTree.fromstring(plot.file("A <title>"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "A <title>"
    assert root.find("{http://www.w3.org/2000/svg}style") is not None


def test_a_long_name_keeps_its_quantization():
    assert short("organisation/model-of-many-words:int4") == "organisation/mod…ords:int4"
