import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from draftbench.errors import UsageError
from draftbench.plan.recommend import recommend
from draftbench.report.charts import drawings
from draftbench.report.charts.across import across
from draftbench.report.figures import figures_of
from draftbench.report.plots import Drawing, inline, label, save
from draftbench.store.folder import RunFolder
from draftbench.store.observed import observed, read_run

REFERENCE = Path(__file__).parents[2] / "results/reference/qwen2.5-coder"


def axes_of(drawing):
    ax = Figure((drawing.width, drawing.height), layout="constrained").subplots()
    drawing.draw(ax)
    return ax


def drawn(hand, records):
    run = observed(hand.manifest(batches=(1, 2)), records)
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
    own = [c for c in answer.candidates if c.draft == answer.choice.draft]
    (cell,) = [c for c in own if (c.quant, c.k) == (answer.choice.quant, answer.choice.k)]
    ax = axes_of(drawn["speed"][0])
    (word,) = [text for text in ax.texts if text.get_text() == "choice"]
    top = max(cell.speedup_predicted.high, cell.speedup_measured.high)
    assert word.xy == (pytest.approx(cell.k, abs=0.2), top)
    assert word.get_position()[1] > 0
    assert ax.get_ylim()[1] > top


def test_the_names_of_equal_speed_ups_keep_away_from_candidates(reference):
    answer, drawn = reference
    ax = axes_of(drawn["economy"][0])
    right = ax.get_xlim()[1]
    names = [text for text in ax.texts if text.get_text()]
    assert "break-even" in [text.get_text() for text in names]
    models = [c for c in answer.candidates if c.draft == "qwen0.5"]
    spots = np.array([(c.draft_cost_ratio.value / right, c.alpha.value) for c in models])
    for text in names:
        x, y = text.get_position()
        assert np.hypot(*(spots - (x / right, y)).T).min() > 0.08


def test_every_candidate_has_a_line_at_a_glance_beside_plain_decoding(reference):
    answer, drawn = reference
    ax = axes_of(drawn["glance"][0])
    lines = [text.get_text() for text in ax.get_yticklabels()]
    assert lines[0] == "qwen0.5:int4, k = 3"
    assert len(lines) == len({(c.draft, c.quant) for c in answer.candidates})
    # What a line comes to stands right of the axes: no bar gets there.
    figures = [(text.get_text(), text.xy[0]) for text in ax.texts]
    assert figures[0] == ("1.95×", 1.02)
    assert len(figures) == len(lines)


def test_a_cell_of_segment_and_temperature_says_how_many_requests_it_has(reference):
    (heat,) = reference[1]["crossed"]
    words = [text.get_text() for text in axes_of(heat).texts]
    # Five chats at temperature 0, one at 0.7: no figure without an interval.
    assert any(re.fullmatch(r"0\.\d\d\n\(n = 5\)", text) for text in words)
    assert "–\n(n = 1)" in words
    assert len(words) == 4 * 3


def test_runs_are_drawn_beside_each_other_only_where_there_are_several(hand):
    run = observed(hand.manifest(), hand.perfect())
    slower = observed(hand.manifest(), hand.perfect("other"))
    answers = [("a", recommend(run)), ("b", recommend(slower))]
    assert across(answers[:1]) == []
    (drawing,) = across(answers)
    assert [text.get_text() for text in axes_of(drawing).get_yticklabels()] == ["small", "other"]


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
