"""Rounds of the built-in decoder that a rule stops, by hand and on scripted models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import TimedRunner

from draftbench.decoder.runner import DecodeTask
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.scripted_model import markov
from draftbench.decoder.speculate import Batch, decode, decode_all
from draftbench.drafts.lookup.draft import LookupDrafter
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.drafts.model.self_check import distribution_fault
from draftbench.drafts.stack.draft import StackDrafter
from draftbench.drafts.stopping import STOP_RULES, THRESHOLDS
from draftbench.records import DraftingMode, Sampling, StopRule
from tests.decoder.test_speculate import (
    SAMPLINGS,
    alone,
    draft_lengths,
    drafter,
    noises,
    pair,
    seeds,
    task,
)

RULES = st.builds(
    StopRule, kind=st.sampled_from([*STOP_RULES]), threshold=st.sampled_from(THRESHOLDS)
)
WORDS = 8
# How sure the draft is of the next token after each of eight, which follow each other in a circle.
SURE = (0.9, 0.8, 0.5, 0.9, 0.95, 0.4, 0.9, 0.9)


def circle(sure, words=WORDS, **how):
    """A model that is so sure of the next token; all others are equally likely."""
    table = ((1 - torch.tensor(sure)) / (words - 1)).repeat(words, 1).T.contiguous()
    table[range(words), [*range(1, words), 0]] = torch.tensor(sure)
    return TimedRunner(markov(table.log()), words, **how)


def endless(limit, prompt=(WORDS - 1,)):
    uniforms = Uniforms("r", 0, limit + 1)
    return DecodeTask([*prompt], limit, Sampling(), uniforms, lambda output: False)


@pytest.mark.parametrize(
    ("kind", "threshold", "drafted", "proposed", "limit"),
    [
        # From 0 on it is .9, .8 and .5 sure; from 4 on .95 and .4; from 7 on .9, .9, .8 and .5.
        ("after", 0.6, [3, 2, 4], [3, 2, 4], 13),
        # From 0 on .9, .8 and .5; from 3 on .9, .95 and .4; from 6 on .9, .9, .9, .8.
        ("before", 0.6, [3, 3, 4, 0], [2, 2, 4, 0], 13),
        # The token at which it stops may be the first, and the last that it may draft.
        ("before", 0.92, [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], 7),
        ("before", 0.6, [3, 1], [2, 1], 6),
        # .9, .72, .36; .95, .38; .9, .81, .648.
        ("product", 0.7, [3, 2, 3, 0], [3, 2, 3, 0], 13),
        ("after", 0.1, [4, 4, 2], [4, 4, 2], 14),
    ],
)
def test_a_round_ends_where_the_draft_is_unsure(kind, threshold, drafted, proposed, limit):
    """The target agrees; every drafted token takes a pass of a quarter of a second."""
    target = circle((0.99,) * WORDS)
    model = ModelDrafter(circle(SURE, clock=target.clock, a_pass=0.25), DraftingMode.GREEDY)
    rule = StopRule(kind=kind, threshold=threshold)
    found = decode(endless(limit), target, model, 4, target.clock, rule)
    assert found.tokens == [at % WORDS for at in range(limit)]
    assert (found.drafted, found.proposed, found.accepted) == (drafted, proposed, proposed)
    assert found.draft_seconds == [tokens / 4 for tokens in drafted]


@pytest.mark.parametrize(("kind", "proposed"), [("after", 1), ("before", 3), ("product", 1)])
def test_a_rule_takes_its_confidence_among_all_tokens_or_the_ten_best(kind, proposed):
    """Of 30 tokens the best has .5 and each other .5 / 29: among ten it has .763."""
    model = ModelDrafter(circle((0.5,) * 30, 30), DraftingMode.GREEDY)
    target = circle((0.99,) * 30, 30)
    found = alone(endless(5, [29]), target, model, 3, StopRule(kind=kind, threshold=0.7))
    assert found.proposed[0] == proposed


def test_rows_that_are_unsure_wait_for_the_others():
    """From 4 on one stops at its second token, from 6 on the other drafts four: four steps."""
    target = circle((0.99,) * WORDS)
    model = ModelDrafter(circle(SURE, clock=target.clock, a_pass=0.25), DraftingMode.GREEDY)
    rule = StopRule(kind="after", threshold=0.6)
    tasks = [endless(6, [3]), endless(6, [5])]
    short, long = decode_all(tasks, target, model, 4, target.clock, 2, rule)
    assert (short.drafted[0], long.drafted[0]) == (2, 4)
    assert short.draft_seconds[0] == long.draft_seconds[0] == 1.0


@settings(max_examples=20)
@given(
    seed=seeds,
    noise=noises,
    k=draft_lengths,
    rows=st.integers(1, 4),
    limits=st.lists(st.integers(1, 15), min_size=1, max_size=6),
    mode=st.sampled_from([*DraftingMode]),
    rule=RULES,
    stacked=st.booleans(),
)
def test_a_rule_leaves_the_output_of_a_greedy_draft_and_every_row_as_they_are_alone(
    seed, noise, k, rows, limits, mode, rule, stacked
):
    """Drafts whose context ends, and what lookup finds first, included."""
    target, draft = pair(seed, noise)
    draft.context_length = 12
    tasks = [task(limit, SAMPLINGS[at % 3], sample=at) for at, limit in enumerate(limits)]

    def fresh():
        model = drafter(draft, mode)
        return StackDrafter(LookupDrafter(3, 2, "cpu"), model) if stacked else model

    together = decode_all(tasks, target, fresh(), k, target.clock, rows, rule)
    for work, found in zip(tasks, together, strict=True):
        expected = alone(work, target, fresh(), k, rule)
        assert found.tokens == expected.tokens
        assert (found.drafted, found.proposed) == (expected.drafted, expected.proposed)
        if mode is DraftingMode.GREEDY or work.sampling.temperature == 0:
            assert found.tokens == alone(work, target).tokens


@pytest.mark.slow
@pytest.mark.parametrize("mode", [DraftingMode.SAMPLED, DraftingMode.SAMPLED_TEMPERATURE_ONLY])
@pytest.mark.parametrize("kind", list(STOP_RULES))
def test_sampled_drafting_that_a_rule_stops_keeps_the_targets_distribution(kind, mode):
    assert distribution_fault(mode, StopRule(kind=kind, threshold=0.5)) is None


class TokenWatcher(ModelDrafter):
    """A drafter that wrongly looks at the token it drew: it proposes none that is unlikely."""

    def propose(self, asks, stop=None):
        found = super().propose(asks)
        return [
            None
            if each and any(q[0, t] <= 0.5 for q, t in zip(each.q, each.tokens, strict=True))
            else each
            for each in found
        ]


@pytest.mark.slow
def test_a_rule_that_looked_at_the_drawn_token_would_be_seen(monkeypatch):
    monkeypatch.setattr("draftbench.drafts.model.self_check.ModelDrafter", TokenWatcher)
    rule = StopRule(kind="before", threshold=0.5)
    assert distribution_fault(DraftingMode.SAMPLED, rule) is not None


def test_a_batch_prepares_for_every_length_of_a_stopped_round():
    target, model, prepared = circle((0.99,) * WORDS), circle(SURE), []
    make = target.new_cache
    target.new_cache = lambda *size: prepared.append([*size[2]]) or make(*size)
    for stop in (None, StopRule(kind="after", threshold=0.5)):
        drafting = ModelDrafter(model, DraftingMode.GREEDY)
        Batch([endless(4)] * 2, target, drafting, 3, target.clock, 2, stop)
    assert prepared == [[1, 4], [1, 2, 3, 4]]
