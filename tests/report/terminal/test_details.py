"""What `recommend --all` adds, on hand-made records.

Without a draft 8 tokens take 8 s. Three passes of 1 s and five draft steps of 0.1 s are 3.5 s;
decoding took 4 s.
"""

import msgspec
import pytest
from draftbench.report.terminal.details import all_sections, loads, wait_notes

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Distribution, Latency, Side
from draftbench.report.terminal.text import Section
from draftbench.run_folder.run import run_of


def section(answer, title) -> Section:
    (found,) = [each for each in all_sections(answer) if each.title == title]
    return found


def test_each_speed_up_has_its_name_and_what_it_covers(hand):
    records = hand.perfect()
    for name in (f"r{at}" for at in range(2, 9)):
        records += [hand.trajectory(name), hand.replay(name, (1.0,) * 8)]
        records += [hand.decode(name, k, s) for k, s in ((0, 8.0), (2, 4.0)) if name != "r8"]
    records += [
        msgspec.structs.replace(hand.cost(model, 10, 1.0), what="prefill")
        for model in (None, "small")
    ]
    answer = recommend(run_of(hand.manifest(), records))
    # 8 / 3.5 predicted, times (8 / 4) / (8 / 3.5) on those that were measured; with prefills of a
    # second each 9 / 6 and 9 / 5.5.
    assert section(answer, "Speed-up of the best").rows == [
        ["cross-validated, decides", "2.00× (2.00–2.00)",
         "chosen on some requests, evaluated on others"],
        ["expected", "2.00× (2.00–2.00)", "the prediction, corrected by what was measured"],
        ["predicted", "2.29× (2.29–2.29)", "9 requests, from replay and pass timings"],
        ["measured", "2.00× (2.00–2.00)", "8 requests decoded; predicted for them: 14.3% higher"],
        ["expected, with prefills", "1.50× (1.50–1.50)", "end to end"],
        ["predicted, with prefills", "1.64× (1.64–1.64)", "end to end"],
    ]  # fmt: skip


def test_the_candidates_have_every_figure_of_their_best_k(hand):
    found = section(
        recommend(run_of(hand.manifest(), hand.perfect(requests=5))), "Candidates at their best k"
    )
    assert dict(zip(found.head, found.rows[0], strict=True)) == {
        "": "→",
        "draft": "small",
        "k": "2",
        "α": "1.00 ±0.00",
        "τ": "2.67 ±0.00",  # 8 tokens in 3 rounds
        "c": "0.10 ±0.00",
        "v(k+1)": "1.00 ±0.00",
        "predicted ×": "2.29 ±0.00",
        "measured ×": "2.00 ±0.00",
        "expected ×": "2.00 ±0.00",
        "memory": "0.059 kB",  # 40 bytes, and 19 tokens of a byte each
    }


def test_every_caveat_and_failure_is_named(hand):
    records = [*hand.perfect(), hand.failure("other", "out of memory")]
    answer = recommend(run_of(hand.manifest(), records))
    assert len(section(answer, "Caveats").notes) == len(answer.caveats)
    assert section(answer, "Not measured").notes == ["other: out of memory"]


def test_loads_are_shown_where_several_were_asked_with_their_units(hand):
    records = hand.loaded()
    assert loads(recommend(run_of(hand.manifest(), records))).rows == ()
    two = run_of(hand.manifest(batches=(1, 2)), records)
    found = loads(recommend(two))
    assert [row[0] for row in found.rows] == ["1", "2"]
    assert found.head[4:] == ["tokens/s", "with it", "ms/token", "with it"]
    assert found.notes[0].startswith("tokens/s: of all requests together while they decode")
    paid = recommend(two, DecisionOptions(objective="cost", price_per_hour=3.6))
    assert loads(paid).head[4] == "tokens/$"


def side(p50: float, p99: float | None, largest: float) -> Side:
    def of(name: str) -> Distribution:
        return Distribution(of=name, values=100, p50=p50, p90=p50, p99=p99, largest=largest)

    return Side(
        time_per_output_token=of("request: time per output token"),
        chunk_gap=of("stream: gap between chunks"),
        time_to_first_token=of("request: time to first token"),
    )


def notes(plain: Side, speculative: Side) -> list[str]:
    waits = Latency(
        draft="d",
        quant="none",
        k=2,
        concurrency=1,
        plain=plain,
        speculative=speculative,
        p99_ratio=1.0,
        p99_ratio_of="p99",
    )
    return wait_notes(waits)[2:]


@pytest.mark.parametrize(
    ("speculative", "words"),
    [
        (side(0.1, 0.4, 0.5), "better p50, 100 instead of 200 ms, but a worse p99, 400 instead of"),
        (side(0.3, 0.4, 0.5), "The gap between chunks has a worse p99, 400 instead of 300 ms."),
        (side(0.1, None, 0.9), "but a worse largest value, 900 instead of 500 ms"),
    ],
)
def test_a_worse_tail_is_named_and_with_it_a_better_median(speculative, words):
    lines = notes(side(0.2, 0.3, 0.5), speculative)
    lines = [line for line in lines if not line.startswith("The first token")]
    assert len(lines) == 2
    assert words in " ".join(lines)


def test_a_first_token_that_comes_later_is_named():
    late = notes(side(0.2, 0.3, 0.5), side(0.3, 0.2, 0.4))
    assert "The first token takes 1.5 times as long, 300 instead of 200 ms" in " ".join(late)
    assert "first token" not in " ".join(notes(side(0.2, 0.3, 0.5), side(0.23, 0.2, 0.4)))


def test_a_tail_that_is_no_worse_needs_no_words():
    assert notes(side(0.2, 0.3, 0.5), side(0.1, 0.3, 0.5)) == []
