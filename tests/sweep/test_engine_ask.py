"""Sweeps on a serving engine: what is started, asked and kept, and what a fault costs."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf import GGMLQuantizationType as Kind
from scenes import stranger
from sweep.engine import FakeEngine, FakeServer, rows_of, unreachable, writes

from draftbench.engines.faults import Fault
from draftbench.errors import EngineError, RunFolderError
from draftbench.planner.doubts import unfinished
from draftbench.planner.recommend import recommend
from draftbench.records import (
    Candidate,
    DraftingMode,
    DraftLength,
    Failure,
    MachineState,
    Served,
    StopRule,
)
from draftbench.run_folder.folder import PrivateStart, PrivateText, RunFolder
from draftbench.run_folder.run import read_run
from draftbench.sweep import engine_ask, resume

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from embedded_gguf import write

DRAFT, LOOKUP = Candidate(draft="draft"), Candidate(draft="ngram")
RULE = StopRule(kind="before", threshold=0.6)


ONE = {"measure": "all", "ks": (2,)}  # every draft at one k
TWO = {"measure": "all", "ks": (2, 4)}


def test_the_plain_server_is_started_first_and_last_and_drafts_are_replayed_along_it(served):
    found = served(measure="all")
    assert found.engine.ks == [0, 2, 4, 8, 2, 4, 8, 0]
    assert {t.origin for t in found.run.trajectories} == {"engine"}
    for text in found.folder.records(PrivateText):
        assert text.tokens == writes(text.prompt, 10)
    assert len(found.run.trajectories) == len(rows_of(found.run, 0)) == 2
    assert len(rows_of(found.run, 0, repeat=1)) == 2
    assert [replay.candidate for replay in found.run.replays] == [DRAFT, DRAFT, LOOKUP, LOOKUP]
    assert all(len(replay.accept) == 9 for replay in found.run.replays[:2])
    # A text that counts up repeats nothing.
    assert {replay.matched for replay in found.run.replays[2:]} == {(0,) * 9}


def test_servers_are_started_by_the_version_that_the_first_one_told(served):
    engine = FakeEngine(lambda start, number: FakeServer(version="0.26.0"))
    starts = served("ngram", on=engine, **ONE).engine.starts
    assert [start.version for start in starts] == [None, "0.26.0", "0.26.0"]


@pytest.mark.parametrize(("runner", "proposes"), [("0", 0), ("unset", 8)])
def test_prompt_lookup_is_replayed_by_the_rule_of_the_model_runner_that_vllm_takes(
    served, monkeypatch, runner, proposes
):
    """On a GPU the newer one, unless it is switched off: that one always proposes k tokens."""
    monkeypatch.setattr(engine_ask.torch.cuda, "is_available", lambda: True)
    engine = FakeEngine(settings={"VLLM_USE_V2_MODEL_RUNNER": runner})
    run = served("ngram", on=engine, measure="replay", device="cpu").run
    assert {replay.proposed[-1] for replay in run.replays} == {proposes}


def test_best_starts_the_smallest_k_and_the_largest_before_anything_is_predicted(served):
    """Every k takes the same time here, so that no third is predicted to be faster."""
    assert served("ngram", controls=False, ks=(2, 4, 8)).engine.ks == [0, 2, 8, 0]


def test_each_load_is_asked_of_every_arm(served):
    run = served("ngram", **ONE, concurrency=(1, 4)).run
    for k, repeat in ((0, 0), (0, 1), (2, 0)):
        for concurrency in (1, 4):
            assert len(rows_of(run, k, repeat, concurrency=concurrency)) == 2


def test_after_every_second_candidate_the_plain_server_is_started_again(served, small):
    """All drafts are compared with it, so one odd start of it would flatter all of them. Every
    second repeat goes backwards, so that none is always late.
    """
    drafts = small.models / "draft", small.copy("draft", "third"), "ngram"
    sweep = TWO | {"serving": {"restarts": 2}}
    found = served(*drafts, **sweep)
    plain, draft, third, ngram = (
        [(None, 0)],
        *([(d, 2), (d, 4)] for d in ("draft", "third", "ngram")),
    )
    assert [(f.candidate and f.candidate.draft, f.k) for f in found.run.engines] == [
        *(plain + draft + third + plain + ngram + plain),
        *(ngram[::-1] + third[::-1] + plain + draft[::-1] + plain),
    ]
    assert {row.repeat for row in found.run.served if row.k == 0} == {0, 1, 2, 3, 4}
    assert {row.repeat for row in found.run.served if row.k == 4} == {0, 1}
    assert served(*drafts, **sweep).engine.starts == []


class Killed(BaseException):
    """What no server raises."""


def killed_at(start):
    """An engine with which draftbench ends at one of its starts."""

    def make(_, number):
        if number == start:
            raise Killed

    return FakeEngine(make)


def test_a_sweep_that_was_killed_in_its_second_repeat_goes_on_there(served, small):
    sweep = {"measure": "all", "ks": (2, 4), "serving": {"restarts": 3}, "controls": False}
    engine = killed_at(6)  # 0, 2, 4, 0, 4 and the second start at 2
    with pytest.raises(Killed):
        served("ngram", on=engine, **sweep)
    begun = read_run(RunFolder(small.out))
    assert "cut off at candidate 1 of 1, with 2 of 2 responses" in unfinished(begun)
    found = served("ngram", **sweep)
    assert found.engine.ks == [2, 0, 2, 4, 0]
    assert found.run.served[: len(begun.served)] == begun.served
    assert unfinished(found.run) is None
    assert served("ngram", on=FakeEngine(), **sweep).engine.ks == []


def test_a_repeat_that_the_plain_server_closed_gets_no_other_k(served, monkeypatch):
    """What is worth one more start after a break is started in the repeat that goes on."""
    wanted = [2]
    monkeypatch.setattr(resume, "next_start", lambda *_: DraftLength(wanted[-1]))
    sweep = {"ks": (2, 4), "serving": {"restarts": 2}, "controls": False}
    with pytest.raises(Killed):
        served("ngram", on=killed_at(4), **sweep)
    wanted.append(4)
    found = served("ngram", **sweep)
    assert found.engine.ks == [2, 4, 0]
    assert [len(rows_of(found.run, 4, repeat)) for repeat in (0, 1)] == [0, 2]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_rule_that_is_worth_a_start_is_started_kept_apart_and_resumed(
    served, monkeypatch, side_by_side
):
    """In every repeat, beside a fixed length of the same k."""
    lengths = [DraftLength(2), DraftLength(4), DraftLength(4, RULE)]

    def wanted(run, *_):
        started = {row.length for row in run.decodes}
        return next((each for each in lengths if each not in started), None)

    monkeypatch.setattr(resume, "next_start", wanted)
    sweep = {"ks": (2, 4), "serving": {"restarts": 2, "side_by_side": side_by_side}}
    found = served("ngram", **sweep, controls=False)
    drafting = [start.speculation for start in found.engine.starts if start.speculation]
    told = [(each.k, each.stop) for each in drafting]
    assert told == [*lengths, *lengths[::-1]]
    assert [(facts.k, facts.stop) for facts in found.run.engines if facts.k] == told
    for k, stop in lengths:
        rows = [row for row in found.run.served if (row.k, row.stop) == (k, stop)]
        assert {row.repeat for row in rows} == {0, 1}
        assert len(rows) == 4
    assert served("ngram", **sweep, controls=False).engine.starts == []


def never(start):
    raise EngineError("vllm ended before it answered", hint="see its log")


@pytest.mark.parametrize(
    ("drafts", "fails", "how", "ks", "failed", "again"),
    [
        # A draft with which no server starts is not tried again in the next repeat.
        (
            ("draft", "ngram"),
            lambda start, number: "draft-model" in str(start.speculation),
            never,
            [0, 2, 4, 2, 4, 0, 4, 2, 0],
            [DRAFT],
            [2, 4, 4, 2],
        ),
        # A plain server that does not start again ends its repeat alone.
        (("ngram",), lambda start, number: number == 4, never, [0, 2, 4, 0, 4, 2, 0], [None], [0]),
        # What a server that died did not answer is made up for by the next run, not by the next
        # repeat.
        (
            ("ngram",),
            lambda start, number: number == 2,
            lambda start: FakeServer(lives=0),
            [0, 2, 4, 0, 4, 2, 0],
            [],
            [2],
        ),
    ],
)
def test_a_fault_costs_what_hangs_on_it_until_the_next_run(
    served, small, drafts, fails, how, ks, failed, again
):
    engine = FakeEngine(lambda start, number: how(start) if fails(start, number) else None)
    drafts = [str(small.models / name) if name == "draft" else name for name in drafts]
    sweep = TWO | {"serving": {"restarts": 2}, "controls": False}
    found = served(*drafts, on=engine, **sweep)
    assert engine.ks == ks
    assert [failure.candidate for failure in found.run.failures] == failed
    resumed = served(*drafts, **sweep)
    assert resumed.engine.ks == again
    assert resumed.run.unanswered == resumed.run.failures == ()


def test_no_value_that_a_user_adds_to_a_start_is_kept_outside_of_the_private_part(served):
    serving = {
        "args": "--max-num-seqs 7391 --header 'X-Team: zebra-one'",
        "command": "env PGPASSWORD=zebra-two MYNAME=zebra-three run {args} https://u:zebra-4@h/?a=7392",
    }
    found = served("ngram", measure="none", serving=serving)
    asked = found.folder.manifest.question
    assert asked.engine_args.startswith("--max-num-seqs … --header … (")
    assert asked.engine_command.startswith("… PGPASSWORD=… MYNAME=… … {args} … (")
    assert {facts.command for facts in found.run.engines} == {"fake --port 1"}
    starts = list(found.folder.records(PrivateStart))
    assert [start.command for start in starts] == ["fake --port 1 --api-key secret"] * 2
    shared = [path for path in found.folder.path.rglob("*") if path.is_file()]
    for path in (path for path in shared if "private" not in path.parts):
        assert not re.search(r"zebra|7391|7392|secret", path.read_text()), path


def test_prompts_are_echoed_and_warm_up_is_not_of_the_sample(served):
    server = served("ngram", measure="none").engine.servers[0]
    sampled = {tuple(prompt) for prompt in server.echoed}
    assert len(sampled) == 2
    warm = [ask for ask in server.asked if not ask.key[0]]
    assert warm
    assert not sampled & {tuple(ask.prompt) for ask in warm}


def test_a_text_that_differs_is_judged_by_the_plain_servers_margin(served):
    """0.0005 is within float32's noise, 0.001; the question is the text up to the difference."""
    engine = FakeEngine(lambda start, n: FakeServer(odd=3 if start.speculation else None))
    found = served("ngram", on=engine, **ONE)
    spec, plain = rows_of(found.run, 2), rows_of(found.run, 0, repeat=1)
    assert [(row.first_difference, row.tie) for row in spec] == [(3, True)] * 2
    assert [(row.first_difference, row.tie) for row in plain] == [(None, None)] * 2
    texts = {tuple(text.prompt): text.tokens for text in found.folder.records(PrivateText)}
    questions = engine.servers[-1].questions
    assert sorted(questions) == sorted([*prompt, *t[:3]] for prompt, t in texts.items())


@pytest.mark.parametrize("odd", [5, None])
def test_where_the_plain_server_leaves_itself_is_the_measure_of_a_tie(served, odd):
    """Without a difference of the plain server's own, 0.4 is no tie in float32."""

    def make(start, number):
        return FakeServer(odd=3 if start.speculation else odd if number > 2 else None, gap=0.4)

    run = served("ngram", on=FakeEngine(make), **ONE).run
    assert {row.tie for row in rows_of(run, 2)} == {odd is not None}


@pytest.mark.parametrize(
    ("engine", "named", "tie", "said"),
    [
        ("vllm", None, True, True),
        ("vllm", "float32", False, False),
        ("vllm", "bfloat16", True, False),
        ("llama.cpp", "float32", True, False),
    ],
)
def test_near_ties_of_servers_that_do_not_say_their_type_are_judged_by_dtype(
    served, small, engine, named, tie, said
):
    """A margin of 0.4 is noise in bfloat16, which is assumed and said, and not in float32. A
    llama-server is as coarse as bfloat16, whatever the type of the replays.
    """
    silent = {"engine": engine, "says": {"settings": {}}, "gap": 0.4}
    on = FakeServer(k=4, method="ngram", odd=3, **silent), FakeServer(**silent)
    rows = rows_of(served("ngram", on=on, serving={"dtype": named}).run, 4)
    assert {row.tie for row in rows} == {tie}
    assert any("unless a sweep's --dtype names" in note for note in small.notes) is said


def test_seeds_are_derived_sent_and_recorded_above_temperature_0(served):
    sampled = {"temperature": 0.7, "samples": 2, "mode": DraftingMode.GREEDY}
    found = served("ngram", measure="none", **sampled)
    sent = {ask.key: ask.sampling.seed for ask in found.engine.servers[0].asked if ask.key[0]}
    kept = {t.key: t.sampling.seed for t in found.run.trajectories}
    assert kept == sent
    assert len(set(kept.values())) == 4
    assert None not in kept.values()
    again = served("ngram", measure="none", out="again", **sampled).run
    assert {t.key: t.sampling.seed for t in again.trajectories} == kept
    assert all(row.first_difference is None for row in found.run.served)


def test_an_engine_drafts_in_the_mode_that_is_asked_for_and_lookup_takes_what_it_finds(
    served, small
):
    """One that drafted greedily would be taken for another mode."""
    drawn = DraftingMode.SAMPLED_TEMPERATURE_ONLY
    draft = str(small.models / "draft")
    found = served(draft, "ngram", **ONE, temperature=0.7, mode=drawn)
    modes = [start.speculation and start.speculation.mode for start in found.engine.starts]
    assert modes == [None, drawn, DraftingMode.GREEDY, None]
    of_rows = {(row.candidate and row.candidate.draft, row.mode) for row in found.run.served}
    assert of_rows == {
        (None, DraftingMode.GREEDY),
        ("draft", drawn),
        ("ngram", DraftingMode.GREEDY),
    }


def test_a_finished_sweep_starts_nothing_and_one_that_was_cut_only_what_is_missing(served):
    first = served("ngram", **TWO)
    kept = first.run.served
    engine = FakeEngine()
    again = served("ngram", on=engine, **TWO)
    assert (engine.ks, again.run.served) == ([], kept)
    log = first.folder.path / "observations" / "served.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"k":4' not in line))
    resumed = served("ngram", on=engine, **TWO)
    assert engine.ks == [4]
    assert sorted(map(repr, (r.digest for r in resumed.run.served))) == sorted(
        map(repr, (r.digest for r in kept))
    )


@pytest.mark.parametrize("changed", [{"version": "2.0"}, {"model": "another"}])
def test_a_run_is_not_continued_with_another_engine(served, changed):
    first = served("ngram", **TWO)
    log = first.folder.path / "observations" / "served.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    with pytest.raises(RunFolderError, match=f"{next(iter(changed.values()))}"):
        served("ngram", on=FakeEngine(lambda *_: FakeServer(**changed)), **TWO)


def test_a_server_that_dies_costs_what_it_had_still_to_answer(served):
    def make(start, number):
        # Two answers of the warm-up, then one request.
        return FakeServer(lives=3 if start.speculation and start.speculation.k == 4 else 10**6)

    found = served(
        "ngram", on=FakeEngine(make), measure="all", ks=(2, 4, 8), requests=5, measure_requests=5
    )
    assert found.engine.ks == [0, 2, 4, 8, 0]
    answered = [row for row in rows_of(found.run, 4) if row.error is None]
    lost = [row for row in rows_of(found.run, 4) if row.error]
    assert (len(answered), len(lost)) == (1, engine_ask.MOST_LOST)
    assert {row.error for row in lost} == {"unreachable"}
    assert len(rows_of(found.run, 8)) == 5
    (failed,) = found.run.failures
    assert (failed.candidate, failed.stage) == (LOOKUP, "serve")
    assert "stopped answering" in failed.reason
    again = served("ngram", measure="all", ks=(2, 4, 8), requests=5, measure_requests=5)
    assert again.engine.ks == [4]
    assert again.run.failures == ()
    assert len([row for row in rows_of(again.run, 4) if row.error is None]) == 5


def test_without_a_plain_server_there_is_nothing_to_measure_on(served):
    def make(start, number):
        raise EngineError("vllm ended before it answered", hint="see its log")

    with pytest.raises(EngineError, match="ended before"):
        served("ngram", on=FakeEngine(make))


def test_two_servers_of_the_users_take_turns_request_by_request(served):
    order = []

    def change(server, answer, n):
        order.append((server.k, answer.ask.key[0]))
        return answer

    spec, plain = FakeServer(k=4, method="ngram", change=change), FakeServer(change=change)
    found = served("ngram", on=[spec, plain])
    assert {facts.started for facts in found.run.engines} == {False}
    turns = [each for each in order if each[1]][-4:]
    assert [k for k, _ in turns] == [0, 4, 4, 0]  # each begins as often as the other
    assert turns[0][1] == turns[1][1]
    assert len(rows_of(found.run, 4)) == len(rows_of(found.run, 0, repeat=1)) == 2
    assert len({row.process for row in rows_of(found.run, 4) + rows_of(found.run, 0, 1)}) == 1
    assert rows_of(found.run, 4)[0].candidate == LOOKUP


SIDE_BY_SIDE = {"controls": False, "serving": {"side_by_side": True}}


def in_order(found):
    """Which servers answered what, by k."""
    return [(row.k, row.request) for row in found.run.served]


def test_a_server_without_a_draft_is_up_beside_each_and_they_take_turns(served):
    found = served("ngram", **TWO, **SIDE_BY_SIDE)
    assert found.engine.ks == [0, 0, 2, 0, 4]
    first, second = (request for _, request in in_order(found)[:2])
    for at, k in ((2, 2), (6, 4)):
        turns = in_order(found)[at : at + 4]
        assert turns == [(0, first), (k, first), (k, second), (0, second)]
    of_session = {}
    for row in found.run.served:
        of_session.setdefault(row.process, set()).add((row.k, row.repeat))
    # Each has its own number, whatever else was started.
    assert list(of_session.values()) == [{(0, 0)}, {(0, 1), (2, 0)}, {(0, 2), (4, 0)}]
    assert served("ngram", **TWO, **SIDE_BY_SIDE).engine.ks == []


def test_servers_side_by_side_are_restarted_together(served, small):
    """In the second repeat in the opposite order; the responses are written once."""
    sweep = TWO | SIDE_BY_SIDE | {"serving": {"side_by_side": True, "restarts": 2}}
    found = served(small.models / "draft", "ngram", **sweep)
    pairs = [("draft", 2), ("draft", 4), ("ngram", 2), ("ngram", 4)]
    assert [(f.candidate.draft, f.k) for f in found.run.engines if f.candidate] == [
        *pairs,
        *pairs[::-1],
    ]
    assert found.engine.ks == [0, *(k for _, each in pairs + pairs[::-1] for k in (0, each))]
    plain = [(row.server, row.repeat) for row in found.run.served if row.k == 0]
    assert len(set(plain)) == len({repeat for _, repeat in plain}) == 9
    assert len(found.run.decodes) == 2 * 8 * 2  # each once with its draft and once beside it


def test_a_load_is_kept_by_one_of_two_servers_at_a_time(served):
    """As many requests in a turn as keep it full, four times as many as are in flight."""
    sweep = ONE | SIDE_BY_SIDE | {"concurrency": (2,), "requests": 12, "measure_requests": 12}
    run = served("ngram", **sweep).run
    turns = [row.k for row in run.served if row.concurrency == 2]
    assert turns == [0] * 8 + [2] * 8 + [2] * 4 + [0] * 4


def test_what_one_of_two_servers_missed_is_asked_of_both_again(served):
    """The one that drafts is gone after a request, the third that it is asked in a row ends the
    session.
    """

    def make(start, number):
        return FakeServer(lives=3 if start.speculation else 10**6)  # two of the warm-up

    sweep = ONE | SIDE_BY_SIDE | {"requests": 6, "measure_requests": 6}
    begun = served("ngram", on=FakeEngine(make), **sweep)
    assert len([row for row in rows_of(begun.run, 2) if row.error]) == engine_ask.MOST_LOST
    assert "stopped answering" in begun.run.failures[0].reason
    again = served("ngram", **sweep)
    assert (again.engine.ks, again.run.failures) == ([0, 2], ())
    rows = [row for row in again.run.decodes if row.block == "ngram"]
    by_request = {}
    for row in rows:
        by_request.setdefault(row.request, {}).setdefault(row.k, set()).add(row.process)
    assert len(by_request) == 6
    # A draft's answer and a plain one of the same session: every request has both.
    assert all(each[2] <= each[0] for each in by_request.values())


def test_two_servers_side_by_side_that_were_killed_amid_their_turns_go_on(served):
    sweep = TWO | SIDE_BY_SIDE
    with pytest.raises(Killed):
        served("ngram", on=killed_at(5), **sweep)  # the one that drafts at k = 4
    found = served("ngram", **sweep)
    assert found.engine.ks == [0, 4]
    assert [len(rows_of(found.run, k)) for k in (2, 4)] == [2, 2]


@pytest.mark.parametrize("theirs", [True, False])
def test_what_else_the_machine_did_is_kept_where_our_own_servers_can_be_told_apart(
    served, monkeypatch, theirs
):
    state = MachineState(at=1.0, seconds=20.0, others=0.5, throttled=None, process="p")
    monkeypatch.setattr(engine_ask, "Watch", lambda _: SimpleNamespace(look=lambda: state))
    found = served("ngram", on=[FakeServer(k=4, method="ngram")] if theirs else None)
    assert bool(found.run.states) is not theirs


def test_one_server_that_drafts_writes_the_responses_itself(served):
    run = served("ngram", on=[FakeServer(k=4, method="ngram")]).run
    assert len(run.trajectories) == len(rows_of(run, 4)) == len(run.served) == 2
    assert len(run.replays) == 2


def test_drafts_are_replayed_over_a_server_that_does_not_draft(served):
    run = served(on=[FakeServer()]).run
    assert {row.k for row in run.served} == {0}
    assert {replay.candidate for replay in run.replays} == {DRAFT, LOOKUP}


def test_a_server_without_token_ids_is_timed_alone(served):
    server = FakeServer(k=4, returns_ids=False)
    run = served(on=[server], controls=False).run
    assert (run.replays, len(rows_of(run, 4))) == ((), 2)
    assert all(isinstance(ask.prompt, str) for ask in server.asked if ask.key[0])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_draft_of_another_vocabulary_is_started_where_the_engine_translates(
    served, small, engine
):
    draft = str(small.models / "foreign")
    found = served(draft, **ONE, controls=False, serving={"engine": engine})
    assert found.run.failures == ()
    assert {str(replay.candidate) for replay in found.run.replays} == {"foreign"}
    assert found.engine.ks == ([0, 2, 0] if engine == "vllm" else [0, 0])
    assert all(s.speculation.translated for s in found.engine.starts if s.speculation)
    said = "foreign is replayed only, not started on sglang: it needs equal vocab_size"
    assert any(note.startswith(said) for note in small.notes) is (engine == "sglang")


def test_a_draft_that_shares_few_tokens_is_refused(served, small, tmp_path):
    run = served(str(stranger(tmp_path)), "ngram", measure="none").run
    (failed,) = run.failures
    assert (failed.candidate.draft, failed.stage) == ("stranger", "pair")


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_levels_that_the_engine_does_not_serve_are_replayed_only(served, small, engine):
    """A .gguf file is served at the level that it has."""
    models = [str(small.models / name) for name in ("target", "draft")]
    if engine == "llama.cpp":
        for at, name in enumerate(("target", "draft")):
            models[at] = str(small.out.with_name(f"{name}.gguf"))
            write(Path(models[at]), small.models / name, Kind.F32)
    quants = {"quants": ("none", "int8"), "controls": False}
    found = served(models[1], target=models[0], serving={"engine": engine}, **ONE, **quants)
    assert found.engine.ks == [0, 2, 0]
    assert {str(replay.candidate) for replay in found.run.replays} == {"draft", "draft:int8"}
    said = (
        f"draft:int8 is replayed only, not started on {engine}: it does not serve it at this level"
    )
    assert said in small.notes


def test_requests_are_sent_at_poisson_times(served):
    found = served("ngram", **ONE, serving={"arrivals": "poisson:2"})
    assert len(rows_of(found.run, 2, load="open")) == 2
    for server in found.engine.servers[1:]:
        times = sorted(ask.arrival for ask in server.asked if ask.arrival is not None)
        assert times[0] == 0 < times[1]


def mortal(most=1, **fields):
    """A server that is gone after so many measured answers."""
    return FakeServer(**fields, change=lambda _, a, n: a if n <= most else unreachable(a.ask))


def test_an_open_loop_that_was_cut_is_asked_again_as_a_whole(served):
    """The requests that were left alone would meet less load."""
    sweep = {"measure": "all", "ks": (2, 4), "serving": {"arrivals": "poisson:2"}, "requests": 5}
    engine = FakeEngine(lambda start, n: mortal() if n == 2 else None)
    first = served("ngram", on=engine, **sweep)
    assert engine.ks == [0, 2, 4, 0]
    # What was answered is kept, and nothing is made of it.
    before = list(first.folder.records(Served))
    kept = [row for row in before if row.k == 2]
    assert [row.error for row in kept] == [None, *["unreachable"] * engine_ask.MOST_LOST]
    assert rows_of(first.run, 2, load="open") == []
    assert {row.k for row in first.run.decodes} == {0, 4}
    resumed = FakeEngine()
    again = served("ngram", on=resumed, **sweep)
    assert resumed.ks == [2]
    assert [ask.arrival for ask in resumed.servers[0].asked if ask.key[0]] == [
        ask.arrival for ask in engine.servers[2].asked if ask.key[0]
    ]
    assert len(rows_of(again.run, 2, load="open")) == 5
    assert list(again.folder.records(Served))[: len(before)] == before


def test_of_two_servers_only_the_one_that_was_cut_is_asked_again(served):
    sweep = {"serving": {"arrivals": "poisson:2"}, "requests": 5, "controls": False}
    spec, plain = mortal(k=4, method="ngram", most=2), FakeServer()
    served("ngram", on=[spec, plain], **sweep)
    spec, plain = FakeServer(k=4, method="ngram"), FakeServer()
    run = served("ngram", on=[spec, plain], **sweep).run
    assert [ask for ask in plain.asked if ask.arrival is not None] == []
    assert len([ask for ask in spec.asked if ask.arrival is not None]) == 5
    assert len(rows_of(run, 4, load="open")) == len(rows_of(run, 0, repeat=1, load="open")) == 5


def refusing():
    """Drafting, it refuses the second of its requests."""
    refused = {"error": Fault.REFUSED, "status": 429}
    return FakeServer(change=lambda s, a, n: replace(a, **refused) if s.k and n == 2 else a)


def test_of_several_whole_visits_the_last_counts(served):
    """One in which a request was refused is whole, since it came; it is asked again all the same,
    with the others.
    """
    sweep = ONE | {"serving": {"arrivals": "poisson:2"}, "requests": 5}
    first = served("ngram", on=FakeEngine(lambda *_: refusing()), **sweep).run
    errors = [row.error for row in rows_of(first, 2, load="open")]
    assert (len(errors), errors.count("HTTP 429")) == (5, 1)
    again = served("ngram", **sweep)
    assert again.engine.ks == [2]
    rows = rows_of(again.run, 2, load="open")
    assert [row.error for row in rows] == [None] * 5
    assert len({row.server for row in rows}) == 1


def test_a_request_that_is_refused_is_counted_and_asked_again(served, small):
    found = served("ngram", on=FakeEngine(lambda *_: refusing()), **ONE)
    assert [row.error for row in rows_of(found.run, 2)] == [None, "HTTP 429"]
    assert [row.error for row in found.run.unanswered] == ["HTTP 429"]
    assert any("1 of 2 requests was not answered: HTTP 429" in note for note in small.notes)
    again = served("ngram", **ONE)
    assert again.engine.ks == [2]
    assert again.run.unanswered == ()


def test_what_only_an_engine_drafts_is_served_and_not_replayed(served, tmp_path):
    file = tmp_path / "spec.json"
    file.write_text('{"method": "medusa", "num_speculative_tokens": "{k}"}')
    found = served(f"spec:{file}", **TWO, controls=False)
    assert found.run.replays == ()
    assert found.engine.ks == [0, 2, 4, 0]
    assert found.engine.starts[1].speculation.method == "raw"


def test_a_run_can_be_redacted_and_read(served):
    folder = served("ngram", measure="none").folder
    folder.redact()
    assert len(read_run(RunFolder(folder.path)).served) == 4


def foreign(wrote, config=0):
    """One of the servers writes this id in its second answer."""

    def change(_, answer, n):
        tokens = (*answer.tokens[:3], wrote, *answer.tokens[4:])
        return replace(answer, tokens=tokens) if n == 2 else answer

    return FakeEngine(lambda start, n: FakeServer(change=change) if n == config + 1 else None)


def errors_of(folder):
    return [row.error for row in folder.records(Served)]


@pytest.mark.parametrize("config", [0, 1])
def test_an_answer_with_ids_that_the_target_does_not_have_is_none_and_is_asked_again(
    served, small, config
):
    """The embedded target has 2048. Nor is a draft measured along it."""
    sweep = {"measure": "all", "ks": (2,), "controls": False}
    draft = str(small.models / "draft")
    first = served(draft, on=foreign(2048, config), **sweep)
    assert sorted(filter(None, errors_of(first.folder))) == ["wrong ids"]
    assert len(first.run.trajectories) == 2 - (config == 0)
    assert any("ids that its model does not have" in note for note in small.notes)
    again = served(draft, **sweep)
    assert len(again.run.trajectories) == len(again.run.replays) == 2
    assert len(rows_of(again.run, 2)) == 3 - (config == 0)
    assert again.run.failures == ()


def test_the_last_id_of_the_target_is_written_by_it(served):
    assert set(errors_of(served("ngram", on=foreign(2047), ks=(2,)).folder)) == {None}


@pytest.mark.parametrize("measured", [True, False])
def test_a_start_has_its_time_limit_and_the_next_is_made(served, monkeypatch, measured):
    """Warming up is part of it: a server that is ready may never answer."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(engine_ask.time, "monotonic", lambda: clock.now)

    def change(server, answer, n):
        clock.now += 100.0 if server.k == 2 and bool(n) is measured else 0.0
        return answer

    engine = FakeEngine(lambda *_: FakeServer(change=change))
    found = served("ngram", on=engine, **TWO, candidate_timeout=50.0)
    assert engine.ks == [0, 2, 4, 0]
    assert [len(rows_of(found.run, k)) for k in (2, 4)] == [0, 2]
    assert ["--candidate-timeout" in failure.reason for failure in found.run.failures] == [True]


def test_what_a_server_says_is_shown_and_not_recorded(served, small):
    """It may quote a prompt: in an answer, or in the log that an error of its start shows."""

    error = {"error": Fault.UNREACHABLE, "reason": "cannot read `my secret`"}

    def make(start, number):
        if start.speculation and start.speculation.method == "draft-model":
            said = "vllm ended; its log ends:\n  prompt: another secret"
            raise EngineError(said, hint="see its log", safe_message="vllm ended")
        quoting = FakeServer(change=lambda _, answer, n: replace(answer, **error))
        return quoting if start.speculation else None

    many = {"requests": 3, "measure_requests": 3}
    found = served(on=FakeEngine(make), **ONE, **many)
    reasons = [failure.reason for failure in found.folder.records(Failure)]
    assert reasons == ["vllm ended", "the server stopped answering (unreachable)"]
    for secret in ("my secret", "another secret"):
        assert any(secret in note for note in small.notes)
        for path in (found.folder.path / "observations").iterdir():
            assert secret not in path.read_text()


@pytest.mark.parametrize("measure", ["all", "best"])
def test_a_draft_that_the_engine_cannot_use_at_the_asked_k_is_said_and_recorded(
    served, small, measure
):
    """llama.cpp's lookup of 2-grams proposes 2 tokens or more."""
    gguf = {
        "engine": "llama.cpp",
        "command": "docker run i",
        "tokenizer": str(small.models / "target"),
    }
    sweep = {"measure": measure, "controls": False, "serving": gguf, "target": "org/t.gguf"}
    said = "llama.cpp's prompt lookup proposes no fewer tokens than its n-gram has (2)"
    found = served("ngram", ks=(1,), **sweep)
    assert found.engine.ks == [0, 0]
    (failed,) = found.run.failures
    assert (failed.candidate, failed.reason) == (LOOKUP, f"replayed only: {said}")
    assert failed.hint == "ask for it with --k 2 or more"
    found = served("ngram", ks=(1, 2), out="more", **sweep)
    assert found.engine.ks == [0, 2, 0]
    assert found.run.failures == ()
    assert small.notes.count(f"ngram is not started below k = 2: {said}") == 2
    reasons = {each.k: each.reason for each in recommend(found.run).evaluations}
    assert reasons[1] == said
    assert reasons[2] != said
