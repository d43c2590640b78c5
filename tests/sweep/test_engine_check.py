"""A server is what it should be: the one that the run was begun on, drafting as it was asked to."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from scenes import replayed
from sweep import engine
from sweep.engine import FakeEngine, FakeServer, drafted, rows_of

from draftbench.errors import EngineError, RunFolderError, UsageError
from draftbench.planner.recommend import recommend
from draftbench.records import (
    Candidate,
    Confidences,
    DraftLength,
    EngineFacts,
    Failure,
    RoundCounts,
    Served,
    StopRule,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import cores_here
from draftbench.run_folder.run import read_run
from draftbench.sweep import engine_servers
from draftbench.sweep.engine_check import proposes
from draftbench.traffic import TrafficQuery

LOOKUP = Candidate(draft="ngram")
BEFORE = StopRule(kind="before", threshold=0.75)


ONE = {"measure": "all", "ks": (2,)}


def cut(folder, answers=1):
    """The run as if it had been killed after its first answers."""
    log = folder.path / "observations" / "served.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:answers]))


def logged(folder, *timestamps):
    """A log of one request a timestamp."""
    file = folder / "log.jsonl"
    rows = [{"prompt": f"def f{at}():", "timestamp": when} for at, when in enumerate(timestamps)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TrafficQuery(str(file), b"key")


LOG, POISSON, DTYPE = {"arrivals": "log"}, {"arrivals": "poisson:2"}, {"args": "--dtype float32"}


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ({}, {"command": "docker run i {args}"}, r"--engine-command: none → … \{args\} \("),
        (DTYPE, {"args": "--dtype float16"}, r"--engine-args: --dtype … \(\w+\) → --dtype … \("),
        ({}, {"time_scale": 2.0}, "--time-scale: 1.0 → 2.0"),
        ({}, {"side_by_side": True}, "servers: started → started side by side"),
        ({}, {"tokenizer": "TARGET"}, "tokenizer: none → .*target"),
        (LOG | {"at": 10.5}, LOG | {"at": 11.5}, "at other times: other timestamps in the log"),
        (POISSON | {"seed": 0}, POISSON | {"seed": 1}, "at other times: .* --seed"),
        ({"most": 4}, {"most": 3}, "what spec files hold: .*4.* → .*3"),
    ],
)
def test_a_run_is_not_continued_with_another_value_of_what_it_measures(
    served, small, tmp_path, first, then, words
):
    """Settings of the engine, times of arrival, and what a file of speculation holds."""

    def measured(serving, engine):
        serving, traffic = dict(serving), logged(tmp_path, 10, serving.get("at", 11), 12)
        (tmp_path / "s.json").write_text(json.dumps({"method": "m", "n": serving.pop("most", 0)}))
        traffic = replace(traffic, seed=serving.pop("seed", 0))
        if "tokenizer" in serving:
            serving["tokenizer"] = str(small.models / "target")
        serving.pop("at", None)
        sweep = ONE | {"controls": False, "traffic": traffic, "serving": serving}
        return served(f"spec:{tmp_path}/s.json", on=engine, **sweep)

    cut(measured(first, FakeEngine()).folder)
    engine = FakeEngine()
    with pytest.raises(RunFolderError, match=words) as caught:
        measured(then, engine)
    assert "--out" in caught.value.hint
    assert engine.starts == []


def test_the_gaps_of_a_log_are_the_load_whenever_it_began(served, tmp_path):
    sweep = ONE | {"serving": LOG}
    cut(served("ngram", traffic=logged(tmp_path, 10, 10.5, 12), **sweep).folder)
    again = served("ngram", traffic=logged(tmp_path, 20, 20.5, 22), **sweep)
    assert {ask.arrival for ask in again.engine.servers[1].asked} == {None, 0.0, 0.5, 2.0}


def other_weights(model):
    """Replace a model by one of the same name and shape."""
    file = model / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("replaced", "words", "whole"),
    [("big", "the target changed", True), ("head", "draft `dflash:head` changed", False)],
)
def test_a_run_is_not_continued_with_other_files_of_its_models(
    served, small, replaced, words, whole
):
    """Not where only the engine loads them either."""
    models = {"big": small.copy("target", "big"), "head": small.copy("draft", "head")}
    strange = {"architectures": ["DFlashDraftModel"], "strange": 1}
    (models["head"] / "config.json").write_text(json.dumps(strange))
    drafts, sweep = f"dflash:{models['head']}", ONE | {"controls": False}
    folder = served(drafts, target=str(models["big"]), **sweep).folder
    if not whole:
        cut(folder, 3)
    other_weights(models[replaced])
    engine = FakeEngine()
    with pytest.raises(RunFolderError, match=words) as caught:
        served(drafts, on=engine, target=str(models["big"]), **sweep)
    assert "bring the old files back" in caught.value.hint
    assert engine.starts == []


def test_a_model_that_is_replaced_between_two_starts_ends_the_sweep(served, small, tmp_path):
    target = small.copy("target", "big")
    engine = FakeEngine(lambda start, n: other_weights(target) if n == 1 else None)
    with pytest.raises(RunFolderError, match="the target changed"):
        served("ngram", on=engine, target=str(target), **ONE)
    assert engine.ks == [0]


def test_a_command_that_cannot_be_run_is_refused_before_a_run_folder_is_made(served, small):
    with pytest.raises(UsageError, match="--engine-args cannot hold --model"):
        served("ngram", **ONE, serving={"args": "--model other"})
    assert not small.out.exists()


@pytest.mark.parametrize(
    ("on", "words", "whole"),
    [
        ({"k": 8, "method": "ngram"}, "at k = 4, and the server has ngram at k = 8", True),
        ({"k": 8, "method": "ngram"}, "at k = 4, and the server has ngram at k = 8", False),
        ({"k": 4, "method": "suffix"}, "at k = 4, and the server has suffix at k = 4", True),
        ({}, "draft ngram at k = 4, and the server has none", False),
        ({"k": 4, "method": "ngram", "dtype": "float16"}, "dtype float32, and .* float16", True),
    ],
)
def test_a_run_is_not_continued_on_a_server_that_drafts_otherwise(served, on, words, whole):
    """Not where nothing is left to be asked either: its drafts would be taken for measured."""
    sweep = {"controls": False, "ks": (4, 8)}
    folder = served("ngram", on=[FakeServer(k=4, method="ngram")], **sweep).folder
    if not whole:
        cut(folder)
    with pytest.raises(RunFolderError, match=words):
        served("ngram", on=[FakeServer(**on)], **sweep)


@pytest.mark.parametrize("usual", [cores_here() + 1, None])
@pytest.mark.parametrize("begun", [cores_here(), None])
def test_a_run_is_not_continued_with_other_threads_of_its_servers(
    served, monkeypatch, begun, usual
):
    """As many as this process has, which --threads asks for too, or those that servers usually
    have; the hint resumes it.
    """
    sweep = {"measure": "all", "ks": (2, 4)}
    monkeypatch.setattr(engine_servers, "server_threads", lambda: usual)
    folder = served("ngram", threads=begun, **sweep).folder
    log = folder.path / "observations" / "served.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"k":4' not in line))
    engine = FakeEngine()
    now = None if begun else cores_here()
    were, would = (threads or usual or "all" for threads in (begun, now))
    with pytest.raises(RunFolderError, match=f"with {were} threads .* with {would}") as caught:
        served("ngram", on=engine, threads=now, **sweep)
    hint = f"give --threads {begun}, as" if begun else "leave --threads out, as"
    assert caught.value.hint.startswith(hint)
    assert engine.starts == []
    assert served("ngram", threads=begun, **sweep).engine.ks == [4]


@pytest.mark.parametrize(
    ("on", "caches"),
    [
        *((FakeEngine(lambda *_, says=says: FakeServer(prefix_cache=says)), {kept})
          for says, kept in ((None, False), (True, True), (False, False))),
        *(((FakeServer(k=4, method="ngram", prefix_cache=says), FakeServer()), {says, False})
          for says in (None, True)),
    ],
)  # fmt: skip
def test_whether_prompts_are_cached_is_unknown_of_a_users_server_that_does_not_say_so(
    served, on, caches
):
    """One that was started has no prefix cache unless it says so."""
    folder = served("ngram", on=on, **ONE).folder
    assert {facts.prefix_cache for facts in folder.records(EngineFacts)} == caches


def test_starts_of_one_run_do_not_differ_in_what_they_share(served, tmp_path):
    """A draft's server too computes as the one without it does."""
    kind = FakeEngine(lambda start, n: FakeServer(dtype="float16" if n == 2 else "float32"))
    with pytest.raises(RunFolderError, match="dtype float32, and the server has float16"):
        served("ngram", on=kind, **ONE)
    assert {row.k for row in RunFolder(tmp_path / "run").records(Served)} == {0}


NOTHING = {"method": "draft-simple", "counted": RoundCounts(rounds=0, drafted=0, accepted=0)}


@pytest.mark.parametrize(
    ("on", "ks", "complaint"),
    [
        ([FakeServer(k=4), FakeServer(version="2.0")], (4,), "version 1.0 and 2.0"),
        ([FakeServer(k=4), FakeServer(k=2)], (4,), "without speculation$"),
        ([FakeServer(), FakeServer(k=2)], (4,), "or exchange the two addresses$"),
        ([FakeServer(**NOTHING)], (4,), r"set to draft \(draft-simple\) and drafts nothing"),
        ([FakeServer(k=4)], (3,), "drafts 4 tokens a round, and --k says 3"),
        # It does not say how many, and drafts more than that.
        ([FakeServer(k=4, says={"k": None})], (3,), "drafts 4 tokens a round, and --k says 3"),
        ([FakeServer(k=65)], (1, 2), "start it with at most 64"),
    ],
)
def test_servers_that_are_no_pair_or_not_what_they_say_are_refused(served, on, ks, complaint):
    with pytest.raises(EngineError) as caught:
        served(on=on, drafts=(), ks=ks)
    assert re.search(complaint, f"{caught.value.message}\n{caught.value.hint}", re.MULTILINE)


@pytest.mark.parametrize(("model", "said"), [("org/other", True), ("org/target", False)])
def test_a_server_whose_model_has_another_name_is_said_to_be_taken_for_the_target(
    served, small, model, said
):
    served("ngram", on=[FakeServer(model=model)])
    words = "the server calls its model other: it is taken to be target"
    assert any(words in note for note in small.notes) is said


def test_a_folder_with_a_tokenizer_and_no_more_is_enough_for_prompt_lookup(served, small, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(small.models / "target" / name, tmp_path / name)
    asked = {"target": "", "serving": {"tokenizer": str(tmp_path)}, "on": [FakeServer(k=4)]}
    assert served("ngram", **asked).run.replays
    with pytest.raises(UsageError, match="cannot be replayed: the served model is not named"):
        served(small.models / "draft", **asked, out="other")


def test_two_servers_of_other_weights_are_no_speed_up(served):
    servers = FakeServer(k=4, settings={"ftype": "Q8_0"}), FakeServer(settings={"ftype": "F32"})
    with pytest.raises(EngineError, match="differ in more than their drafting: ftype Q8_0 and F32"):
        served("ngram", on=servers)
    assert all(server.asked == [] for server in servers)


@pytest.mark.parametrize(
    ("spec", "plain", "engine", "name", "flag"),
    [
        ("1", "4", "llama.cpp", "slots", "-np 4"),
        ("4", "1", "sglang", "max_running_requests", "--max-running-requests 4"),
        ("1", None, "llama.cpp", "slots", "-np 4"),
    ],
    ids=["spec", "plain", "alone"],
)
def test_a_server_takes_as_many_requests_at_a_time_as_are_asked_for(
    served, spec, plain, engine, name, flag
):
    on = [FakeServer(k=4, method="ngram", engine=engine, settings={name: spec})]
    on += [] if plain is None else [FakeServer(engine=engine, settings={name: plain})]
    with pytest.raises(EngineError, match="answers 1 at a time, and 4 requests are") as caught:
        served("ngram", on=on, concurrency=(1, 4))
    assert caught.value.hint == f"start it with `{flag}`; a sweep can ask for --concurrency 1"
    assert all(server.asked == [] for server in on)
    assert served("ngram", on=on, concurrency=(1,)).run.served


@pytest.mark.parametrize(
    ("engine", "settings", "slots"),
    [
        ("llama.cpp", {"slots": "4"}, 4),
        ("llama.cpp", {"slots": "99999999"}, 4096),
        ("vllm", {}, None),
    ],
)
def test_how_many_requests_a_running_server_answers_at_once_is_kept_where_they_arrive(
    served, engine, settings, slots
):
    """Else a run on it would pass for the same load as one on a server with other slots."""
    on = FakeServer(k=4, method="ngram", engine=engine, settings=settings)
    run = served("ngram", on=[on], serving={"arrivals": "poisson:100"}).run
    assert run.manifest.question.max_concurrency == slots


@pytest.mark.parametrize(
    ("spec", "plain", "said"),
    [
        ({"dtype": "float16"}, {}, ["dtype float16 and float32"]),
        # What follows from drafting, or is the engine's own word for its slots.
        (
            {"settings": {"speculative_model": "d", "max_running_requests": "48"}},
            {"settings": {"slots": "4"}},
            [],
        ),
    ],
)
def test_other_settings_of_two_servers_are_a_caveat_unless_they_are_of_drafting(
    served, spec, plain, said
):
    servers = FakeServer(k=4, method="ngram", **spec), FakeServer(**plain)
    answer = recommend(served("ngram", on=servers).run)
    found = [caveat for caveat in answer.caveats if caveat.kind == "other-server"]
    assert len(found) == len(said)
    assert all(words in caveat.text for words, caveat in zip(said, found, strict=True))
    assert all(caveat.decisive for caveat in found)


def test_a_baseline_is_not_put_beside_a_server_that_was_measured_alone(served):
    served("ngram", on=[FakeServer(k=4, method="ngram")])
    with pytest.raises(RunFolderError, match="servers: given → given with a baseline"):
        served("ngram", on=[FakeServer(k=4, method="ngram"), FakeServer()])


def test_a_server_that_does_not_draft_needs_a_draft_to_replay(served, tmp_path):
    server = FakeServer()
    with pytest.raises(UsageError, match="does not draft, and no draft is given") as caught:
        served(on=[server], drafts=())
    assert "--drafts" in caught.value.hint
    assert all(ask.key == ("", 0) for ask in server.asked)  # nothing but what shows drafting
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "model", "specs", "name"),
    [
        ("draft_model", "org/small", {"small": "org/small"}, "small"),
        ("eagle3", "org/head", {"eagle3:head": "eagle3:org/head"}, "eagle3:head"),
        ("mtp", "org/target", {"mtp": "mtp"}, "mtp"),
        ("suffix", None, {"suffix": "suffix"}, "suffix"),
        # Which of two drafts it is, or which kind of head, it does not say.
        ("EAGLE", "org/head", {}, "head"),
        ("draft-simple,ngram-simple", None, {}, "draft-simple,ngram-simple"),
        ("draft-simple", None, {}, "draft-simple"),
    ],
)
def test_what_drafts_would_call_a_running_servers_draft_is_kept_where_it_tells(
    served, method, model, specs, name
):
    settings = {"speculative_model": model} if model else {}
    server = FakeServer(k=2, method=method, settings=settings)
    found = served(on=[server], drafts=(), measure="replay")
    assert found.folder.manifest.specs == specs
    assert {row.candidate.draft for row in found.run.served} == {name}


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"method": "ngram-simple"}, r"it says that it drafts \(ngram-simple\)"),
        ({"method": None, "k": 4}, r"it says that it drafts \(4 tokens a round\)"),
    ],
)
def test_a_server_without_a_draft_that_says_that_it_drafts_is_refused(
    served, tmp_path, says, words
):
    with pytest.raises(EngineError, match=f"meant to run as `without a draft`, but {words}"):
        served("ngram", on=FakeEngine(lambda *_: FakeServer(says=says)), **ONE)
    folder = RunFolder(tmp_path / "run")
    (failed,) = folder.records(Failure)
    assert (failed.candidate, failed.stage) == (None, "serve")
    assert failed.reason.startswith("the server was meant to run as `without a draft`")
    assert "--engine-args" in failed.hint
    assert list(folder.records(Served)) == []


def betraying(after=0):
    """A server that drafts in its answers from one of them on, whatever it was asked and says."""
    counts = drafted(3, 0, 1)
    return FakeServer(change=lambda _, a, n: replace(a, counts=counts) if n > after else a)


@pytest.mark.parametrize("after", [0, 1])
def test_a_server_without_a_draft_whose_answers_were_drafted_measures_nothing(
    served, tmp_path, after
):
    """Nor do the answers that it gave before it was found out."""
    engine = FakeEngine(lambda *_: betraying(after))
    with pytest.raises(EngineError, match="meant to run as `without a draft`, but it drafted"):
        served("ngram", on=engine, **ONE)
    folder = RunFolder(tmp_path / "run")
    errors = [row.error for row in folder.records(Served)]
    assert errors == [None] * after + ["other drafting"]
    assert read_run(folder).served == ()
    assert [failed.stage for failed in folder.records(Failure)] == ["serve"]
    run = served("ngram", **ONE).run
    assert len(rows_of(run, 0)) == len(rows_of(run, 2)) == 2
    assert run.failures == ()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (FakeServer(says={"method": "none", "k": 0}), "it says that it does not draft"),
        (FakeServer(says={"k": 3}), "it says that it drafts 3 tokens a round"),
        (FakeServer(says={"method": "eagle3"}), "it says that it drafts by eagle3"),
        (
            FakeServer(says={"method": "ngram-simple,draft-simple"}),
            "it says that it drafts by draft-simple",
        ),
        (betraying(), "it drafted 3 tokens in a round"),
    ],
)
def test_an_arm_that_drafts_otherwise_than_asked_is_a_failure(served, server, words):
    engine = FakeEngine(lambda start, n: server if start.speculation else None)
    found = served("ngram", on=engine, **ONE)
    (failed,) = found.run.failures
    assert (failed.candidate, failed.stage) == (LOOKUP, "serve")
    assert failed.reason == f"the server was meant to run as `ngram: k = 2`, but {words}"
    assert rows_of(found.run, 2) == []
    assert [row for row in found.run.decodes if row.k] == []


def test_an_arm_with_another_draft_model_is_a_failure(served, small):
    foreign = FakeServer(settings={"speculative_model": "/models/foreign"})
    engine = FakeEngine(lambda start, n: foreign if start.speculation else None)
    draft = str(small.models / "draft")
    run = served(draft, on=engine, **ONE, controls=False).run
    assert [failed.reason.partition(", but ")[2] for failed in run.failures] == [
        "it says that it drafts with foreign"
    ]


def silent(tells=True):
    """A server that says that it drafts, and proposes nothing: in each answer, or by its counter
    alone.
    """

    def change(server, answer, n):
        return replace(answer, counts=drafted(server.k, 0, 0) if server.k and tells else None)

    return FakeServer(counted=RoundCounts(drafted=0), change=change)


@pytest.mark.parametrize("tells", [True, False])
def test_an_arm_that_proposes_nothing_at_all_is_a_failure(served, small, tells):
    draft = str(small.models / "draft")
    engine = FakeEngine(lambda *_: silent(tells))
    found = served(draft, on=engine, **ONE, controls=False)
    (failed,) = found.run.failures
    assert failed.reason.endswith("`draft: k = 2`, but it drafted nothing")
    assert rows_of(found.run, 2) == []
    kept = [row for row in found.folder.records(Served) if row.k]
    assert [row.error for row in kept] == [None, None, "other drafting"]
    again = served(draft, **ONE, controls=False)
    assert (again.engine.ks, again.run.failures) == ([2], ())
    assert len(rows_of(again.run, 2)) == 2


@pytest.mark.parametrize("repeats", [False, True])
def test_prompt_lookup_that_finds_nothing_is_measured(served, monkeypatch, repeats):
    """The texts of these servers count up: replay shows that there is nothing to repeat."""
    if repeats:
        monkeypatch.setattr(engine, "writes", lambda prompt, limit: ((7, 8, 9) * limit)[:limit])
    run = served("ngram", on=FakeEngine(lambda *_: silent()), **ONE).run
    assert ["it drafted nothing" in failure.reason for failure in run.failures] == [True] * repeats
    assert len(rows_of(run, 2)) == (0 if repeats else 2)


@pytest.mark.parametrize(
    ("sure", "rule", "said"),
    [
        ((0.5, 0.7), BEFORE, False),
        ((0.5, 0.8), BEFORE, True),
        # The unsure token is proposed.
        ((0.5, 0.7), StopRule(kind="after", threshold=0.75), True),
        ((0.5, 0.7), None, True),
        (None, BEFORE, None),
    ],
)
def test_a_rule_may_stop_every_draft_of_a_response(sure, rule, said):
    """The draft is always wrong, and sure of a token in as many ways as it has positions."""
    told = {}
    if sure is not None:
        nothing = Confidences(lengths=(0, 0, 0), of_all=(), of_ten=())
        told = {"confidence": sure, "confidence_of_ten": sure, "off_path": nothing}
    response, replay = replayed((0.0, 0.0), **told)
    assert proposes(response, replay, DraftLength(4, rule)) is said


def test_a_k_that_a_server_does_not_say_is_the_largest_that_it_proposed(served, small):
    """Its first answer is too short to show the 4 tokens of a round."""

    def change(server, answer, n):
        first = sum(asked.key == ("", 0) for asked in server.asked) == 1
        return replace(answer, counts=drafted(1, 0, 1)) if first else answer

    coy = FakeServer(k=4, says={"method": None, "k": None}, change=change)
    run = served("ngram", on=[coy], controls=False).run
    assert {row.k for row in run.served} == {4}
    assert any("does not say how many" in note for note in small.notes)


def test_a_k_is_taken_from_the_user_where_a_server_was_only_seen_to_draft_fewer(served, small):
    run = served(on=[FakeServer(k=3, says={"k": None})], drafts=(), ks=(5,)).run
    assert {row.k for row in run.served} == {5}
    said = "the server drafts 5 tokens a round (draft-model), by --k"
    assert any(note.startswith(said) for note in small.notes)


def test_a_k_that_neither_facts_nor_answers_show_is_an_error(served):
    sums = RoundCounts(drafted=9, accepted=3)
    silent = {"says": {"k": None}, "change": lambda _, answer, n: replace(answer, counts=sums)}
    with pytest.raises(EngineError, match="does not say how many tokens per round"):
        served("ngram", on=[FakeServer(k=4, method="draft-simple", **silent)])


def test_what_a_server_drafts_is_listed_at_its_k(served):
    """Though no speed is known, and its k was not among those that were asked about."""
    run = served("ngram", on=[FakeServer(k=4, method="ngram")], controls=False, ks=(1, 2)).run
    (listed,) = recommend(run).by_candidate
    assert (str(listed.candidate), listed.k, listed.requests_served) == ("ngram", 4, 2)
