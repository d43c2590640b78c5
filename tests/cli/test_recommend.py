"""`recommend` on one screen (one decision, one speed-up, one table, and what to run next); then
over load, limits and costs from elsewhere.
"""

import csv
import json
import shlex
import shutil
from pathlib import Path

import hand
import msgspec
import pytest
import scenes
from scenes import REFERENCE, with_fields

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.recommend import CSV_FIGURES, render
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Caveat, Headroom, Reach
from draftbench.report.answer import better_draft

LONG = "an-organisation/a-model-with-a-very-long-name-that-goes-on-and-on-Instruct-GPTQ-Int4"
COMMANDS = ["draftbench recommend runs/R --all", "draftbench report runs/R --html report.html"]


def lines_of(answer, width=100, commands=COMMANDS):
    return render(answer, "table", width, commands=commands).splitlines()


def assert_one_screen(answer):
    for width in (88, 100, 250):
        lines = lines_of(answer, width)
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 88
        assert lines[-2:] == ["next: draftbench recommend runs/R --all", f"      {COMMANDS[1]}"]


@pytest.fixture(scope="module")
def answers(kept):
    return {name: recommend(run) for name, run in kept.items()}


@pytest.fixture
def crowded(answers):
    """Twelve candidates with long names, and long caveats of every urgency."""
    answer = answers["qwen2.5-coder"]
    named = [
        msgspec.structs.replace(each, draft=f"{LONG}-{at}" * (at != 2) or each.draft)
        for at in range(12)
        for each in answer.evaluations[:8]
    ]
    return msgspec.structs.replace(
        answer,
        choice=msgspec.structs.replace(answer.choice, draft=LONG),
        leader=msgspec.structs.replace(answer.leader, draft=f"{LONG}-0", quant="none"),
        runner_up=msgspec.structs.replace(answer.runner_up, draft=f"{LONG}-1", quant="none"),
        evaluations=tuple(named),
        caveats=tuple(
            Caveat(kind=kind, text="why this could be otherwise " * 12, decisive=decisive, short="")
            for kind in ("output-differs", "suspected-fault", "looping", "drift")
            for decisive in (True, False)
        ),
    )


@pytest.mark.parametrize("name", ["qwen2.5-coder", "tinyllama-stories", "tinyllama-gsm8k"])
def test_a_kept_run_fits_one_screen(answers, name):
    assert_one_screen(answers[name])


def test_everything_of_a_kept_run_is_no_wider_than_a_screen(answers):
    for answer in answers.values():
        lines = render(answer, "table", 88, everything=True).splitlines()
        assert [line for line in lines if len(line) > 88] == []


def test_the_screen_of_a_kept_run(answers):
    assert lines_of(answers["qwen2.5-coder"]) == [
        "Speculate at concurrency 1 (provisional): qwen0.5:int4, k = 5",
        "Provisional: only 16 requests were decoded; the machine slowed down by 16% during the",
        "  run.",
        "Speed-up 2.03× (95% interval 1.82–2.25), prefill excluded; 48 requests, 16 decoded",
        "",
        "   draft         k          speed-up ×           α   tok/round           c   memory",
        "→  qwen0.5:int4  5  2.03 (1.82–2.25)    0.87 ±0.03  3.96 ±0.34  0.20 ±0.02   584 MB",
        "   qwen0.5:int8  5  1.68 (1.52–1.86) *  0.88 ±0.03  4.01 ±0.30  0.30 ±0.01   771 MB",
        "   qwen0.5       3  1.49 (1.39–1.59)    0.88 ±0.03  3.16 ±0.16  0.39 ±0.01  1.26 GB",
        "   ngram         7  1.46 (1.29–1.68)             –  1.47 ±0.20  0.00 ±0.00     0 kB",
        "   self          1  0.96 (0.85–1.10) *  0.95 ±0.03  1.90 ±0.03  1.00 ±0.00  6.94 MB",
        "± half a 95% interval; α acceptance rate; tok/round over all rounds; c draft step /",
        "  target step; * not decoded; self: the target drafts, α < 1 at temperature > 0",
        "",
        "Runner-up: qwen0.5:int8, k = 5, slower: 1.68× expected against 2.03×; a round produces",
        "  4.01 tokens in the time of 2.38 target steps.",
        "qwen0.5:int4 pays off up to about 7 concurrent requests (interpolated between 4 and 16).",
        "Best k for qwen0.5:int4 by concurrency: 5 at 1; 3 at 2–3; 2 at 4–5; 1 at 6–7;",
        "  inconclusive from 8. (At 4, qwen0.5:int8 with k = 3 is faster, but an engine serves",
        "  one draft.)",
        "",
        "next: draftbench recommend runs/R --all",
        "      draftbench report runs/R --html report.html",
    ]


def test_a_narrow_screen_leaves_out_memory_and_then_c_and_says_so(answers):
    for width, left_out in ((88, ()), (75, ("memory",)), (65, ("memory", " c "))):
        lines = render(answers["qwen2.5-coder"], "table", width).split("\n")
        (head,) = (line for line in lines if "speed-up ×" in line)
        rows = lines[lines.index(head) : lines.index(head) + 6]
        assert max(map(len, rows)) <= width
        assert [name for name in ("memory", " c ") if name not in f"{head} "] == list(left_out)
        said = {0: "", 1: "left out: memory (--all)", 2: "left out: c and memory (--all)"}
        text = " ".join(" ".join(lines).split())
        assert said[len(left_out)] in text
        assert ("left out" in text) == bool(left_out)


def test_notes_that_do_not_fit_are_counted(answers):
    """Of the caveats two are urgent; a screen of 60 columns has room for neither."""
    caveats = tuple(
        Caveat(kind="looping", text=f"{which} " + "word " * 20) for which in ("one", "another")
    )
    answer = msgspec.structs.replace(answers["qwen2.5-coder"], caveats=caveats)
    text = " ".join(render(answer, "table", 60, commands=COMMANDS).split())
    shown = sum(note in text for note in ("Runner-up", "pays off up to", "Best k", "Caveat: one"))
    assert f"{5 - shown} more notes (--all)" in text


def test_many_candidates_and_long_names_fit_one_screen(crowded):
    assert_one_screen(crowded)
    lines = lines_of(crowded)
    assert "   and 6 more: --all" in lines
    assert sum("an-o" in line for line in lines) > 6


def test_a_pick_that_the_runner_up_may_beat_is_called_a_toss_up(answers):
    """On the stories ngram is as likely as 0.33 to be the faster one, on the log int8 hardly."""
    close, clear = (
        " ".join(lines_of(answers[name])) for name in ("tinyllama-stories-40", "qwen2.5-coder")
    )
    assert "30 decoded; a   toss-up with ngram, k = 5" in close
    assert "toss-up" not in clear


@pytest.mark.parametrize(
    ("alpha", "ceiling", "why"),
    [
        (0.95, 0.95, ", α < 1 at temperature > 0"),
        (0.99, None, ", α < 1 at near ties"),
        (1.0, None, ""),
        (0.9, None, ""),  # near ties alone do not explain it: a caveat does
    ],
)
def test_the_control_says_why_its_acceptance_is_below_one(answers, alpha, ceiling, why):
    answer = answers["qwen2.5-coder"]
    of_self = Estimate(alpha, alpha, alpha)
    evaluations = tuple(
        msgspec.structs.replace(e, alpha=of_self) if e.draft == "self" else e
        for e in answer.evaluations
    )
    edited = msgspec.structs.replace(answer, evaluations=evaluations, ceiling_alpha=ceiling)
    assert f"self: the target drafts{why} |" in " ".join(
        line or "|" for line in map(str.strip, lines_of(edited))
    )


def test_a_run_of_one_request_says_what_is_known_and_what_to_run():
    """A draft that is always right yields 8 tokens in 3 rounds, of one request."""
    lines = lines_of(hand.answer(hand.one_request()))
    assert lines[0] == "Inconclusive: one request is too few to decide by"
    known = " ".join(" ".join(lines[2:4]).split())
    assert known.endswith("Not known: the speed-up, so far 2.29× with small, k = 2.")
    (row,) = [line for line in lines if line.split()[:2] == ["small", "2"]]
    assert row.split()[2:4] == ["1.00", "2.67"]
    assert "without ±: too few requests" in " ".join(lines)
    assert not any("1 requests" in line or "Runner-up" in line for line in lines)


@pytest.mark.parametrize("width", [60, 88])
def test_a_sentence_is_printed_whole_or_not_at_all(crowded, answers, width):
    for answer in (crowded, *answers.values()):
        text = " ".join(" ".join(render(answer, "table", width).split()).split("next:")[:1])

        for caveat in answer.caveats:
            begun = f"Caveat: {' '.join(caveat.text.split()[:3])}"
            assert begun not in text or caveat.text.strip() in text


@pytest.mark.parametrize("words", [2, 30])
def test_a_caveat_that_would_be_cut_is_shown_in_its_short_form(answers, words):
    long = "reasons " * words + "and what to do"
    caveat = Caveat(kind="uncertain-cost", text=long, short="do this")
    answer = msgspec.structs.replace(answers["qwen2.5-coder"], caveats=(caveat,))
    shown = "Caveat: reasons reasons and what to do" if words == 2 else "Caveat: do this"
    assert shown in lines_of(answer)


@pytest.mark.parametrize("folder", ["a/long/folder" * 4, "a folder/with spaces" * 3, "a" * 70])
def test_long_commands_are_continued_and_can_still_be_pasted(crowded, folder):
    commands = [shlex.join(["draftbench", "recommend", folder, flag]) for flag in ("--all", "-h")]
    lines = lines_of(crowded, commands=commands)
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    pasted = "\n".join(lines).partition("next: ")[2].replace("\\\n", " ")
    assert [shlex.split(line) for line in pasted.split("\n")] == list(map(shlex.split, commands))


@pytest.mark.parametrize("case", ["slower", "open", "untimed", "undecoded", "one", "limited"])
def test_an_odd_case_fits_one_screen(case):
    records, asked = hand.perfect(), {}
    if case == "slower":
        asked = {"min_speedup": 3.0}
    elif case == "open":
        asked = {"min_speedup": 2.0}
    elif case == "untimed":
        records = hand.untimed()
    elif case == "undecoded":
        records = hand.undecoded()
    elif case == "one":
        records = hand.one_request()
    elif case == "limited":
        asked = {"max_memory": 1}
    assert_one_screen(hand.answer(records, asked=asked))


def test_where_no_speed_is_known_the_cause_is_named_once_in_the_second_line():
    late = scenes.failure("small", "it took longer than 1 s", stage="measure")
    text = render(hand.answer([*hand.untimed(), late]), "table", 88)
    assert text.splitlines()[:2] == [
        "Inconclusive",
        "No candidate's speed is known (small: it took longer than 1 s).",
    ]
    assert text.count("it took longer") == 1


def test_a_draft_that_failed_before_its_replay_is_named_where_no_speed_is_known():
    """Also beside a candidate that was replayed, and with nothing but the control."""
    late = scenes.failure("other", "the weights hold NaN", stage="load")
    for draft in ("small", "self"):
        answer = hand.answer([*hand.untimed(draft), late], drafts=("other",))
        text = render(answer, "table", 88)
        assert "other: the weights hold NaN" in " ".join(text.splitlines()[1:3])
        assert "()" not in text


def test_a_load_that_was_asked_about_and_not_measured_is_named(reference):
    answer = recommend(reference, DecisionOptions(concurrency=(1, 32, 64)))
    assert "Unknown at concurrency 32, 64: not measured." in lines_of(answer)


def test_a_runner_up_that_is_slower_than_no_draft_is_no_alternative(answers):
    answer = answers["qwen2.5-coder"]
    slow = [
        msgspec.structs.replace(each, speedup_expected=Estimate(0.92, 0.8, 1.0))
        if each.configuration == answer.runner_up
        else each
        for each in answer.evaluations
    ]
    text = "\n".join(lines_of(msgspec.structs.replace(answer, evaluations=tuple(slow))))
    best = f"{answer.runner_up.candidate}, k = {answer.runner_up.k}: 0.92×"
    assert f"No other draft is faster than decoding without one (best: {best})." in text
    assert "Runner-up" not in text


def test_what_was_never_decoded_is_starred():
    text = render(hand.answer(hand.undecoded()), "table", 88)
    assert "2.29 (1.97–2.65) *" in text
    assert "* not decoded" in text


def test_ranked_by_latency_the_table_includes_the_prefills():
    records = [*hand.perfect(requests=5), *hand.prefills()]
    lines = lines_of(hand.answer(records, asked={"objective": "latency"}))
    (row,) = [line for line in lines if line.startswith("→")]
    assert "1.52 (1.47–1.66)" in row


def test_the_decision_of_a_clean_run_is_not_provisional():
    answer = hand.answer(hand.perfect(requests=30), requests=30, form="messages")
    assert lines_of(answer)[:2] == [
        "Speculate: small, k = 2",
        "Speed-up 2.04× (95% interval 1.94–2.28), prefill excluded; 30 requests, all decoded",
    ]
    assert "rovisional" not in render(answer, "markdown", 80)


def test_reasons_of_a_provisional_decision_are_not_repeated_as_caveats():
    lines = lines_of(hand.answer(hand.perfect()))
    assert lines[1] == "Provisional: only 10 requests."
    assert not any(line.startswith("Caveat: only") for line in lines)


def test_drafts_stand_in_the_order_of_their_expected_speed_up():
    # All are predicted alike; they took 4, 8 and 5 s.
    records = []
    for draft, seconds in (("a", 4.0), ("b", 8.0), ("c", 5.0)):
        records += [
            hand.decode(r.request, 2, seconds, draft) if getattr(r, "k", 0) else r
            for r in hand.perfect(draft, 5)
        ]
    lines = lines_of(hand.answer(records, drafts=("a", "b", "c")))
    at = next(at for at, line in enumerate(lines) if line.split()[:1] == ["draft"])
    assert [line.strip("→ ")[0] for line in lines[at + 1 : at + 4]] == ["a", "c", "b"]


def test_json_and_csv_hold_every_figure_by_the_same_name():
    answer = hand.answer(hand.perfect(requests=5))
    (best, *_) = [e for e in json.loads(render(answer, "json", 80))["evaluations"] if e["best"]]
    rows = csv.DictReader(render(answer, "csv", 80).splitlines())
    (row, *_) = [row for row in rows if row["best"] == "1"]
    for name in CSV_FIGURES:
        value = None if best[name] is None else best[name]["value"]
        assert row[name] == ("" if value is None else str(value))
    assert best["speedup_measured"]["value"] == pytest.approx(2.0)


def test_markdown_is_as_short_unless_everything_is_asked_for(answers):
    answer = answers["qwen2.5-coder"]
    short = render(answer, "markdown", 80)
    assert short.startswith(
        "## Speculate at concurrency 1 (provisional): qwen0.5:int4, k = 5\n\nProvisional: "
    )
    assert "| → | qwen0.5:int4 | 5 |" in short
    assert "### Checks" not in short
    assert "### Checks" in render(answer, "markdown", 80, everything=True)


def better(**changes):
    """A draft at 1.2× with α .5, which would win from .7 beside another at 1.5×."""
    most, to_win = Reach(4, 5.0, 1.0, 2.4), Reach(4, 2.5, 0.7, 1.5)
    fields = {"draft": "small", "quant": "none", "alpha": 0.5, "speedup": 1.2, "most": most}
    fields |= {"to_pay": Reach(1, 1.3, 0.3, 1.0), "to_win": to_win, "best_of_others": 1.5}
    return Headroom(**fields | changes)


@pytest.mark.parametrize(
    ("headroom", "says"),
    [
        ([better()], "one that costs what small does would win from α 0.70 (now 0.50)"),
        (
            [better(speedup=0.9, best_of_others=1.0)],
            "one that costs what small does would pay off from α 0.70",
        ),
        (
            [better(alpha=None, to_win=Reach(4, 2.5, None, 1.5))],
            "would win from 2.50 tok/round at k = 4, and reach 2.40× at most.",
        ),
        # The one that lacks least.
        ([better(), better(draft="near", speedup=1.4)], "one that costs what near does"),
        ([better(to_win=None)], "No training helps: a perfect draft of these costs would reach"),
        ([], None),
    ],
)
def test_what_a_trained_draft_must_reach_is_one_line_where_it_could_change_the_answer(
    answers, headroom, says
):
    answer = msgspec.structs.replace(answers["qwen2.5-coder"], headroom=tuple(headroom))
    assert (says or "None") in str(better_draft(answer))


def test_of_too_few_requests_no_better_draft_is_promised(answers):
    answer = msgspec.structs.replace(answers["qwen2.5-coder"], headroom=(better(),), requests=4)
    assert better_draft(answer) is None


def test_what_training_a_draft_alone_cannot_bring_is_not_said_of_it_behind_prompt_lookup(answers):
    answer = answers["qwen2.5-coder"]
    stack = msgspec.structs.replace(answer.evaluations[0], draft="ngram+small")
    answer = msgspec.structs.replace(
        answer, headroom=(better(to_win=None),), evaluations=(*answer.evaluations, stack)
    )
    said = "No training helps a draft alone: a perfect draft of these costs would reach 2.40×, "
    assert better_draft(answer) == said + "behind prompt lookup perhaps more."


def test_where_a_draft_that_could_be_trained_is_the_answer_already_nothing_is_said(answers):
    assert answers["qwen2.5-coder"].choice.draft == "qwen0.5"
    assert better_draft(answers["qwen2.5-coder"]) is None


RUN, ONE_ROW = REFERENCE / "qwen2.5-coder", REFERENCE / "tinyllama-stories"
ENGINE = """
engine: an engine 1.0
concurrency:
  1:
    tokens_per_second: 10
    verify: {2: 0.11, 9: 0.2}
    drafts: {"qwen0.5:int4": {step_s: 0.01}}
  9:
    target_step_s: 0.2
    verify: {2: 0.4, 9: 1.8}
    drafts: {"qwen0.5:int4": {step_s: 0.05}}
"""


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text(ENGINE)
    return path


def test_the_answer_over_concurrencies_is_a_table_with_its_crossover(command, engine):
    outcome = command("recommend", RUN, "--costs", engine, "--all")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Speculate at concurrency 1: qwen0.5:int4, k = ")
    assert "By concurrency\n" in outcome.out
    assert "inconclusive at 5–6; no speculation from 7." in " ".join(outcome.out.split())
    assert "qwen0.5:int4 pays off up to about " in " ".join(outcome.out.split())
    shown = " ".join(outcome.out.split())
    assert "costs of an engine 1.0." in shown
    assert "from replay and the costs given" in shown
    assert "this run's own timings are ignored" in shown
    assert "corrected by" not in shown


def test_json_has_a_level_for_each_concurrency_asked(command, engine):
    words = ("--costs", engine, "--concurrency", "9,4,64", "--format", "json")
    found = json.loads(command("recommend", RUN, *words).out)
    assert [level["concurrency"] for level in found["by_concurrency"]] == [9, 4, 64]
    nine, four, far = found["by_concurrency"]
    assert (found["decision"], found["concurrency"]) == ("do_not_speculate", 9)
    assert (nine["k"], nine["tokens_per_second_plain"]) == (0, pytest.approx(45))
    assert four["costs"] == "interpolated between 1 and 9"
    assert (far["decision"], far["k"], far["speedup_expected"]) == (None, None, None)
    assert 1 < found["crossover"] < 9 or found["crossover"] == 0
    assert (found["runner"], found["latency"]) == ("an engine 1.0", None)


def test_markdown_has_the_same_sections(command, engine):
    out = command("recommend", RUN, "--costs", engine, "--format", "markdown", "--all").out
    assert "### By concurrency\n\n| concurrency | answer | speed-up × |" in out
    out = command("recommend", ONE_ROW, "--format", "markdown", "--all").out
    assert "By concurrency" not in out
    assert "### Latency, measured\n\n|  | speculation | n |" in out


def test_the_headline_names_where_costs_come_from(command, engine):
    out = " ".join(command("recommend", RUN, "--costs", engine).out.split())
    assert "predicted for 48 requests with costs of an engine 1.0 " in out
    out = " ".join(command("recommend", RUN, "--costs", engine, "--all").out.split())
    assert "all speed-ups here are predictions" in out


def test_latency_counts_prefills_and_says_so(command):
    out = command("recommend", RUN, "--objective", "latency", "--all").out
    assert "Ranked by time per output token of a request, both prefills included." in out


def test_waits_are_shown(command):
    out = " ".join(command("recommend", RUN, "--all").out.split())
    assert "time to first token without" in out
    assert "Worse with speculation: gap between chunks, p99 374 instead of 261 ms;" in out


def test_tokens_per_dollar(command, engine):
    words = ("--costs", engine, "--objective", "cost", "--price-per-hour", "3.6")
    outcome = command("recommend", RUN, *words, "--all")
    assert "tokens/$" in outcome.out
    assert outcome.out.startswith("Do not speculate at concurrency 9")
    assert "45000" in outcome.out


def test_what_the_other_drafts_change_of_the_speed_up_is_said(command):
    out = " ".join(command("recommend", RUN, "--all").out.split())
    says = "the prediction, corrected by measured times, then shrunk 1% towards the other drafts"
    assert says in out
    (alone,) = [
        each["drawn_to_others"]
        for each in json.loads(command("recommend", RUN, "--format", "json").out)["evaluations"]
        if (each["draft"], each["k"]) == ("self", 1)
    ]
    assert alone == 0  # the control is no draft


def test_drafts_over_the_limits_are_named_on_the_first_screen(command):
    out = command("recommend", RUN, "--max-memory", "4.2GB").out
    assert "Over the limits that you set: qwen0.5:int8, qwen0.5." in out
    assert "Runner-up: ngram, k = 7" in out


@pytest.mark.parametrize("size", ["1GB", "1gb", "0.001 TB"])
def test_a_limit_that_nobody_keeps(command, size):
    out = " ".join(command("recommend", RUN, "--max-memory", size).out.split())
    first, _, limit = out.partition(" (")
    assert first == (
        "Do not speculate at concurrency 1 None of the timed candidates keeps the limits"
    )
    # The one that needs least: prompt lookup has no weights, so this is the target alone.
    assert limit.startswith("ngram at k = 1: it needs ")
    assert "over --max-memory (1 GB))." in limit


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--concurrency", "1,x"), "--concurrency x: expected a number or a range"),
        (("--concurrency", "0"), "--concurrency 0: the smallest value is 1"),
        (("--concurrency", ""), "expected a number or a range"),
        (("--objective", "latencies"), "did you mean `latency`?"),
        (("--objective", "cost"), "--price-per-hour"),
        (("--price-per-hour", "0"), "cannot be used"),
        (("--max-memory", "20"), "for example 24GB"),
        (("--max-memory", "-1GB"), "for example 24GB"),
        (("--max-p99-ratio", "-1"), "--max-p99-ratio"),
        (("--costs", "none.yaml"), "cannot read `none.yaml`"),
        (("--costs", "."), "cannot read `.`"),
    ],
)
def test_words_that_cannot_be_used(failing, tmp_path, monkeypatch, words, meant):
    monkeypatch.chdir(tmp_path)
    assert meant in failing(2, "recommend", RUN, *words)


def test_a_run_whose_sweep_did_not_end_says_so_first(command, tmp_path):
    copy = Path(shutil.copytree(ONE_ROW, tmp_path / "run"))
    assert "not finished" not in command("recommend", copy, "--all").out
    with_fields(copy / "run.json", under_way=[{"draft": "stories15M"}, {"draft": "ngram"}])
    found = " ".join(command("recommend", copy, "--all").out.split())
    assert (
        "this run is not finished (cut off at candidate 1 of 2, with 12 of 12 responses)" in found
    )
    answer = json.loads(command("recommend", copy, "--format", "json").out)
    assert answer["caveats"][0]["kind"] == "unfinished"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("300ms", "--slo 300ms: expected limits"),
        ("ttft=300", "--slo ttft=300: expected limits"),
        ("ttft=1s,ttft=2s", "--slo ttft=1s,ttft=2s: expected limits"),
        ("wait=3s", "--slo wait=3s: expected limits"),
        ("ttft=300ms", "the built-in decoder knows no queueing"),
    ],
)
def test_limits_that_are_none_or_have_no_engine_are_refused(command, limits, said):
    outcome = command("recommend", RUN, "--slo", limits)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_the_commands_that_come_next_ask_the_same_question(command, engine):
    words = ["--min-speedup", "2.5", f"--costs={engine}", "--objective", "latency"]
    outcome = command("recommend", RUN, *words)
    following = " ".join(outcome.out.partition("next:")[2].replace("\\\n", " ").split())
    asked = f"{RUN} --min-speedup 2.5 --costs={engine} --objective latency"
    assert f"recommend {asked} --all" in following
    assert f"report {asked} --html report.html" in following


@pytest.mark.parametrize("asked", ["inf", "1e9", "nan", "-1"])
def test_a_speed_up_that_no_draft_has_cannot_be_asked_for(command, asked):
    found = command("recommend", RUN, f"--min-speedup={asked}")
    assert (found.code, found.out, found.err.count("error:")) == (2, "", 1)
