"""A sweep that was stopped anywhere and begun again ends like one that was not."""

import json
import re
from collections import Counter, defaultdict

import msgspec
import pytest
from scenes import with_fields

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.decoder.llama import LlamaRunner
from draftbench.errors import ModelError, RunFolderError
from draftbench.models.source import ModelSource
from draftbench.planner.doubts import unfinished
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, Decode, Failure, ModelFacts
from draftbench.run_folder import run as run_folder
from draftbench.run_folder.folder import PrivateText, RunFolder, RunWriter
from draftbench.run_folder.run import read_run
from draftbench.sweep import resume, worker
from draftbench.sweep.places import Here
from draftbench.sweep.pool import Pool

pytestmark = pytest.mark.slow


class PowerCutError(BaseException):
    """Not an error that anything could handle."""


@pytest.fixture
def cut(small):
    """A sweep on a machine that dies when so many appends are done; its folder if it ends."""

    def cut(appends, *drafts, **changes):
        left = [appends]

        def counted(original):
            def append(self, records):
                if not left[0]:
                    raise PowerCutError
                left[0] -= 1
                original(self, records)

            return append

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunWriter, "append", counted(RunWriter.append))
            try:
                return small.sweep(*drafts, **changes)
            except PowerCutError:
                return None

    return cut


def ended_after_cuts(cut, appends, **changes):
    """The folder of a sweep that is cut after so many appends, and begun again, until it ends."""
    cuts = 0
    while not (ended := cut(appends, **changes)):
        cuts += 1
    assert cuts >= 2
    return ended


def decoded(row):
    where = row.block, row.concurrency, row.request, row.repeat, row.k
    return *where, row.proposed, row.accepted, row.digest, row.active


def essence(folder):
    """Everything but times and the processes that took them."""
    found = read_run(folder)
    return (
        {t.key: t for t in folder.records(PrivateText)},
        found.trajectories,
        found.replays,
        sorted(map(decoded, found.decodes)),
        sorted((p.block, p.concurrency, str(p.candidate), p.context) for p in found.costs),
        found.facts,
    )


@pytest.fixture
def restarted(monkeypatch):
    """Every process of several is a new worker in this one."""
    monkeypatch.setattr(
        Pool, "_begin", lambda pool, card: Here(pool.prepared, pool._keep, pool.watcher)
    )


@pytest.mark.parametrize(
    ("appends", "asked"), [(8, {}), (7, {"temperature": 0.7}), (9, {"processes": 2})]
)
def test_a_sweep_cut_again_and_again_ends_like_an_uncut_one(small, cut, restarted, appends, asked):
    asking = {"concurrency": (1, 2), "measure_requests": 2} | asked
    expected = essence(small.sweep(out="whole", **asking))
    assert essence(ended_after_cuts(cut, appends, **asking)) == expected


@pytest.fixture
def unloadable(monkeypatch):
    """From when this is called no weights can be loaded."""

    def load(self, dtype, device):
        raise AssertionError(f"the weights of {self.spec} were loaded")

    return lambda: monkeypatch.setattr(ModelSource, "load", load)


@pytest.mark.parametrize("measure", ["best", "all", "none", "replay"])
def test_an_ended_sweep_loads_and_measures_nothing_again(small, unloadable, measure):
    effort = {"concurrency": (1, 2), "measure": measure, "controls": True}
    small.sweep(**effort)
    files = {path: path.read_bytes() for path in small.out.rglob("*") if path.is_file()}
    unloadable()
    small.notes.clear()
    small.sweep(**effort)
    assert small.notes[-1] == "everything is measured already; no model is loaded"
    assert not [note for note in small.notes if note.startswith("loading")]
    assert {path: path.read_bytes() for path in files} == files


def asked(folder):
    """Who was measured and in which cells, however often."""
    found = read_run(folder)
    return found.candidates, {decoded(row) for row in found.decodes}


@pytest.mark.parametrize("more", [{"measure_requests": 2}, {"measure": "all"}, {"controls": True}])
def test_what_is_asked_for_in_addition_is_measured(small, more):
    few = {"measure": "none" if "measure" in more else "all", "measure_requests": 1}
    small.sweep(**few)
    assert asked(small.sweep(**few | more)) == asked(small.sweep(out="at once", **few | more))


def test_what_was_decoded_before_says_at_which_ks_a_sweep_goes_on(small):
    asking = {"concurrency": (1, 2), "measure_requests": 1}
    assert {row.k for row in small.found(**asking, measure="all").decodes} == {0, 1, 2}
    more = small.found(**asking | {"measure_requests": 2}, measure="best").decodes
    by_request = Counter((row.block, row.concurrency, row.request, row.k) for row in more)
    assert {k for *_, k in by_request} == {0, 1, 2}
    assert len(by_request) == 2 * 2 * 2 * 3


def test_a_run_is_unfinished_and_unsealed_from_when_a_sweep_begins_in_it_to_its_end(small, cut):
    def now():
        folder = RunFolder(small.out)
        return unfinished(read_run(folder)), folder.manifest.sealed

    small.sweep()
    said, before = now()
    assert said is None
    cut(1, measure_requests=2)  # of a folder that one sweep ended in
    said, sealed = now()
    assert "cut off at candidate 2 of 2, with 2 of 2 responses" in said
    assert sealed is None
    small.notes.clear()
    folder = small.sweep(measure_requests=2)
    said, sealed = now()
    assert said is None
    assert sealed["decode.jsonl"].records == 2 * before["decode.jsonl"].records
    assert sum(seal.records for seal in sealed.values()) == len(folder.observations())
    (resumed,) = [note for note in small.notes if note.startswith("resuming")]
    assert re.fullmatch(r"resuming: 2 of 2 responses and . of 2 candidates are done", resumed)


def test_a_run_that_was_changed_after_its_end_is_not_resumed(small):
    path = small.sweep(measure="none").path / "observations" / "costpoint.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"context":100', b'"context":200'))
    with pytest.raises(RunFolderError, match=r"costpoint\.jsonl` was changed after the sweep"):
        small.sweep(measure="none")


def test_a_sweep_of_a_model_that_changed_since_it_was_measured_is_refused_and_did_not_begin(small):
    copy = small.copy("draft", "copy")
    small.sweep(copy)
    with_fields(copy / "config.json", rope_theta=1.0)
    with pytest.raises(RunFolderError, match="the draft `copy` changed since"):
        small.sweep(copy, measure_requests=2)
    assert unfinished(read_run(RunFolder(small.out))) is None


def by_process(folder):
    """How many of each candidate's points and runs a process took, for each that took any."""
    found = read_run(folder)
    counted = Counter(
        (row.block, row.concurrency, row.process) for row in (*found.costs, *found.decodes)
    )
    grouped = defaultdict(list)
    for (block, concurrency, _), rows in counted.items():
        grouped[block, concurrency].append(rows)
    return grouped


@pytest.mark.parametrize("measure", ["all", "best"])
def test_every_process_times_and_decodes_the_same(small, unloadable, restarted, measure):
    asking = {"concurrency": (1, 2), "measure": measure, "measure_requests": 2}
    once = by_process(small.sweep(out="once", **asking))
    thrice = by_process(small.sweep(processes=3, **asking))
    assert thrice == {where: rows * 3 for where, rows in once.items()}
    unloadable()
    assert by_process(small.sweep(processes=3, **asking)) == thrice


def test_more_processes_add_to_those_that_measured(small, restarted):
    small.sweep()
    assert {len(rows) for rows in by_process(small.sweep(processes=2)).values()} == {2}


def test_a_batch_with_more_requests_is_decoded_again_as_a_whole(small, unloadable):
    draft, rows = small.models / "draft", {"concurrency": (2,)}
    small.sweep(draft, measure_requests=1, **rows)
    ended = small.sweep(draft, measure_requests=2, **rows)
    assert asked(ended) == asked(small.sweep(draft, measure_requests=2, out="at once", **rows))
    assert len({row.process for row in read_run(ended).decodes}) == 1
    unloadable()
    small.sweep(draft, measure_requests=2, **rows)


@pytest.mark.parametrize("kind", ["trajectory", "replay", "lookupreplay", "decode", "costpoint"])
def test_what_is_gone_from_an_ended_sweep_is_measured_again(tmp_path, small, kind):
    whole = essence(small.sweep())
    (tmp_path / "run" / "observations" / f"{kind}.jsonl").unlink()
    assert essence(small.sweep()) == whole


def test_of_a_candidate_that_is_whole_only_the_others_weights_are_loaded(small):
    late = small.copy("draft", "late")
    weights = (late / "model.safetensors").read_bytes()
    (late / "model.safetensors").unlink()
    drafts = small.models / "draft", late
    small.sweep(*drafts)
    (late / "model.safetensors").write_bytes(weights)
    small.notes.clear()
    assert small.found(*drafts).failures == ()
    assert [note for note in small.notes if note.startswith("loading")] == [
        "loading the target",
        "loading late",
    ]


def test_a_failure_that_came_after_the_last_measurement_is_taken_back(small):
    """As of a candidate that ran out of its time when it was done."""
    folder = small.sweep()
    late = Failure(candidate=Candidate(draft="draft"), stage="measure", reason="too slow", hint="")
    with folder.writer() as writer:
        folder.note_sweep(folder.manifest, (late.candidate,))
        writer.append([late])
    assert read_run(folder).failures == (late,)
    assert small.found().failures == ()


def test_a_failure_that_was_taken_back_and_comes_again_stands_again(tmp_path, small):
    draft = small.copy("draft", "draft")
    config, away = draft / "config.json", tmp_path / "config.json"

    def failed():
        return small.found(draft, "ngram", measure="none").failures

    config.rename(away)
    first = failed()
    assert [failure.candidate.draft for failure in first] == ["draft"]
    away.rename(config)
    assert failed() == ()
    config.rename(away)
    assert failed() == first


def test_a_text_without_its_record_is_made_again(tmp_path, small, cut):
    # No failures, the target's facts, the texts of the first group.
    assert cut(3, "ngram") is None
    folder = RunFolder(tmp_path / "run")
    assert len(list(folder.records(PrivateText))) == 2
    assert read_run(folder).trajectories == ()
    ended = small.sweep("ngram")
    assert len(read_run(ended).trajectories) == 2
    assert len({t.request for t in ended.records(PrivateText)}) == 2


def test_a_replay_of_another_length_than_its_response_is_refused(small):
    ended = small.sweep(measure="replay")
    ended.note_sweep(ended.manifest, ())
    path = ended.path / "observations" / "replay.jsonl"
    first, *others = path.read_text().splitlines()
    records = json.loads(first)
    for name in ("accept", "confidence", "margin", "rank", "confidence_of_ten"):
        records[0][name] = records[0][name][:-2]
    records[0]["off_path"] = None
    path.write_text("\n".join([json.dumps(records), *others]) + "\n")
    with pytest.raises(RunFolderError, match="does not fit the response"):
        small.sweep(measure="replay")


@pytest.mark.parametrize("measured", [{}, {"measure": "replay"}])
def test_a_model_that_now_runs_in_another_way_is_refused(small, monkeypatch, measured):
    """With another kernel, say: times of both would mix, and what rounds otherwise accepts
    otherwise.
    """
    small.sweep(**measured)
    monkeypatch.setattr(LlamaRunner, "name", "by another kernel")
    with pytest.raises(ModelError, match="runs as `by another kernel` now and was measured as"):
        small.sweep(controls=True, **measured)


@pytest.mark.parametrize("stop", [("none",), ("none", "confidence")])
def test_measure_all_decodes_what_a_sweep_of_the_best_k_left_out(small, stop):
    """Known fault: where a rule may stop drafts, which is the default, every draft that had been
    decoded at some k was left as it was, and the advice to decode the rest came again.
    """

    def decoded_ks(measure):
        folder = small.sweep(ks=(1, 2, 3), stop=stop, measure=measure, measure_requests=2)
        ks = defaultdict(set)
        for row in folder.records(Decode):
            if row.stop is None:
                ks[row.block].add(row.k)
        return list(ks.values())

    assert all(ks < {0, 1, 2, 3} for ks in decoded_ks("best"))
    assert decoded_ks("all") == [{0, 1, 2, 3}] * 2


def test_weights_timed_in_two_layouts_are_not_loaded_to_be_timed_in_one(small, unloadable):
    folder = small.sweep()
    target = next(facts for facts in folder.records(ModelFacts) if facts.candidate is None)
    with folder.writer() as writer:
        folder.note_sweep(folder.manifest, ())
        writer.append([msgspec.structs.replace(target, second_layout_bytes=8)])
    small.sweep(one_layout=True)  # nothing is left to time
    unloadable()
    with pytest.raises(RunFolderError, match="has kept weights in two layouts"):
        small.sweep(one_layout=True, controls=True)


def test_redacting_changes_no_figure(small):
    folder = small.sweep(temperature=0.7, measure_requests=2)
    answer = recommend(read_run(folder))
    folder.redact()
    assert not (folder.path / "private").exists()
    assert recommend(read_run(folder)) == answer


@pytest.fixture
def waves(monkeypatch):
    """waves(until): sweeps of eight requests, which come as two, two and four; the answer is
    settled by so many of them.
    """

    def make(until):
        monkeypatch.setattr(run_folder, "WAVE", 2)
        monkeypatch.setattr(resume, "settled", lambda run, _: len(run.trajectories) >= until)
        return {"requests": 8, "until": "settled", "measure_requests": 2}

    return make


def test_a_sweep_until_settled_ends_with_the_wave_that_settles_it(small, waves):
    folder = small.sweep(**waves(3))
    found = read_run(folder)
    assert sorted(t.request for t in found.trajectories) == small.ids(8)[:4]
    assert {c: sum(r.candidate == c for r in found.replays) for c in found.candidates} == (
        dict.fromkeys(found.candidates, 4)
    )
    assert folder.manifest.effort.settled_after == folder.manifest.requests == 4
    assert unfinished(found) is None
    assert "not settled after 2 of 8 requests" in small.notes


def test_what_is_timed_is_timed_with_the_first_wave(small, waves):
    found = small.found(**waves(5))
    assert found.manifest.effort.settled_after is None
    assert len(found.trajectories) == 8
    assert {row.request for row in found.decodes} <= set(small.ids(8)[:2])
    timed = [(p.block, str(p.candidate), p.context) for p in found.costs]
    assert len(timed) == len(set(timed))


@pytest.mark.parametrize("until", [3, 9])
def test_a_cut_sweep_until_settled_ends_like_an_uncut_one(small, cut, waves, until):
    asking = waves(until)
    expected = essence(small.sweep(out="whole", **asking))
    assert essence(ended_after_cuts(cut, 6, **asking)) == expected
    said = [re.match(r"resuming: (\d+) of (\d+) responses", note) for note in small.notes]
    counts = [tuple(map(int, match.groups())) for match in said if match]
    assert counts[-1][1] > 2  # it resumes in a later wave
    assert all(done <= wanted for done, wanted in counts)


def test_a_settled_sweep_loads_nothing_and_goes_on_where_all_requests_are_asked_for(
    small, waves, unloadable
):
    asking = waves(3)
    small.sweep(**asking)
    all_of_them = essence(small.sweep(**asking | {"until": "all"}))
    assert all_of_them == essence(small.sweep(out="at once", **asking | {"until": "all"}))
    assert RunFolder(small.out).manifest.effort.settled_after is None
    unloadable()
    small.sweep(**asking)
    assert RunFolder(small.out).manifest.effort.settled_after is None  # nothing was left out
    assert small.notes[-1] == "everything is measured already; no model is loaded"


def test_responses_that_a_cut_sweep_wrote_are_measured_even_if_fewer_settle_the_answer(
    small, cut, waves
):
    """Or the run would hold responses without replays."""
    asking = waves(3)
    while not (small.out / "observations" / "lookupreplay.jsonl").exists():
        assert cut(3, "ngram", **asking | {"until": "all"}) is None
    folder = small.sweep("ngram", **asking)
    found = read_run(folder)
    assert (len(found.trajectories), len(found.replays)) == (8, 8)
    assert folder.manifest.effort.settled_after is None


def test_a_first_wave_of_which_nothing_can_be_drafted_is_followed_by_the_next(
    small, waves, monkeypatch
):
    asking, written = waves(3), worker.generate

    def one_token(group, *others):
        first = small.ids(8)[:2]
        return [
            ((tokens[0],), "stop") if sample.prompt.request.id in first else (tokens, why)
            for sample, (tokens, why) in zip(group, written(group, *others), strict=True)
        ]

    monkeypatch.setattr(worker, "generate", one_token)
    found = small.found("ngram", **asking)
    assert (len(found.trajectories), len(found.replays)) == (4, 2)


def test_rounds_that_were_computed_for_one_draft_are_not_computed_again_for_the_next(
    small, monkeypatch
):
    computed, of = [], CandidateRounds.of

    def counted(replays, ks=()):
        computed.append(replays[0][1].candidate.draft)
        return of(replays, ks)

    monkeypatch.setattr(CandidateRounds, "of", counted)
    small.sweep(measure="best")
    assert computed == ["draft", "ngram"]
