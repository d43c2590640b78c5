"""Caveats of a run on a serving engine."""

import pytest
from msgspec import structs
from planner.engine_run import answers, run

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend


def caveat_of(made, **options):
    answer = recommend(made, DecisionOptions(**options))
    found = [caveat for caveat in answer.caveats if caveat.kind == "cached-prompts"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("load", "options", "decisive"),
    [
        ({}, {}, False),
        ({}, {"objective": "latency"}, True),
        ({"concurrency": 4}, {}, True),
        ({"load": "open", "concurrency": 2}, {}, True),
    ],
)
def test_prompts_that_the_server_had_read_are_decisive_where_prefills_count(
    load, options, decisive
):
    """Prompts have 8 tokens: of five, three had four cached with speculation, one without."""
    plain, drafting = answers(0, **load), answers(1, **load)
    for rows, count in ((plain, 1), (drafting, 3)):
        rows[:count] = [structs.replace(row, cached_tokens=4) for row in rows[:count]]
    question = {"batches": (load.get("concurrency", 1),)}
    if "load" in load:
        question = {"arrivals": "log"}
    found = caveat_of(run(*answers(0), *plain, *drafting, **question), **options)
    assert "(10% without speculation, 30% with speculation)" in found.text
    assert found.decisive is decisive


@pytest.mark.parametrize("cached", [0, None])
def test_nothing_is_said_of_a_cache_that_was_empty_or_is_unknown(cached):
    rows = [*answers(0, cached_tokens=cached), *answers(1, cached_tokens=cached)]
    assert caveat_of(run(*rows)) is None
