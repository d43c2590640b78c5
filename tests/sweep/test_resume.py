"""A sweep that was stopped anywhere and begun again ends like one that was not."""

from __future__ import annotations

import json

import msgspec
import pytest

from draftbench.decoder.llama import LlamaRunner
from draftbench.errors import ModelError, RunFolderError
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, Failure, ModelFacts
from draftbench.run_folder.folder import RunFolder, RunWriter
from draftbench.run_folder.run import read_run
from draftbench.sweep import run

pytestmark = pytest.mark.slow


class PowerCutError(BaseException):
    """Not an error that anything could handle."""


def cut_after(monkeypatch, appends):
    """The machine dies when so many appends are done."""
    left = [appends]
    for name in ("append", "append_private"):
        original = getattr(RunWriter, name)

        def cut(self, records, original=original):
            if not left[0]:
                raise PowerCutError
            left[0] -= 1
            original(self, records)

        monkeypatch.setattr(RunWriter, name, cut)


def decoded(row):
    where = row.block, row.batch, row.request, row.repeat, row.k
    return *where, row.proposed, row.accepted, row.digest, row.active


def essence(folder):
    """Everything but times and the processes that took them."""
    found = read_run(folder)
    return (
        {(t.request, t.sample): t for t in folder.private_texts()},
        found.trajectories,
        found.replays,
        sorted(map(decoded, found.decodes)),
        [(p.block, p.batch, str(p.candidate), p.context) for p in found.costs],
        found.facts,
    )


# A batch is appended cell by cell and redone whole: fewer appends than that would never end it.
@pytest.mark.parametrize(("temperature", "every"), [(0.0, 8), (0.7, 7)])
def test_a_sweep_cut_again_and_again_ends_like_an_uncut_one(tmp_path, small, temperature, every):
    prepared = small.prepared(temperature=temperature, batches=(1, 2), measure_requests=2)
    whole = run(prepared, tmp_path / "whole", small.notes())
    expected = essence(whole)
    appends = 0
    ended = False
    while not ended:
        with pytest.MonkeyPatch.context() as patch:
            cut_after(patch, every)
            try:
                cut = run(prepared, tmp_path / "cut", small.notes())
            except PowerCutError:
                appends += every
            else:
                ended = True
    assert appends >= 2 * every
    assert essence(cut) == expected


def test_an_ended_sweep_measures_nothing_again(tmp_path, small):
    prepared = small.prepared()
    run(prepared, tmp_path / "run", small.notes())
    files = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    run(prepared, tmp_path / "run", small.notes())
    assert {p: p.read_bytes() for p in files} == files


@pytest.fixture
def unloadable(monkeypatch):
    """From now on no weights can be loaded."""

    def load(self, dtype, device):
        raise AssertionError(f"the weights of {self.spec} were loaded")

    def forbid():
        monkeypatch.setattr(ModelSource, "load", load)

    return forbid


@pytest.mark.parametrize("measure", ["best", "all", "none", "replay"])
def test_an_ended_sweep_loads_nothing(tmp_path, small, unloadable, measure):
    effort = {"batches": (1, 2), "measure": measure, "controls": True}
    run(small.prepared(**effort), tmp_path / "run", small.notes())
    unloadable()
    notes = small.notes()
    run(small.prepared(**effort), tmp_path / "run", notes)
    assert notes == ["all of it is measured already: no model is loaded"]


def asked(folder):
    """Who was measured and in which cells, however often."""
    found = read_run(folder)
    cells = {decoded(row) for row in found.decodes}
    return found.candidates, cells


MORE = [
    {"measure_requests": 2},
    {"measure": "all"},
    {"controls": True},
]


@pytest.mark.parametrize("more", MORE)
def test_what_is_asked_for_in_addition_is_measured(tmp_path, small, more):
    few = {"measure": "none" if "measure" in more else "all", "measure_requests": 1}
    run(small.prepared(**few), tmp_path / "run", small.notes())
    ended = run(small.prepared(**few | more), tmp_path / "run", small.notes())
    whole = run(small.prepared(**few | more), tmp_path / "at once", small.notes())
    assert asked(ended) == asked(whole)


@pytest.fixture
def pairs_of_rows(tmp_path, small):
    """A sweep that decodes two rows side by side, in a folder of this name."""

    def sweep(name, **asking):
        prepared = small.prepared(small.models / "draft", batches=(2,), **asking)
        return run(prepared, tmp_path / name, small.notes())

    return sweep


def test_a_batch_with_more_requests_is_decoded_again_as_a_whole(pairs_of_rows, unloadable):
    pairs_of_rows("run", measure_requests=1)
    ended = pairs_of_rows("run", measure_requests=2)
    assert asked(ended) == asked(pairs_of_rows("at once", measure_requests=2))
    assert len({row.process for row in read_run(ended).decodes}) == 1
    unloadable()
    pairs_of_rows("run", measure_requests=2)


@pytest.mark.parametrize("kind", ["trajectory", "replay", "lookupreplay", "decode", "costpoint"])
def test_what_is_gone_from_an_ended_sweep_is_measured_again(tmp_path, small, kind):
    prepared = small.prepared()
    whole = essence(run(prepared, tmp_path / "run", small.notes()))
    (tmp_path / "run" / "observations" / f"{kind}.jsonl").unlink()
    assert essence(run(prepared, tmp_path / "run", small.notes())) == whole


def test_of_a_candidate_that_is_whole_only_the_others_weights_are_loaded(
    tmp_path, small, monkeypatch
):
    draft = small.copy("draft", tmp_path / "late")
    weights = (draft / "model.safetensors").read_bytes()
    (draft / "model.safetensors").unlink()
    drafts = (small.models / "draft", draft)
    run(small.prepared(*drafts), tmp_path / "run", small.notes())
    (draft / "model.safetensors").write_bytes(weights)
    notes = small.notes()
    ended = run(small.prepared(*drafts), tmp_path / "run", notes)
    assert [note for note in notes if note.startswith("loading")] == [
        "loading the target target",
        "loading late",
    ]
    assert read_run(ended).failures == ()


def test_a_failure_that_came_after_the_last_measurement_is_taken_back(tmp_path, small):
    """As of a candidate that ran out of its time when it was done."""
    prepared = small.prepared()
    folder = run(prepared, tmp_path / "run", small.notes())
    late = Failure(candidate=Candidate(draft="draft"), stage="measure", reason="too slow", hint="")
    with folder.writer() as writer:
        writer.append([late])
    assert read_run(folder).failures == (late,)
    assert read_run(run(prepared, tmp_path / "run", small.notes())).failures == ()


def test_a_failure_that_was_taken_back_and_comes_again_stands_again(tmp_path, small):
    draft = small.copy("draft", tmp_path / "draft")
    config, away = draft / "config.json", tmp_path / "config.json"

    def failed():
        prepared = small.prepared(draft, "ngram", measure="none")
        return read_run(run(prepared, tmp_path / "run", small.notes())).failures

    config.rename(away)
    first = failed()
    assert [failure.candidate.draft for failure in first] == ["draft"]
    away.rename(config)
    assert failed() == ()
    config.rename(away)
    assert failed() == first


def test_a_text_without_its_record_is_made_again(tmp_path, small):
    prepared = small.prepared("ngram")
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, 3)  # no failures, the target's facts, the texts of the first group
        with pytest.raises(PowerCutError):
            run(prepared, out, small.notes())
    assert len(list(RunFolder(out).private_texts())) == 2
    assert read_run(RunFolder(out)).trajectories == ()
    ended = run(prepared, out, small.notes())
    assert len(read_run(ended).trajectories) == 2
    assert len({t.request for t in ended.private_texts()}) == 2


def test_a_model_that_changed_since_it_was_measured_is_refused(tmp_path, small):
    draft = small.copy("draft", tmp_path / "draft")
    run(small.prepared(draft), tmp_path / "run", small.notes())
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "rope_theta": 1.0}))
    with pytest.raises(RunFolderError, match="the draft `draft` changed"):
        run(small.prepared(draft), tmp_path / "run", small.notes())


def test_a_timed_model_that_now_runs_in_another_way_is_refused(tmp_path, small, monkeypatch):
    """Without the compiler that was there, say: the times of two kernels would mix."""
    run(small.prepared(), tmp_path / "run", small.notes())
    monkeypatch.setattr(LlamaRunner, "name", "by another kernel")
    with pytest.raises(ModelError, match="the target runs as `by another kernel` now"):
        run(small.prepared(controls=True), tmp_path / "run", small.notes())


def test_a_model_that_was_not_timed_may_run_in_another_way(tmp_path, small, monkeypatch):
    run(small.prepared(measure="replay"), tmp_path / "run", small.notes())
    monkeypatch.setattr(LlamaRunner, "name", "by another kernel")
    ended = run(small.prepared(measure="replay", controls=True), tmp_path / "run", small.notes())
    assert "by another kernel" in {facts.runner for facts in ended.records(ModelFacts)}


def test_weights_timed_in_two_layouts_are_not_loaded_to_be_timed_in_one(
    tmp_path, small, unloadable
):
    folder = run(small.prepared(), tmp_path / "run", small.notes())
    target = next(facts for facts in folder.records(ModelFacts) if facts.candidate is None)
    with folder.writer() as writer:
        writer.append([msgspec.structs.replace(target, second_layout_bytes=8)])
    run(small.prepared(one_layout=True), tmp_path / "run", small.notes())  # nothing is left to time
    unloadable()
    with pytest.raises(RunFolderError, match="timed with two layouts"):
        run(small.prepared(one_layout=True, controls=True), tmp_path / "run", small.notes())
