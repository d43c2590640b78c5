"""Two runs made by hand and every difference between them; then the command.

A response has 9 tokens, 8 after the first. At k = 2 a draft that is always right needs 3 target
passes for them (3 + 3 + 2 tokens), one that is always wrong needs 8. There are six requests, of
which the second three are bad in run B.
"""

import json
from dataclasses import replace

import hand
import pytest
from msgspec.structs import replace as replaced
from scenes import OTHER_TEXT, manifest, served, trajectory

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.compare import changes
from draftbench.cli.output import rendered
from draftbench.errors import IncomparableError
from draftbench.gate.compare import CandidateChange, FigureChange, compare_runs
from draftbench.gate.judge import judge
from draftbench.gate.make_baseline import make_baseline
from draftbench.gate.metrics import Limit
from draftbench.records import Candidate, DraftingMode, Sampling, Trajectory
from draftbench.run_folder.run import run_of

SIX = 6
SMALL = Candidate(draft="small")
ALPHA, COST = ("α", None, None), ("c", None, None)
TOKENS, SPEED = ("tokens per round", 2, 2), ("S measured", 2, 2)


@pytest.fixture
def made():
    """made(seconds, accept, draft): a request for each of `seconds`, which it takes at k = 2; plain
    decoding takes 8 s.
    """

    def records(seconds=(4.0,) * SIX, accept=(1.0,) * SIX, draft="small"):
        found = [r for r in hand.perfect(draft) if not hasattr(r, "request")]
        for at, (took, rate) in enumerate(zip(seconds, accept, strict=False)):
            name = f"r{at}"
            found += [trajectory(name), hand.replay(name, (rate,) * 8, draft)]
            found += [hand.decode(name, 0, 8.0, draft)]
            found += [hand.decode(name, 2, took, draft, **{} if rate else OTHER_TEXT)]
        return found

    return records


@pytest.fixture
def changed(made):
    """changed(kind, …): the records with fields of one kind changed, those of the target kept."""

    def records(kind, **fields):
        def changes(record):
            mine = getattr(record, "candidate", SMALL) == SMALL
            return type(record).__name__ == kind and mine

        return [replaced(r, **fields) if changes(r) else r for r in made()]

    return records


@pytest.fixture
def run_a(made):
    return hand.run(made())


@pytest.fixture
def run_b(made):
    """As A, but on three the draft is always wrong, and k = 2 takes 8 s there instead of 4."""
    return hand.run(made((4.0, 8.0) * 3, (1.0, 0.0) * 3))


def compared(a, b):
    return compare_runs(("a", "b"), a, b)


def render(found, style="table", *, everything=False):
    sections = changes(found, everything=everything or style == "markdown")
    return rendered(found, sections, style, 80, "" if everything else "--all")


def figures(a, b, candidate=0):
    found = compared(a, b).candidates[candidate].figures
    return {(row.figure, row.k_a, row.k_b): row for row in found}


def words(found):
    """The last column of the table, by figure."""
    text = render(found, "markdown")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[1]: row[-1] for row in rows[2:]}


def by_the_gate(a, b, limit=0.02):
    baselines = (make_baseline(run, SMALL, 2) for run in (a, b))
    result = judge(*baselines, [Limit(metric="speedup", value=limit, relative=True)])
    return result.pooled[0]


def test_a_run_compared_with_itself_has_not_changed(run_a):
    found = compared(run_a, run_a)
    assert (found.caveats, found.question, found.environment, found.models) == ((), (), (), ())
    for row in found.candidates[0].figures:
        assert row.obstacle is None
        assert (row.difference.value, row.difference.low, row.difference.high) == (0, 0, 0)


def test_differences_are_b_less_a_on_the_same_requests(run_a, run_b):
    found = figures(run_a, run_b)
    rate = found[ALPHA]
    assert (rate.difference.value, rate.ratio.value, rate.requests) == (-0.5, 0.5, SIX)
    assert found[TOKENS].difference.value == pytest.approx(16 / 11 - 16 / 6)
    # 48 tokens in 24 s against 48 in 48 s; then 48 in 36 s.
    assert found[SPEED].difference.value == pytest.approx(16 / 12 - 2)
    assert found[SPEED].ratio.value == pytest.approx(2 / 3)


def test_each_run_at_its_own_best_k_where_these_differ(made, run_a):
    # Drafting costs three target steps: the shortest k loses least.
    records = [r for r in made() if type(r).__name__ not in ("CostPoint", "Decode")]
    records += [hand.cost(None, n, 1.0) for n in (1, 2, 3)]
    records += [hand.cost("small", n, 3.0) for n in (1, 2)]
    found = figures(run_a, hand.run(records))
    own = ("tokens per round", 2, 1)
    assert {key for key in found if key[0] == "tokens per round"} == {TOKENS, own}
    # 4 passes of two tokens at k = 1.
    assert found[own].difference.value == pytest.approx(2 - 8 / 3)
    assert found[SPEED].obstacle == "only one run has it"


def test_costs_are_compared_by_their_timings_if_both_runs_have_them(made, changed, run_a):
    cost = figures(run_a, hand.run(changed("CostPoint", seconds=(0.2,) * 3)))[COST]
    assert (cost.a.value, cost.b.value) == pytest.approx((0.1, 0.2))
    assert (cost.difference.value, cost.ratio.value) == pytest.approx((0.1, 2.0))
    untimed = [r for r in made() if type(r).__name__ != "CostPoint"]
    cost = figures(run_a, hand.run(untimed))[COST]
    assert (cost.b, cost.difference, cost.obstacle) == (None, None, "only one run has it")


def test_modes_are_never_subtracted(made, run_a):
    sampled = DraftingMode.SAMPLED
    records = [replaced(r, mode=sampled) if hasattr(r, "mode") else r for r in made()]
    run_b = hand.run(records, mode=sampled)
    found = figures(run_a, run_b)
    assert found[ALPHA].difference is None
    told = "two drafting modes: greedy and sampled"
    for everything in (False, True):
        assert told in render(compared(run_a, run_b), everything=everything)
    assert (found[TOKENS].obstacle, found[TOKENS].a.value) == (told, pytest.approx(8 / 3))


def test_other_keys_cannot_be_paired(made, run_a):
    found = compared(run_a, hand.run(made(), key_id="other"))
    assert "DRAFTBENCH_KEY" in found.caveats[0]
    assert found.common_requests is None
    told = " ".join(render(found, everything=True).split())
    assert told.count("equests cannot be matched: the runs used different DRAFTBENCH_KEYs") == 1
    assert "key of the hashes: key → other" in told
    assert [(c.fact, c.a, c.b) for c in found.question] == [("key_id", "key", "other")]


def test_other_requests_leave_both_figures_side_by_side(made, run_a):
    moved = [replaced(r, request=f"x{r.request}") if hasattr(r, "request") else r for r in made()]
    other = hand.run(moved)
    found, row = compared(run_a, other), figures(run_a, other)[ALPHA]
    assert "no request is in both" in found.caveats[0]
    assert (row.a.value, row.b.value, row.difference) == (1.0, 1.0, None)
    assert row.obstacle == "no common requests"
    assert words(found)["α"] == "not comparable"


def test_other_answers_of_the_target_are_named(made, run_a):
    records = made()
    at = next(at for at, r in enumerate(records) if isinstance(r, Trajectory))
    records[at] = replaced(records[at], digest="other")
    assert "output differs on 1 of 6 responses" in compared(run_a, hand.run(records)).caveats[0]


def test_times_of_another_machine_or_of_other_threads_are_not_compared_nor_gated(made, run_a):
    other = hand.run(made(), cores=4)
    found = compared(run_a, other)
    assert "different machines" in found.caveats[0]
    assert found.environment == ("cores: 2 → 4",)
    same, not_comparable = "the same", "not comparable"
    assert words(found) == {
        "α": same, "tok/round": same, "c": not_comparable, "measured ×": not_comparable
    }  # fmt: skip
    with pytest.raises(IncomparableError, match="measured elsewhere: machine"):
        by_the_gate(run_a, other)
    threads = hand.run(made(), threads=2)
    assert (
        compared(run_a, threads)
        .caveats[0]
        .startswith(
            "times (c, speed-up) were taken with different numbers of CPU threads (1 and 2)"
        )
    )
    for run, why in (
        (other, "on different machines"),
        (threads, "with different numbers of CPU threads (1 and 2)"),
    ):
        for row in (figures(run_a, run)[key] for key in (COST, SPEED)):
            assert (row.difference, row.ratio) == (None, None)
            assert row.obstacle == f"not comparable: timed {why}"


SLOWER = (5.0, 6.0, 5.5, 6.2, 5.1, 5.9)


def test_a_speed_up_has_the_gates_interval_and_its_sign(made, run_a):
    slower = hand.run(made(SLOWER))
    gated, row = by_the_gate(run_a, slower).difference, figures(run_a, slower)[SPEED]
    for end in ("value", "low", "high"):
        assert getattr(row.ratio, end) == pytest.approx(1 + getattr(gated, end))
    assert gated.high < 0
    for pair, word in (((run_a, slower), "lower"), ((slower, run_a), "higher")):
        assert words(timed_in(3, compared(*pair)))["measured ×"] == word


def test_a_time_of_fewer_than_three_processes_is_neither_higher_nor_lower(made, run_a):
    """As in the gate: a restart can differ by more than the interval over requests says."""
    found = compared(run_a, hand.run(made(SLOWER)))
    assert {row.processes for row in found.candidates[0].figures if row.figure[0] in "cS"} == {1}
    for processes, word in ((1, "unclear"), (2, "unclear"), (3, "lower")):
        again = timed_in(processes, found)
        assert words(again)["measured ×"] == word
        assert ("fewer than 3 processes" in render(again)) is (processes < 3)


def timed_in(processes, comparison):
    """The comparison as if its times were of so many processes."""
    (change,) = comparison.candidates
    figures = (
        (row.processes and replace(row, processes=processes)) or row for row in change.figures
    )
    return replace(comparison, candidates=(replace(change, figures=tuple(figures)),))


@pytest.mark.parametrize(
    ("ks", "low", "high", "word"),
    [
        # As "+0.030 ±0.016" the first would look clear of 0.
        ((None, None), -0.001, 0.031, "unclear"),
        ((None, None), 0.001, 0.1, "higher"),
        ((None, None), -0.1, -0.001, "lower"),
        ((3, 2), -0.1, -0.001, "another k"),
    ],
)
def test_a_difference_shows_both_ends_and_is_judged_at_one_k(run_a, ks, low, high, word):
    level, difference = Estimate(1.0, 0.9, 1.1), Estimate(0.03, low, high)
    ratio = Estimate(1.03, 1 + low, 1 + high)
    row = FigureChange("α", *ks, level, level, difference, ratio, SIX, None)
    found = replace(compared(run_a, run_a), candidates=(CandidateChange("small", (row,)),))
    assert words(found) == {"α": word}
    assert f"+0.030 [{low:+.3f}, {high:+.3f}]" in render(found, everything=True)


def test_a_request_counts_as_often_in_both_runs(made):
    """In B, a sample of the log, each request stands for one row; in A the bad ones for two."""

    def weighed(weights):
        records = made(accept=(1.0, 0.0) * 3)
        return hand.run(
            [
                replaced(r, weight=weights[int(r.request[1])]) if isinstance(r, Trajectory) else r
                for r in records
            ]
        )

    row = figures(weighed((1.0, 2.0) * 3), weighed((1.0,) * 6))[ALPHA]
    # Of 9 rows 3 are accepted.
    assert (row.a.value, row.b.value, row.difference.value) == pytest.approx((1 / 3, 1 / 3, 0))


def test_four_common_requests_are_too_few_to_tell(made):
    runs = [hand.run(made((4.0,) * requests)) for requests in (6, 4)]
    for row in (figures(*runs)[SPEED], figures(*runs)[TOKENS]):
        assert (row.difference, row.obstacle) == (None, "4 common requests: too few to tell")
    assert words(compared(*runs))["measured ×"] == "too few requests"


@pytest.mark.parametrize(
    ("asked", "heat", "words"),
    [
        ({"max_new_tokens": 500}, 0, "--max-new-tokens was none, is 500"),
        ({"samples": 2}, 0, "--samples was 1, is 2"),
        ({"responses": "log"}, 0, "--responses was target, is log"),
        ({"temperature": 0.8}, 0, "--temperature was none, is 0.8"),
        ({}, 0.8, "6 of 6 were sampled with other settings"),
    ],
)
def test_speed_ups_of_responses_of_two_kinds_are_not_subtracted(made, run_a, asked, heat, words):
    sampled = Sampling(temperature=heat)
    records = [replaced(r, sampling=sampled) if isinstance(r, Trajectory) else r for r in made()]
    row = figures(run_a, hand.run(records, **asked))[SPEED]
    assert (row.difference, row.obstacle) == (None, f"not comparable: {words}")


def test_what_was_asked_and_loaded_otherwise_is_listed_on_one_screen_by_name(changed, run_a):
    found = compared(run_a, hand.run(changed("ModelFacts", fingerprint="g"), ks=(1, 2, 3)))
    assert [(c.fact, c.a, c.b) for c in found.question] == [("ks", "1, 2", "1, 2, 3")]
    assert "- --k: 1, 2 → 1, 2, 3" in render(found, "markdown").replace("\\", "")
    assert [(c.fact, c.a, c.b) for c in found.models] == [("small fingerprint", "", "g")]
    shown = render(found)
    assert "  Different settings: --k\n  Different models: small fingerprint\n" in shown
    assert "1, 2, 3" not in shown


@pytest.mark.parametrize(
    ("targets", "drafts", "listed"),
    [
        (("f", "f"), ("g", "g"), []),
        (("f", "h"), ("g", "g"), ["target"]),
        (("f", "f"), ("g", "h"), ["drafts"]),
        (("", ""), ("", ""), ["target", "drafts"]),  # no file was read
        ((None, None), (None, None), ["target", "drafts"]),  # a draft that only servers know
    ],
)
def test_one_model_under_two_paths_is_no_difference(run_a, targets, drafts, listed):
    one, other = (
        replace(
            run_a,
            facts=tuple(
                replaced(each, fingerprint=draft if each.candidate else target)
                for each in run_a.facts
                if target is not None
            ),
        )
        for target, draft in zip(targets, drafts, strict=True)
    )
    paths = {"target": "/models/target", "drafts": ("/models/small",)}
    question = replaced(other.manifest.question, **paths)
    moved = replaced(other.manifest, question=question, specs={"small": "/models/small"})
    other = replace(other, manifest=moved)
    assert [c.fact for c in compared(one, other).question] == listed


def test_candidates_of_one_run_are_named(made, run_a):
    both = compared(run_a, hand.run([*made(), *made(draft="tiny")]))
    assert (both.only_a, both.only_b) == ((), ("tiny",))
    assert [change.candidate for change in both.candidates] == ["small"]
    control = compared(*[hand.run([*made(), *made(draft="self")])] * 2)
    assert "self  " not in render(control)
    assert "self  " in render(control, everything=True)
    neither = compared(run_a, hand.run(made(draft="tiny")))
    assert "No candidate is in both runs." in render(neither)
    assert neither.common_requests == SIX


def test_prompt_lookup_is_compared_within_the_smaller_window(made):
    def run(window):
        found = [hand.lookup(request, window) for request in ("r0", "r1")]
        return hand.run([*made(), *found], ks=(1, window))

    assert list(figures(run(12), run(8), candidate=1)) == [("tokens per round", 8, 8)]


def test_each_format_holds_the_comparison(run_a, run_b):
    found = compared(run_a, run_b)
    table = render(found, everything=True)
    assert max(map(len, table.splitlines())) <= 80
    assert "-0.500 [-1.000, +0.000]  unclear" in table
    figure = json.loads(render(found, "json"))["candidates"][0]["figures"][0]
    assert figure["difference"]["value"] == -0.5
    assert "### What changed\n\n| draft |  | k | A | B |" in render(found, "markdown")
    rows = [line.split()[1] for line in render(found).splitlines() if line.startswith("small  ")]
    assert rows == ["α", "tok/round", "measured"]  # c is not paired


def test_without_replays_the_rounds_that_engines_counted_are_paired_at_one_k_and_load():
    # 8 tokens in 4 rounds on every common request; B also has two that take 8 rounds and 3.
    asked = dict.fromkeys("abcde", 4)
    change = figures(on_an_engine(asked), on_an_engine(asked | {"f": 0, "g": 5}))[TOKENS]
    # Not 56 / 31 of all of B's: what is printed is what is compared.
    assert (change.a.value, change.b.value) == (2.0, 2.0)
    assert (change.requests, change.difference) == (5, Estimate(0.0, 0.0, 0.0))
    # On the common ones 6 rounds and 3 in place of 4 and 4.
    change = figures(on_an_engine(asked), on_an_engine(asked | {"a": 2, "b": 5}))[TOKENS]
    assert change.difference.value == pytest.approx(40 / 21 - 2)
    assert change.difference.low < 0 < change.difference.high
    change = figures(on_an_engine(asked), on_an_engine(asked, k=1))[TOKENS]
    assert (change.a.value, change.b, change.obstacle) == (2.0, None, "only one run has it")
    change = figures(on_an_engine(asked), on_an_engine(asked, concurrency=4))[TOKENS]
    assert change.obstacle == "not comparable: measured at different loads"
    assert change.difference is None


def on_an_engine(kept, k=2, **fields):
    """A run of a server that drafts: of each request's 8 tokens after the first so many were
    drafted.
    """
    rows = []
    for request, count in kept.items():
        of = {"request": request, "digest": request}
        rows.append(trajectory(length=9, origin="engine", margins=(), argmax=(), **of))
        sums = {"accepted": count, "drafted": k * (8 - count)}
        seconds = [0.1 * (n + 1) for n in range(9)]
        rows.append(served(None, 0, *seconds, **of, **fields))
        rows.append(served(SMALL, k, *seconds, **of, **sums, **fields))
    return run_of(manifest(engine="vllm", ks=(1, 2)), rows)
