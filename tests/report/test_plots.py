import re

import pytest

from draftbench.errors import UsageError
from draftbench.plan.recommend import recommend
from draftbench.report.charts import drawings
from draftbench.report.figures import figures_of
from draftbench.report.plots import Drawing, inline, label, save
from draftbench.store.observed import observed


def drawn(hand, records):
    run = observed(hand.manifest(batches=(1, 2)), records)
    answer = recommend(run)
    return drawings(answer, figures_of(run, answer))


@pytest.fixture(scope="module")
def whole(hand):
    return drawn(hand, hand.loaded())


def test_a_whole_run_is_drawn_in_every_section_with_its_sample_size(whole):
    assert [key for key, group in whole.items() if not group] == ["temperatures"]
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
