"""`recommend` on one screen (one decision, one speed-up, one table, and what to run next; README.md
has a whole one); then over load, limits and costs from elsewhere.
"""

import csv
import json
import shlex

import hand
import pytest
import scenes
from msgspec.structs import replace
from scenes import REFERENCE

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.recommend import CSV_FIGURES, render
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import best_of_each, recommend
from draftbench.planner.recommendation import Caveat

LONG = "an-organisation/a-model-with-a-very-long-name-that-goes-on-and-on-Instruct-GPTQ-Int4"
COMMANDS = ["draftbench recommend runs/R --all", "draftbench report runs/R --html report.html"]


def lines_of(answer, width=100, commands=COMMANDS):
    return render(answer, "table", width, commands=commands).splitlines()


def assert_one_screen(answer):
    for width in (88, 250):
        lines = lines_of(answer, width)
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 88
        assert lines[-2:] == ["next: draftbench recommend runs/R --all", f"      {COMMANDS[1]}"]


@pytest.fixture
def log(answers):
    """The answer of a kept run."""
    return answers["qwen2.5-coder"]


@pytest.fixture
def crowded(log):
    """Twelve candidates with long names, and long caveats of every urgency."""
    named = [
        replace(each, draft=f"{LONG}-{at}" * (at != 2) or each.draft)
        for at in range(12)
        for each in log.evaluations[:8]
    ]
    return replace(
        log,
        choice=replace(log.choice, draft=LONG),
        leader=replace(log.leader, draft=f"{LONG}-0", quant="none"),
        runner_up=replace(log.runner_up, draft=f"{LONG}-1", quant="none"),
        evaluations=tuple(named),
        best_of_each=best_of_each(
            named, replace(log.leader, draft=f"{LONG}-0", quant="none"), "expected"
        ),
        caveats=tuple(
            Caveat(kind=kind, text="why this could be otherwise " * 12, decisive=decisive, short="")
            for kind in ("output-differs", "suspected-fault", "looping", "drift")
            for decisive in (True, False)
        ),
    )


def test_a_kept_run_and_an_odd_case_fit_one_screen_and_everything_of_it_its_width(answers, kept):
    odd = (hand.perfect, hand.untimed, hand.undecoded, hand.one_request)
    limits = ({"min_speedup": 3.0}, {"min_speedup": 2.0}, {"max_memory": 1})
    odd_answers = [hand.answer(records()) for records in odd]
    odd_answers += [hand.answer(hand.perfect(), asked=asked) for asked in limits]
    for answer in (*(answers[name] for name in kept), *odd_answers):
        assert_one_screen(answer)
        lines = render(answer, "table", 88, everything=True).splitlines()
        assert [line for line in lines if len(line) > 88] == []


@pytest.mark.parametrize(
    ("width", "left_out", "said"),
    [
        (88, (), ""),
        (75, ("memory",), "left out: memory (--all)"),
        (65, ("memory", " c "), "left out: c and memory (--all)"),
    ],
)
def test_a_narrow_screen_leaves_out_memory_and_then_c_and_says_so(log, width, left_out, said):
    lines = lines_of(log, width)
    at = next(at for at, line in enumerate(lines) if "speed-up ×" in line)
    assert max(map(len, lines[at : at + 6])) <= width
    assert tuple(name for name in ("memory", " c ") if name not in f"{lines[at]} ") == left_out
    text = " ".join(" ".join(lines).split())
    assert said in text
    assert ("left out" in text) == bool(said)


def test_notes_that_do_not_fit_are_counted(log):
    """Of the caveats two are urgent; a screen of 60 columns has room for neither."""
    caveats = tuple(
        Caveat(kind="looping", text=f"{which} " + "word " * 20) for which in ("one", "another")
    )
    text = " ".join(" ".join(lines_of(replace(log, caveats=caveats), 60)).split())
    shown = sum(note in text for note in ("Runner-up", "pays off up to", "Best k", "`): one"))
    assert f"{5 - shown} more notes (--all)" in text


def test_many_candidates_and_long_names_fit_one_screen(crowded):
    assert_one_screen(crowded)
    lines = lines_of(crowded)
    assert "   and 6 more: --all" in lines
    assert sum("an-o" in line for line in lines) > 6


def test_a_runner_up_that_may_be_as_fast_is_named_beside_the_pick(answers):
    """On the stories ngram is as likely as 0.33 to be the faster one, on the log int8 hardly."""
    close, clear = (
        " ".join(lines_of(answers[name])) for name in ("tinyllama-stories-40", "qwen2.5-coder")
    )
    assert "30 decoded;   ngram, k = 5 may be as fast" in close
    assert "may be as fast" not in clear


def test_a_run_of_one_request_says_what_is_known_and_what_to_run():
    """A draft that is always right yields 8 tokens in 3 rounds, of one request."""
    lines = lines_of(hand.answer(hand.one_request()))
    assert lines[0] == "Inconclusive: one request is too few to decide by"
    known = " ".join(" ".join(lines[2:4]).split())
    assert "Too few requests for an interval; so far 2.29× with small, k = 2. What" in known
    (row,) = [line for line in lines if line.split()[:2] == ["small", "2"]]
    assert row.split()[2:4] == ["1.00", "2.67"]
    assert "no interval: too few requests" in " ".join(lines)
    assert not any("1 requests" in line or "Runner-up" in line for line in lines)


def test_a_caveat_is_printed_whole_in_its_short_form_or_not_at_all(crowded, answers, kept, log):
    for answer in (crowded, *(answers[name] for name in kept)):
        for width in (60, 88):
            text = " ".join(render(answer, "table", width).split())
            for caveat in answer.caveats:
                begun = f"`): {' '.join(caveat.text.split()[:3])}"
                assert begun not in text or caveat.text.strip() in text
    for words, shown in ((2, "reasons reasons and what to do"), (30, "do this")):
        long = "reasons " * words + "and what to do"
        caveat = Caveat(kind="uncertain-cost", text=long, short="do this")
        assert f"Caveat (`draftbench explain uncertain-cost`): {shown}" in " ".join(
            map(str.strip, lines_of(replace(log, caveats=(caveat,))))
        )
    # What makes the answer provisional stands in its second line.
    slower = Caveat(kind="uncertain-cost", text="slower", decisive=True, short="slower")
    assert not any(line.startswith("Caveat") for line in lines_of(replace(log, caveats=(slower,))))


@pytest.mark.parametrize("folder", ["a/long/folder" * 4, "a folder/with spaces" * 3, "a" * 70])
def test_long_commands_are_continued_and_can_still_be_pasted(crowded, folder):
    commands = [shlex.join(["draftbench", "recommend", folder, flag]) for flag in ("--all", "-h")]
    lines = lines_of(crowded, commands=commands)
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 88
    pasted = "\n".join(lines).partition("next: ")[2].replace("\\\n", " ")
    assert [shlex.split(line) for line in pasted.split("\n")] == list(map(shlex.split, commands))


def test_where_no_speed_is_known_the_cause_is_named_once_in_the_second_line():
    late = scenes.failure("small", "it took longer than 1 s", stage="measure")
    text = render(hand.answer([*hand.untimed(), late]), "table", 88)
    assert text.splitlines()[:2] == [
        "Inconclusive",
        "No candidate's speed is known (small: it took longer than 1 s).",
    ]
    assert text.count("it took longer") == 1
    # So is a draft that failed before its replay, also with nothing but the control.
    broken = scenes.failure("other", "the weights hold NaN", stage="load")
    for draft in ("small", "self"):
        lines = lines_of(hand.answer([*hand.untimed(draft), broken], drafts=("other",)))
        assert "other: the weights hold NaN" in " ".join(lines[1:3])
        assert "()" not in "".join(lines)


def test_a_load_that_was_asked_about_and_not_measured_is_named(reference):
    answer = recommend(reference, DecisionOptions(concurrency=(1, 32, 64)))
    assert "Unknown at concurrency 32, 64: not measured." in lines_of(answer)


def test_a_runner_up_that_is_slower_than_no_draft_is_no_alternative(log):
    slow = tuple(
        replace(each, speedup_expected=Estimate(0.92, 0.8, 1.0))
        if each.configuration == log.runner_up
        else each
        for each in log.evaluations
    )
    text = "\n".join(lines_of(replace(log, evaluations=slow)))
    best = f"{log.runner_up.candidate}, k = {log.runner_up.k}: 0.92×"
    assert f"No other draft is faster than decoding without one (best: {best})." in text
    assert "Runner-up" not in text


def test_a_decision_is_provisional_for_reasons_that_are_said_once():
    clean = hand.answer(hand.perfect(requests=30), requests=30, form="messages")
    assert lines_of(clean)[:2] == [
        "Speculate: small, k = 2",
        "Speed-up 2.04× (95% interval 1.94–2.28), prefill excluded; 30 requests, all decoded",
    ]
    assert "rovisional" not in render(clean, "markdown", 80)
    lines = lines_of(hand.answer(hand.perfect()))
    assert lines[1] == "Provisional: only 10 requests (`draftbench explain few-requests`)."
    assert not any(line.startswith("Caveat") and "only" in line for line in lines)


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


def test_markdown_is_as_short_unless_everything_is_asked_for(log):
    short = render(log, "markdown", 80)
    assert short.startswith(
        "## Speculate at concurrency 1 (provisional): qwen0.5:int4, k = 5\n\nProvisional: "
    )
    assert "| → | qwen0.5:int4 | 5 |" in short
    assert "### Checks" not in short
    assert "### Checks" in render(log, "markdown", 80, everything=True)


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
    words = ["recommend", RUN, "--costs", engine]
    outcome = command(*words, "--all")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Speculate at concurrency 1: qwen0.5:int4, k = ")
    assert "By concurrency\n" in outcome.out
    shown = " ".join(outcome.out.split())
    for said in (
        "inconclusive at 5–6; no speculation from 7.",
        "qwen0.5:int4 pays off up to about ",
        "costs of an engine 1.0.",
        "from replay and the costs given",
        "this run's own timings are ignored",
    ):
        assert said in shown
    assert "corrected by" not in shown
    out = command(*words, "--format", "markdown", "--all").out
    assert "### By concurrency\n\n| concurrency | answer | speed-up × |" in out
    out = command("recommend", ONE_ROW, "--format", "markdown", "--all").out
    assert "By concurrency" not in out
    assert "### Latency, measured\n\n|  | speculation | n |" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--costs", "ENGINE"], ["with costs of an engine 1.0 (interpolated between passes over "]),
        (
            ["--costs", "ENGINE", "--concurrency", "4"],
            ["tokens), interpolated between concurrency 1 and 9 "],
        ),
        (["--concurrency", "2"], ["requests, costs interpolated between concurrency 1 and 4 "]),
        (["--costs", "ENGINE", "--all"], ["all speed-ups here are predictions"]),
        (
            ["--costs", RUN, "--all"],
            [
                "with costs of draftbench lean (bfloat16, cpu) ",
                "all speed-ups here are predictions",
                # Its decoding corrects them, as it does at home, and its machine is in doubt too.
                "Speed-up 2.03× (95% interval 1.82–2.25)",
                "plain decoding took 12% longer in the second half of the run",
            ],
        ),
        (
            ["--objective", "latency", "--all"],
            ["Ranked by time per output token of a request, both prefills included."],
        ),
        (
            ["--all"],
            [
                "time to first token without",
                "Worse with speculation: gap between chunks, p99 374 instead of 261 ms;",
                "corrected by measured times, then lowered 1%: drafts whose intervals overlap",
            ],
        ),
        (
            ["--costs", "ENGINE", "--objective", "cost", "--price-per-hour", "3.6", "--all"],
            ["Do not speculate at concurrency 9", "tokens/$", "45000"],
        ),
        (
            ["--max-memory", "4.2GB"],
            ["Over the limits that you set: qwen0.5:int8, qwen0.5.", "Runner-up: ngram, k = 7"],
        ),
        # The one that needs least: prompt lookup has no weights, so this is the target alone.
        (
            ["--max-memory", "0.001 TB"],
            [
                "Do not speculate at concurrency 1 None of the timed candidates keeps the limits "
                "(ngram at k = 1: it needs ",
                "over --max-memory (1 GB)).",
            ],
        ),
    ],
)
def test_an_answer_says_what_it_rests_on(command, engine, words, said):
    out = command("recommend", RUN, *(engine if word == "ENGINE" else word for word in words)).out
    shown = " ".join(out.split())
    assert [text for text in said if text not in shown] == []


def test_the_control_is_no_draft_that_others_are_shrunk_towards(log):
    (alone,) = [e.drawn_to_others for e in log.evaluations if (e.draft, e.k) == ("self", 1)]
    assert alone == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--objective", "cost"), "--price-per-hour"),
        (("--price-per-hour", "0"), "cannot be used"),
        (("--max-memory", "-1GB"), "for example 24GB"),
        (("--max-p99-ratio", "-1"), "--max-p99-ratio"),
        (("--max-p99-ratio", "0"), "--max-p99-ratio 0: the smallest value is 0.01"),
        (("--min-speedup=nan",), "--min-speedup"),
        (("--costs", "none.yaml"), "cannot read `none.yaml`"),
        (("--costs", "."), "run"),
        (("--costs", RUN.with_name("tinyllama-stories")), "another target"),
        (("--slo", "ttft=1s,ttft=2s"), "--slo ttft=1s,ttft=2s: expected limits"),
        (("--slo", "ttft=0ms"), "--slo ttft=0ms: expected limits"),
    ],
)
def test_words_that_cannot_be_used(failing, tmp_path, monkeypatch, words, meant):
    """Besides those of errors.json."""
    monkeypatch.chdir(tmp_path)
    assert meant in failing(2, "recommend", RUN, *words)


def test_the_commands_that_come_next_ask_the_same_question(command, engine):
    words = ["--min-speedup", "2.5", f"--costs={engine}", "--objective", "latency"]
    outcome = command("recommend", RUN, *words)
    following = " ".join(outcome.out.partition("next:")[2].replace("\\\n", " ").split())
    asked = f"{RUN} --min-speedup 2.5 --costs={engine} --objective latency"
    assert f"recommend {asked} --all" in following
    assert f"report {asked} --html report.html" in following
    everything = command("recommend", RUN, *words, "--all").out.partition("next:")[2]
    assert f"report {asked} --html" in " ".join(everything.replace("\\\n", " ").split())
    assert "--all" not in everything
