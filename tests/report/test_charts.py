from dataclasses import replace

import hand
import msgspec
import pytest
from scenes import trajectory

from draftbench.errors import UsageError
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.records import Sampling
from draftbench.report import charts as drawing
from draftbench.report.answer import candidates
from draftbench.report.text import shown


def charts_of(run, answer):
    return {chart.name: chart for chart in drawing.charts_of(run, answer)}


@pytest.fixture(scope="module")
def drawn():
    """drawn(records, …): the charts of a run made by hand."""

    def charts(records, **question):
        run = hand.run(records, **question)
        return charts_of(run, recommend(run))

    return charts


def words(chart):
    return [text for tag, _, text in chart.plot.shapes() if tag == "text"]


@pytest.fixture(scope="module")
def whole(drawn):
    return drawn(hand.loaded(), concurrency=(1, 2))


@pytest.fixture(scope="module")
def answer(answers):
    return answers["qwen2.5-coder"]


@pytest.fixture(scope="module")
def charts(reference, answer):
    return charts_of(reference, answer)


def test_a_whole_run_has_every_chart_with_its_numbers(whole):
    assert list(whole) == [
        "speedup-by-candidate",
        "tokens-per-round-by-k",
        "speedup-by-k",
        "speedup-by-concurrency",
        "latency",
        "tokens-per-round-by-group",
        "prediction-errors",
    ]
    for chart in whole.values():
        assert {len(row) for row in chart.table.rows} == {len(chart.table.head)}
        assert chart.caption.endswith(".")


def test_charts_that_cannot_be_written_say_where(whole, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write charts"):
        whole["speedup-by-k"].save(tmp_path / "file" / "charts")


def test_every_candidate_has_a_row(charts):
    chart = charts["speedup-by-candidate"]
    assert len(chart.table.rows) == 5
    assert "qwen0.5:int4, k = 5" in words(chart)


def test_where_latency_is_asked_for_the_speed_ups_drawn_are_those_of_the_table(
    reference, monkeypatch
):
    drawn = []
    monkeypatch.setattr(drawing, "bars", lambda label, rows, *_: drawn.append((label, rows)))
    answer = recommend(reference, DecisionOptions(objective="latency"))
    charts_of(reference, answer)
    label, rows = drawn[0]
    assert label == "end-to-end speed-up (×)"
    table = candidates(answer)
    column = next(at for at, name in enumerate(table.head) if name.startswith("speed-up"))
    assert [shown(row.figure).split()[0] for row in rows] == [
        shown(row[column]).split()[0] for row in table.rows
    ]


def test_the_choice_alone_is_marked(reference, answer, charts):
    assert words(charts["speedup-by-k"]).count("choice") == 1
    assert [row[0] for row in charts["speedup-by-candidate"].table.rows] == ["→", "", "", "", ""]
    open_decision = msgspec.structs.replace(answer, choice=None, decision="inconclusive")
    undecided = charts_of(reference, open_decision)
    assert "choice" not in words(undecided["speedup-by-k"])
    assert {row[0] for row in undecided["speedup-by-candidate"].table.rows} == {""}


def test_over_k_what_is_expected_stands_beside_what_is_measured(answer, charts):
    drafts = [each for each in answer.by_candidate if each.draft != "self"]
    measured = [each for each in answer.evaluations if each.speedup_measured]
    dots = [line for line in charts["speedup-by-k"].plot.axes.lines if line.get_marker() == "o"]
    dots = [line for line in dots if line.get_markersize() == 7]
    hollow = [line for line in dots if line.get_markerfacecolor() != line.get_color()]
    expected = sorted(drafts, key=lambda each: each.k)
    assert [line.get_ydata()[0] for line in hollow] == [e.speedup_expected.value for e in expected]
    assert len(dots) - len(hollow) == len(measured)
    # No two stand on one another.
    places = [line.get_xdata()[0] for line in dots]
    assert len(set(places)) == len(places)
    for name in ("tokens-per-round-by-k", "speedup-by-k"):
        assert "its own draft (self) is only in the numbers." in charts[name].caption


def test_the_line_over_k_is_of_what_is_expected_which_all_cells_correct_alike(answer, charts):
    """A prediction leaves out the cell that it is compared with, so lines of these have kinks."""
    lines = [list(line.get_ydata()) for line in charts["speedup-by-k"].plot.axes.lines]
    for name in ("qwen0.5:int4", "qwen0.5:int8"):
        own = [e for e in answer.evaluations if str(e.candidate) == name and e.stop is None]
        assert [e.speedup_expected.value for e in own] in lines
        assert [e.speedup_predicted.value for e in own] not in lines


def test_the_control_is_a_candidate_to_compare_with_and_drawn_nowhere_else(charts):
    with_control = [name for name, chart in charts.items() if "self" in " ".join(words(chart))]
    assert with_control == ["speedup-by-candidate"]
    assert "self" not in {row[3] for row in charts["tokens-per-round-by-group"].table.rows}


def test_each_decoded_configuration_has_the_error_of_its_prediction(answer, charts):
    chart, checked = charts["prediction-errors"], answer.prediction_error
    assert len(chart.table.rows) == checked.configurations == 32
    first = checked.by_configuration[0]
    where = [str(first.candidate), str(first.k), str(first.concurrency)]
    assert chart.table.rows[0] == [*where, f"{first.error:+.1%}"]
    assert {row[0] for row in chart.table.rows} < set(words(chart))


def test_waits_are_drawn_from_the_median_to_the_longest(charts):
    drawn = words(charts["latency"])
    assert drawn[-1] == "milliseconds"
    assert drawn[drawn.index("time to first token") + 1] == "with speculation"
    # 0.344 s in the median and 1.026 s at most, as the table says.
    assert {"344", "1026"} <= {cell for row in charts["latency"].table.rows for cell in row}


def test_the_speed_ups_by_concurrency_are_those_that_decide_as_in_the_table(answer, charts):
    deciding = [level.speedup_deciding.value for level in answer.by_concurrency]
    lines = charts["speedup-by-concurrency"].plot.axes.lines
    assert deciding in [list(line.get_ydata()) for line in lines]


def test_the_leader_of_each_concurrency_is_named_by_its_k_and_its_load_by_the_runner(
    reference, answer, drawn, whole
):
    built_in = words(whole["speedup-by-concurrency"])
    assert {"k = 2", "concurrency (active decoding rows)"} <= {*built_in}
    assert "speedup-by-concurrency" not in drawn(hand.perfect())
    question = msgspec.structs.replace(reference.manifest.question, engine="vllm")
    manifest = msgspec.structs.replace(reference.manifest, question=question)
    chart = charts_of(replace(reference, manifest=manifest), answer)
    assert "concurrency (requests in flight)" in words(chart["speedup-by-concurrency"])


def test_a_run_without_times_draws_acceptance_alone(drawn):
    assert list(drawn(hand.untimed())) == ["tokens-per-round-by-k"]


def test_more_candidates_than_colours_stand_in_the_table_alone(drawn):
    drafts = [f"d{at}" for at in range(9)]
    names = "0123456789"
    records = [trajectory(n, segment=str(int(n) % 2)) for n in names]
    records += [hand.replay(n, (1.0,) * 8, draft) for draft in drafts for n in names]
    charts = drawn(records)
    assert len(charts) == 2
    table = charts["tokens-per-round-by-group"].table
    assert {row[3] for row in table.rows} == set(drafts)
    chart = charts["tokens-per-round-by-k"]
    assert "Drawn are the first 7 of 9 candidates." in chart.caption
    assert len({word for word in words(chart) if word in drafts}) == 7
    assert {cell for row in chart.table.rows for cell in row} >= set(drafts)


def test_groups_are_sorted_and_counted_by_segment_and_temperature(drawn):
    hot = Sampling(temperature=0.7)
    records = [hand.facts(None)]
    for at, (segment, sampling) in enumerate(
        [*[("chat", Sampling())] * 5, *[("code", hot)] * 6, ("rare", hot)]
    ):
        # At k = 2 rounds of 3, 3 and 2 tokens; without acceptance eight of one.
        accept = (1.0,) * 8 if segment == "chat" else (0.0,) * 8
        records.append(trajectory(f"q{at}", segment=segment, sampling=sampling))
        records += [hand.replay(f"q{at}", accept), hand.lookup(f"q{at}")]
    chart = drawn(records)["tokens-per-round-by-group"]
    rows = [row for row in chart.table.rows if row[3] == "small"]
    assert [[*row[:3], shown(row[4])] for row in rows] == [
        ["segment", "chat", "5", "2.67 ±0.00"],
        ["segment", "code", "6", "1.00 ±0.00"],
        ["segment", "rare", "1", "–"],
        ["temperature", "0", "5", "2.67 ±0.00"],
        ["temperature", "0.7", "7", "1.00 ±0.00"],
    ]
    assert {shown(row[4]) for row in chart.table.rows if row[3] == "ngram"} == {"1.00 ±0.00", "–"}
    assert "temperature 0.7 (7)" in words(chart)


@pytest.mark.parametrize(("most", "drawn_at_all"), [(4, False), (5, True)])
def test_groups_of_too_few_requests_for_an_interval_are_not_drawn(drawn, most, drawn_at_all):
    records = []
    for at, segment in enumerate([*["chat"] * most, *["code"] * 4]):
        records += [trajectory(f"q{at}", segment=segment), hand.replay(f"q{at}", (1.0,) * 8)]
    assert ("tokens-per-round-by-group" in drawn(records)) is drawn_at_all
    # Neither is traffic of one segment and one temperature, nor a draft that was not replayed.
    unreplayed = [r for r in hand.perfect() if type(r).__name__ != "Replay"]
    for other in (hand.one_request(), unreplayed):
        assert "tokens-per-round-by-group" not in drawn(other)
