"""What a verdict says besides its figures: caveats, and where to look next."""

import pytest

from draftbench.acceptance.faults import SuspectedFault
from draftbench.gate.judge import judge
from draftbench.gate.metrics import parse_limit
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.words import SPEED_NOT_JUDGED

COUNTED = {"concurrency": 1, "arrivals": "closed"}
TRIED = COUNTED | {"alpha_definition": "acceptance rate (tried tokens)"}
NO_ALPHA = {"rows": lambda at: {"alpha_sum": None}, "alpha_definition": None}

LONG = {"rows": lambda at: {"tokens": 1000.0} if at == 0 else {}}


def written(first, others="a", count=40):
    """Of 40 responses, the first are one text and the others another."""
    return {"rows": lambda at: {"output": first if at < count else others}}


def asked(size):
    return {"rows": lambda at: {"prompt_tokens": size}}


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        ("only 29 requests", {"requests": 29}, {"requests": 29}),
        ("only one request:", {"requests": 1}, {"requests": 1}),
        # (1000 + 39 · 25)² tokens over 1000² + 39 · 25².
        ("only 40 requests, of lengths so unequal that they say as much as 4:", LONG, LONG),
        (
            "lacks them: 5 of the baseline's requests",
            {},
            {"requests": 60, "rows": lambda at: {"id": f"x{at}"} if at < 5 else {}},
        ),
        (
            "40% of the traffic's weight moved between requests",
            {},
            {"rows": lambda at: {"weight": 9.0 if at < 4 else 1.0}},
        ),
        ("no alpha: prompt lookup and heads have none", NO_ALPHA, NO_ALPHA),
        ("no alpha: the server did not say at which positions", TRIED, COUNTED | NO_ALPHA),
        ("no alpha: the baseline's server did not say", COUNTED | NO_ALPHA, TRIED),
        ("no alpha: one of the two was replayed", {}, TRIED),
        (
            "requests came at other times than in the baseline",
            {"arrivals": "poisson:2", "arrivals_digest": "a"},
            {"arrivals": "poisson:2", "arrivals_digest": "b"},
        ),
        ("save a new baseline", {}, {"accepted": lambda at: 17.0 + at % 2}),
        ("so the draft is what changed", written("a"), written("a") | {"accepted": 10.0}),
        ("to 30 of 40 requests changed", written("a"), written("b", count=30) | {"accepted": 10.0}),
        # The gate passes.
        ("responses to 12 of 40 requests changed", written("a"), written("b", count=12)),
        (
            "the same as before, though engine slots changed",
            written("a") | {"tested": {"draft": "small", "engine slots": "4"}},
            written("a") | {"tested": {"draft": "big", "engine slots": "8"}, "accepted": 10.0},
        ),
        (
            "40 of 40 requests have prompts of another length than before (+3 tokens): "
            "the chat template or the tokenizer changed",
            asked(50),
            asked(53),
        ),
        ("(+2 to +3 tokens)", asked(50), {"rows": lambda at: {"prompt_tokens": 52 + at % 2}}),
    ],
)
def test_a_caveat_is_noted_where_it_holds_and_not_where_it_does_not(run, words, old, new):
    notes = judge(run(**old), run(**new)).notes
    assert any(words in note for note in notes)
    assert not any(words in note for note in judge(run(), run()).notes)


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        ("at other times", *[{"arrivals": "poisson:2", "arrivals_digest": "a"}] * 2),
        ("at other times", {"arrivals": "poisson:2", "arrivals_digest": "a"}, {}),
        ("no alpha", TRIED, TRIED),
        ("another length", {}, asked(53)),  # lengths of the old are unknown
        ("another length", asked(53), {}),
        ("the same as before", {}, {"accepted": 13.0}),  # what was written is unknown
        ("by draft position", {"survival": ()}, {"survival": (), "accepted": 13.0}),
        ("only acceptance was judged", {}, {"accepted": 13.0}),
    ],
)
def test_what_is_the_same_or_unknown_is_not_noted(run, words, old, new):
    assert not any(words in note for note in judge(run(**old), run(**new)).notes)


def test_a_plain_pass_says_only_that_speed_was_not_judged(run):
    for fields in ({}, written("a")):
        (note,) = judge(run(**fields), run(**fields)).notes
        assert note == f"{SPEED_NOT_JUDGED}; sweep both with `--processes 3 --measure all`"
    assert "`--max-drop speedup:5%`" in SPEED_NOT_JUDGED


@pytest.mark.parametrize(
    ("engine", "advised"),
    [
        ("llama.cpp", "sweep both with `--engine llama.cpp --restarts 3`"),
        ("openai", "; a server that is running counts as one process"),
    ],
)
def test_how_speed_would_be_judged_on_an_engine_is_a_sweep_that_it_takes(run, engine, advised):
    fields = {"tested": {"engine": engine, "machine": "here"}}
    notes = judge(run(**fields), run(**fields)).notes
    assert any(note.startswith(SPEED_NOT_JUDGED) and advised in note for note in notes)
    assert not any("--processes" in note for note in notes)


def test_prompts_of_another_length_alone_pass(run):
    assert judge(run(**asked(50)), run(**asked(53))).verdict is Verdict.PASS


def test_a_failure_says_where_to_look(run):
    old = run(tested={"draft": "small", "machine": "here", "torch": "2.12", "numpy": "2"})
    new = run(
        13.0,
        survival=(0.6, 0.4, 0.06, 0.04),
        faults=(SuspectedFault(kind="cliff", message="position 3 was never accepted"),),
        tested={"draft": "small", "machine": "here", "target runner": "lean", "torch": "2.13"},
    )
    notes = judge(old, new).notes
    assert notes[0] == "suspected fault: position 3 was never accepted"
    # Hazards before 0.6 0.67 0.75 0.67, now 0.6 0.67 0.15 0.67.
    assert any("position 3 of 4" in note and "30.0%" in note for note in notes)
    assert "changed since the baseline: torch" in notes


def test_where_a_segment_fails_the_largest_drop_is_its_own(baseline, counts):
    """a loses 8% of its length, 1.6 times the limit; b 4%, and 3 of its 15 accepted of 40
    positions, almost twice the limit.
    """
    drops = {"a": (2.0, 0.0), "b": (1.0, 3.0)}
    old, new = (
        baseline([
            counts(f"{name}{at:02}", 15 - by * lost, segment=name, alpha_sum=15 - by * less)
            for name, (lost, less) in drops.items()
            for at in range(20)
        ])
        for by in (0, 1)
    )  # fmt: skip
    notes = judge(old, new, [*map(parse_limit, ["mean_accepted_length:5%", "alpha:0.04"])]).notes
    assert "largest drop by segment: b (alpha 0.38 → 0.30)" in notes


def test_the_alphas_of_a_replay_and_of_a_server_are_not_compared(run):
    metrics = {check.metric for check in judge(run(), run(10.0, **TRIED)).pooled}
    assert metrics == {"mean_accepted_length", "tokens_per_round"}
