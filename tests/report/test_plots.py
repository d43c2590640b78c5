import re
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure

from draftbench.acceptance.intervals import Estimate
from draftbench.errors import UsageError
from draftbench.planner.recommend import recommend
from draftbench.report.charts import drawings
from draftbench.report.charts.groups import crossed
from draftbench.report.charts.speed import economy
from draftbench.report.figures import Crossed, figures_of
from draftbench.report.plots import Drawing, inline, label, save
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run, run_of

REFERENCE = Path(__file__).parents[2] / "results/reference/qwen2.5-coder"


def axes_of(drawing):
    ax = Figure((drawing.width, drawing.height), layout="constrained").subplots()
    drawing.draw(ax)
    return ax


def drawn(hand, records):
    run = run_of(hand.manifest(batches=(1, 2)), records)
    answer = recommend(run)
    return drawings(answer, figures_of(run, answer))


@pytest.fixture(scope="module")
def whole(hand):
    return drawn(hand, hand.loaded())


@pytest.fixture(scope="module")
def reference():
    run = read_run(RunFolder(REFERENCE))
    answer = recommend(run)
    return answer, drawings(answer, figures_of(run, answer))


def test_a_whole_run_is_drawn_in_every_section_with_its_sample_size(whole):
    assert [key for key, group in whole.items() if not group] == ["crossed", "temperatures"]
    for drawing in (d for group in whole.values() for d in group):
        assert re.search(r"\d", drawing.sample)
        assert drawing.note


def test_file_names_are_unique(whole):
    names = [d.name for group in whole.values() for d in group]
    assert len(set(names)) == len(names)


def test_a_drawing_is_written_as_png_and_svg(whole, tmp_path):
    png, svg = save(whole["segments"][0], tmp_path / "plots")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_a_drawing_in_a_page_takes_the_colours_of_the_page(whole):
    drawing = whole["speed"][0]
    svg = inline(drawing, "")
    assert "var(--series-0)" in svg
    assert "currentColor" in svg
    assert "style=" not in svg
    assert not re.search(r'(fill|stroke)="#', svg)


def test_axes_say_their_units(whole):
    svg = inline(whole["times"][0], "")
    assert "mean time per output token (ms)" in svg


def test_the_crossover_is_drawn_where_speculation_stops_paying(whole):
    speedup, throughput = whole["load"]
    svg = inline(speedup, "")
    assert "pays up to 1" in svg
    assert "active decoding rows (concurrency)" in svg
    assert "tokens per second, all rows" in inline(throughput, "")


def test_the_word_at_the_choice_stands_above_its_bar_and_band(reference):
    answer, drawn = reference
    own = [c for c in answer.evaluations if c.draft == answer.choice.draft]
    (cell,) = [c for c in own if (c.quant, c.k) == (answer.choice.quant, answer.choice.k)]
    ax = axes_of(drawn["speed"][0])
    (word,) = [text for text in ax.texts if text.get_text() == "choice"]
    top = max(cell.speedup_predicted.high, cell.speedup_measured.high)
    assert word.xy == (pytest.approx(cell.k, abs=0.2), top)
    assert word.get_position()[1] > 0
    assert ax.get_ylim()[1] > top


def near(value):
    return Estimate(value, 0.98 * value, 1.02 * value)


def boxes(ax):
    """Every name of a line as (text, box) in pixels, and the box of the axes."""
    ax.get_figure().draw_without_rendering()
    names = [(text.get_text(), text.get_window_extent()) for text in ax.texts]
    return names, ax.get_window_extent()


@pytest.mark.parametrize(
    "spots",
    [
        [(0.05, 0.80), (0.051, 0.80), (0.052, 0.81)],
        [(0.30, 0.99), (0.30, 0.99), (0.31, 1.0)],
        [(0.001, 0.5)],
        [(1.4, 0.95), (1.4, 0.95), (0.02, 0.1)],
    ],
    ids=["together", "in the corner", "at the edge", "far apart"],
)
def test_names_of_equal_speed_ups_stand_apart_however_candidates_lie(hand, spots):
    answer = recommend(run_of(hand.manifest(), hand.perfect()))
    (cell, *_) = answer.evaluations
    cells = [
        msgspec.structs.replace(
            cell, draft=f"d{at}", best=True, alpha=near(rate), draft_cost_ratio=near(cost)
        )
        for at, (cost, rate) in enumerate(spots)
    ]
    (drawing,) = economy(msgspec.structs.replace(answer, evaluations=tuple(cells), choice=None))
    names, inside = boxes(axes_of(drawing))
    assert "1×" in [text for text, _ in names]
    assert not [text for text, box in names if box.overlaps(inside)]
    assert not [(a, b) for (a, one), (b, two) in combinations(names, 2) if one.overlaps(two)]


def test_names_of_equal_speed_ups_stand_outside_the_axes_of_a_real_run(reference):
    names, inside = boxes(axes_of(reference[1]["economy"][0]))
    assert {"1×", "1.25×", "1.5×", "2×"} <= {text for text, _ in names}
    assert not [text for text, box in names if box.overlaps(inside)]
    assert not [(a, b) for (a, one), (b, two) in combinations(names, 2) if one.overlaps(two)]


def test_every_candidate_has_a_line_at_a_glance_beside_plain_decoding(reference):
    answer, drawn = reference
    ax = axes_of(drawn["glance"][0])
    lines = [text.get_text() for text in ax.get_yticklabels()]
    assert lines[0] == "qwen0.5:int4, k = 5"
    assert len(lines) == len({(c.draft, c.quant) for c in answer.evaluations})
    # What a line comes to stands right of the axes: no bar gets there.
    figures = [(text.get_text(), text.xy[0]) for text in ax.texts]
    assert figures[0] == ("2.10×", 1.02)
    assert len(figures) == len(lines)


def test_a_cell_of_segment_and_temperature_says_how_many_requests_it_has(reference):
    (heat,) = reference[1]["crossed"]
    words = [text.get_text() for text in axes_of(heat).texts]
    # Nine chats at temperature 0, three at 1.
    assert [words.count(f"0.{rate}\n(n = {n})") for rate, n in (("81", 9), ("68", 3))] == [1, 1]
    assert len(words) == 4 * 3


def test_one_request_in_a_cell_is_no_figure():
    few = Crossed("draft", ["code"], [0.0, 1.0], [[2, 1]], [[near(0.5), None]])
    (heat,) = crossed(few)
    words = [text.get_text() for text in axes_of(heat).texts]
    assert words == ["0.50\n(n = 2)", "–\n(n = 1)"]


def test_one_number_of_rows_gives_no_curve(hand):
    assert drawn(hand, hand.perfect())["load"] == []


def test_a_name_with_a_formula_or_a_leading_underscore_is_shown_as_it_is(hand):
    svg = inline(drawn(hand, hand.perfect("_$x_1$"))["economy"][0], "")
    assert "_$x_1$" in svg


def test_a_long_name_keeps_its_quantization():
    assert label("organisation/model-of-many-words:int4") == "organisation/mod…ords:int4"


def test_plots_that_cannot_be_written_say_where(tmp_path):
    (tmp_path / "file").write_text("")
    drawing = Drawing("x", "x", "1", "x", lambda ax: None)
    with pytest.raises(UsageError, match="cannot write plots"):
        save(drawing, tmp_path / "file" / "plots")
