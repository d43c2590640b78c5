"""What is said of load and latency."""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.latency import Distribution, Latency, Side
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.report.terminal.load import of_load, of_waits
from draftbench.run_folder.run import run_of


def side(p50: float, p99: float | None, largest: float) -> Side:
    def of(name: str) -> Distribution:
        return Distribution(of=name, values=100, p50=p50, p90=p50, p99=p99, largest=largest)

    return Side(
        time_per_output_token=of("request: time per output token"),
        chunk_gap=of("stream: gap between chunks"),
        time_to_first_token=of("request: time to first token"),
    )


def said(plain: Side, speculative: Side) -> list[str]:
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
    return of_waits(waits)[2:]


@pytest.mark.parametrize(
    ("speculative", "words"),
    [
        (side(0.1, 0.4, 0.5), "a better p50, 100 against 200 ms, but a worse p99, 400 against 300"),
        (side(0.3, 0.4, 0.5), "The gap between chunks has a worse p99, 400 against 300 ms."),
        (side(0.1, None, 0.9), "but a worse largest value, 900 against 500 ms"),
    ],
)
def test_a_worse_tail_is_said_and_with_it_a_better_median(speculative: Side, words: str) -> None:
    lines = said(side(0.2, 0.3, 0.5), speculative)
    lines = [line for line in lines if not line.startswith("The first token")]
    assert len(lines) == 2
    assert words in " ".join(lines)


def test_a_first_token_that_comes_later_is_said() -> None:
    lines = said(side(0.2, 0.3, 0.5), side(0.3, 0.2, 0.4))
    assert "The first token takes 1.5 times as long, 300 against 200 ms" in " ".join(lines)
    assert "first token" not in " ".join(said(side(0.2, 0.3, 0.5), side(0.23, 0.2, 0.4)))


def test_a_tail_that_is_no_worse_is_no_warning() -> None:
    assert said(side(0.2, 0.3, 0.5), side(0.1, 0.3, 0.5)) == []


def test_units_of_the_table_by_concurrency_say_whose_they_are(hand: Any) -> None:
    records = hand.loaded()
    one = recommend(run_of(hand.manifest(), records))
    assert of_load(one) == []
    several = recommend(run_of(hand.manifest(batches=(1, 2)), records))
    assert of_load(several)[0] == (
        "tokens/s: of all rows together while they decode; ms/token: of one request, its prefills "
        "included where those were timed. Each without speculation, then with it."
    )
    paid = recommend(
        run_of(hand.manifest(batches=(1, 2)), records),
        DecisionOptions(objective="cost", price_per_hour=3.6),
    )
    assert of_load(paid)[0].startswith("tokens/$: of all rows together")
