"""What a verdict says besides its figures: caveats, and where to look next."""

import msgspec
import pytest

from draftbench.acceptance.faults import SuspectedFault
from draftbench.gate.judge import judge
from draftbench.gate.limits import parse_limit
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.notes import SAME_RUN, SPEED_NOT_JUDGED


def noted(words, old, new):
    return any(words in note for note in judge(old, new).notes)


def test_a_plain_pass_says_only_that_speed_was_not_judged(run):
    assert judge(run(), run()).notes == (SPEED_NOT_JUDGED,)
    assert SPEED_NOT_JUDGED not in judge(run(), run(13.0)).notes
    assert "`--max-drop speedup:5%`" in SPEED_NOT_JUDGED


def test_a_run_against_itself_says_only_that_nothing_was_measured(run):
    same = run(requests=5)
    assert judge(same, same).notes == (SAME_RUN,)


def test_caveats_name_few_and_missing_requests_and_a_missing_alpha(run):
    assert noted("only 29 requests", run(requests=29), run(requests=29))
    assert noted("only one request:", run(requests=1), run(requests=1))
    new = run(requests=60, rows=lambda at: {"id": f"x{at}"} if at < 5 else {})
    assert noted("lacks them: 5 of the baseline's requests", run(), new)
    lookup, again = (run(rows=lambda at: {"alpha_sum": None}, alpha_definition=None) for _ in "ab")
    assert noted("no alpha", lookup, again)


def test_arrivals_at_other_times_are_noted(run):
    old, new = (run(arrivals="poisson:2", arrivals_digest=digest) for digest in ("a", "b"))
    assert noted("requests came at other times than in the baseline", old, new)
    assert not noted("at other times", old, old)


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
    """a loses 8% of its length, which is within the limit; b 4%, and 3 of its 15 accepted of 40
    positions, which is not.
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
    notes = judge(old, new, [*map(parse_limit, ["mean_accepted_length:20%", "alpha:0.04"])]).notes
    assert "largest drop by segment: b (alpha 0.38 → 0.30)" in notes


def test_a_failure_without_known_draft_positions_names_none(run):
    assert not noted("by draft position", run(survival=()), run(13.0, survival=()))


@pytest.mark.parametrize(
    ("others", "words"),
    [(0, "so the draft is what changed"), (30, "responses to 30 of 40 requests changed")],
)
def test_a_failure_says_whether_the_target_still_writes_the_same(run, others, words):
    old = run(rows=lambda at: {"output": "a"})
    new = run(10.0, rows=lambda at: {"output": "b" if at < others else "a"})
    assert noted(words, old, new)


def test_the_draft_is_not_blamed_where_the_engine_changed_too(run):
    old = run(rows=lambda at: {"output": "a"}, tested={"draft": "small", "engine slots": "4"})
    new = run(10.0, rows=lambda at: {"output": "a"}, tested={"draft": "big", "engine slots": "8"})
    assert noted("the same as before, though engine slots changed", old, new)
    assert not noted("so the draft is what changed", old, new)


def test_an_improvement_asks_for_a_new_baseline(run):
    assert noted("save a new baseline", run(), run(lambda at: 17.0 + at % 2))


def test_prompts_of_another_length_are_noted_and_pass(run):
    old, new = (run(rows=lambda at, size=size: {"prompt_tokens": size}) for size in (50, 53))
    result = judge(old, new)
    assert result.verdict is Verdict.PASS
    assert result.notes[0] == (
        "40 of 40 requests have prompts of another length than before (+3 tokens): "
        "the chat template or the tokenizer changed"
    )
    assert not noted("another length", run(), new)  # lengths of the old are unknown


def test_no_alpha_is_common_without_positions_or_between_a_server_and_a_replay(run):
    counted = {"concurrency": 1, "arrivals": "closed"}
    tried = run(**counted, alpha_definition="acceptance rate (tried tokens)")
    silent = run(rows=lambda at: {"alpha_sum": None}, **counted, alpha_definition=None)
    assert noted("no alpha: the server did not say at which positions", tried, silent)
    assert noted("no alpha: the baseline's server did not say", silent, tried)
    assert noted("no alpha: one of the two was replayed", run(), tried)
    assert not noted("no alpha", tried, tried)


def test_the_alphas_of_a_replay_and_of_a_server_are_not_compared(run):
    tried = run(10.0, concurrency=1, alpha_definition="acceptance rate (tried tokens)")
    assert {check.metric for check in judge(run(), tried).pooled} == {
        "mean_accepted_length",
        "tokens_per_round",
    }


def test_changed_responses_are_counted_where_the_gate_passes_too(run):
    old, new = (
        run(rows=lambda at, first=first: {"output": first if at < 12 else "a"}) for first in "ab"
    )
    result = judge(old, new)
    assert result.verdict is Verdict.PASS
    assert any("responses to 12 of 40 requests changed" in note for note in result.notes)
    again = msgspec.structs.replace(old, run="another")
    assert judge(old, again).notes == (SPEED_NOT_JUDGED,)


def test_a_server_that_read_other_weights_under_the_same_name_has_another_target(run):
    old, new = (
        run(tested={"target": "prod", "target weights": file}) for file in ("a.gguf", "b.gguf")
    )
    assert judge(old, new).notes[0] == (
        "the target is another model: target weights was a.gguf, is b.gguf"
    )
