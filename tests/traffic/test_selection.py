"""Stratified sampling: who is chosen and what they weigh."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.traffic.selection import Entry, allocate, choose


def entries(**sizes: int) -> dict[str, Entry]:
    return {
        f"{segment}{index}": Entry(index, 1.0, segment)
        for segment, size in sizes.items()
        for index in range(size)
    }


strata = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=6)


def heavy(shape: list[tuple[int, int]]) -> dict[str, Entry]:
    return {
        f"{place}-{index}": Entry(index, float(1 + index % weight), str(place))
        for place, (size, weight) in enumerate(shape)
        for index in range(size)
    }


def test_shares_follow_the_largest_remainder() -> None:
    # quotas of 10: 4.7, 3.4, 1.9 -> floors 4, 3, 1 -> the two left go to .9 and .7
    totals: dict[str | None, float] = {"a": 47.0, "b": 34.0, "c": 19.0}
    assert allocate(totals, {"a": 47, "b": 34, "c": 19}, 10) == {"a": 5, "b": 3, "c": 2}


def test_every_segment_gets_one_while_the_sample_has_room() -> None:
    totals: dict[str | None, float] = {"big": 990.0, "x": 5.0, "y": 5.0}
    assert allocate(totals, {"big": 990, "x": 5, "y": 5}, 10) == {"big": 8, "x": 1, "y": 1}


def test_a_segment_never_gives_more_than_it_has() -> None:
    # one prompt asked a thousand times is one request; its room goes to the others
    totals: dict[str | None, float] = {"same": 1000.0, "x": 10.0, "y": 10.0}
    assert allocate(totals, {"same": 1, "x": 10, "y": 10}, 9) == {"same": 1, "x": 4, "y": 4}


def test_with_more_segments_than_requests_the_heaviest_get_one_each() -> None:
    totals: dict[str | None, float] = {"a": 1.0, "b": 3.0, None: 2.0}
    assert allocate(totals, {"a": 1, "b": 3, None: 2}, 2) == {"a": 0, "b": 1, None: 1}


@given(strata, st.integers(1, 60), st.integers(0, 9))
def test_a_sample_has_its_size_and_segments_keep_their_weight(
    shape: list[tuple[int, int]], sample: int, seed: int
) -> None:
    everything = heavy(shape)
    weights = choose(everything, sample, seed)
    assert len(weights) == min(sample, len(everything))
    totals: Counter[str | None] = Counter()
    for entry in everything.values():
        totals[entry.segment] += entry.weight  # type: ignore[assignment]
    chosen: Counter[str | None] = Counter()
    for name, weight in weights.items():
        chosen[everything[name].segment] += weight  # type: ignore[assignment]
    assert chosen.keys() == totals.keys() or sample < len(totals)
    for segment, total in chosen.items():
        assert total == pytest.approx(totals[segment])


@given(strata, st.integers(1, 60), st.randoms())
def test_the_order_of_the_rows_does_not_decide(
    shape: list[tuple[int, int]], sample: int, random: object
) -> None:
    everything = heavy(shape)
    names = list(everything)
    random.shuffle(names)  # type: ignore[attr-defined]
    shuffled = choose({name: everything[name] for name in names}, sample, 3)
    assert shuffled.keys() == choose(everything, sample, 3).keys()


def test_weights_keep_their_proportions_inside_a_segment() -> None:
    rows = {"a": Entry(1, 6.0, "s"), "b": Entry(2, 2.0, "s"), "c": Entry(3, 4.0, "s")}
    weights = choose(rows, 2, 0)
    first, second = weights
    assert sum(weights.values()) == pytest.approx(12)
    ratio = rows[first].weight / rows[second].weight
    assert weights[first] / weights[second] == pytest.approx(ratio)


def test_without_a_sample_all_stay_as_they_are() -> None:
    rows = {"a": Entry(1, 6.0, "s"), "b": Entry(2, 2.0, None)}
    assert choose(rows, None, 0) == choose(rows, 2, 0) == {"a": 6.0, "b": 2.0}


def test_another_seed_chooses_others_and_the_order_stays() -> None:
    everything = entries(a=50)
    first, second = (list(choose(everything, 10, seed)) for seed in (0, 1))
    assert first != second
    assert first == [name for name in everything if name in first]


def test_a_new_segment_of_equal_share_leaves_the_choice_within_the_others() -> None:
    alone = set(choose(entries(a=50), 5, 0))
    beside = set(choose(entries(a=50, b=50), 10, 0))
    assert alone == {name for name in beside if name.startswith("a")}
