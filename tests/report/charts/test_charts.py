from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from draftbench.report.figures import figures_of

from draftbench.errors import UsageError
from draftbench.planner.recommend import recommend
from draftbench.report.charts import charts_of
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run, run_of

REFERENCE = Path(__file__).parents[3] / "results/reference/qwen2.5-coder"


def drawn(hand, records, **question):
    run = run_of(hand.manifest(**question), records)
    answer = recommend(run)
    return charts_of(answer, figures_of(run, answer))


def words(chart):
    return [node.text for node in ElementTree.fromstring(chart.plot.svg("")).iter("text")]


@pytest.fixture(scope="module")
def whole(hand):
    return drawn(hand, hand.loaded(), batches=(1, 2))


@pytest.fixture(scope="module")
def reference():
    run = read_run(RunFolder(REFERENCE))
    answer = recommend(run)
    return answer, charts_of(answer, figures_of(run, answer))


def test_a_whole_run_is_drawn_in_every_section_with_its_numbers(whole):
    assert [key for key, charts in whole.items() if not charts] == []
    for chart in (chart for charts in whole.values() for chart in charts):
        assert chart.table.rows
        assert {len(row) for row in chart.table.rows} == {len(chart.table.head)}
        assert chart.caption.endswith(".")


def test_file_names_are_unique(reference):
    names = [chart.name for charts in reference[1].values() for chart in charts]
    assert len(set(names)) == len(names) >= 9


def test_charts_that_cannot_be_written_say_where(whole, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write charts"):
        whole["segments"][0].save(tmp_path / "file" / "charts")


def test_every_candidate_has_a_row_with_its_speed_up_the_leader_first(reference):
    answer, charts = reference
    (chart,) = charts["candidates"]
    assert len(chart.table.rows) == len(answer.by_candidate) == 5
    assert "qwen0.5:int4, k = 5" in words(chart)
    assert next(word for word in words(chart) if word.endswith("×")) == "2.10×"
    assert chart.table.chosen == 0


def test_without_a_choice_no_row_is_marked(reference):
    answer, _ = reference
    undecided = msgspec.structs.replace(answer, choice=None, decision="inconclusive")
    run = read_run(RunFolder(REFERENCE))
    (chart,) = charts_of(undecided, figures_of(run, undecided))["candidates"]
    assert chart.table.chosen is None


def test_the_choice_is_marked_among_the_ks_of_its_draft_only(reference):
    marked = ["choice" in words(chart) for chart in reference[1]["k"]]
    assert marked == [True, False]


def test_the_control_is_a_candidate_to_compare_with_and_drawn_nowhere_else(reference):
    _, charts = reference
    assert "self, k = 1" in words(charts["candidates"][0])
    others = [chart for key in ("acceptance", "k", "segments") for chart in charts[key]]
    assert not [chart for chart in others if "self" in " ".join(map(str, words(chart)))]


def test_the_leader_of_each_concurrency_is_named_by_its_k(whole):
    speedup, throughput = whole["load"]
    assert "k = 2" in words(speedup)
    assert "concurrency (active decoding rows)" in words(speedup)
    assert "tokens per second, all rows" in words(throughput)


def test_one_concurrency_gives_no_curve(hand):
    assert drawn(hand, hand.perfect())["load"] == []


def test_a_run_without_times_draws_acceptance_alone(hand):
    records = [r for n in "01" for r in (hand.trajectory(n), hand.replay(n, (1.0,) * 8))]
    charts = drawn(hand, records)
    assert [key for key, found in charts.items() if found] == ["acceptance"]


def test_more_candidates_than_colours_stand_in_the_table_alone(hand):
    drafts = [f"d{at}" for at in range(9)]
    records = [r for n in "01" for r in (hand.trajectory(n, segment=n),)]
    records += [hand.replay(n, (1.0,) * 8, draft) for draft in drafts for n in "01"]
    charts = drawn(hand, records)
    for chart in (*charts["acceptance"], *charts["segments"]):
        assert "Drawn are the first 7 of 9 candidates." in chart.caption
        assert len({word for word in words(chart) if word in drafts}) == 7
        assert {cell for row in chart.table.rows for cell in row} >= set(drafts)
