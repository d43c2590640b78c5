"""Several workers measure what one measures, whichever of them dies.

Most workers here are in this process; those of the slow tests are children, which import torch
anew. `scripts/hostile_drafts.py` and `scripts/kill_test.py --workers 2` show more.
"""

import os
import signal
import sys
import time
from itertools import count
from types import SimpleNamespace

import msgspec
import pytest
from scenes import with_fields

from draftbench.errors import ModelError, UsageError
from draftbench.hub import Trust
from draftbench.measure import trajectories
from draftbench.measure.candidate import LoadedCandidate
from draftbench.records import Candidate, WorkerFacts
from draftbench.run_folder import run as run_folder
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.manifest import environment
from draftbench.run_folder.run import read_run
from draftbench.sweep import decoder_prepare, pool, resume
from draftbench.sweep.failures import failure
from draftbench.sweep.options import RayCluster, workers_named
from draftbench.sweep.places import Here, WorkerDiedError
from draftbench.sweep.pool import MOST_TRIES, Pool
from draftbench.sweep.resume import Decoding, Timing


class Mortal(Here):
    """A worker in this process that says nothing of some tasks, dies of them or lacks a model on
    its node; its machine may be an odd one, full (it never begins) or broken (each task ends it).
    """

    def __init__(self, pool, dies, hangs, node, lacks, odd):
        super().__init__(pool.prepared, pool._keep, pool.watcher)
        self.dies, self.hangs, self.died, self.ended = dies, hangs, False, False
        if node == "broken":
            self.dies = lambda task: True
        self.node, self.lacks, self.tasks = node, lacks, []
        here = pool.prepared.manifest.environment
        machine = msgspec.structs.replace(here, processor=node if odd else here.processor)
        facts = WorkerFacts(process=node, node=node, environment=machine)
        self.ready = "ready", (facts, node)
        self._message = None if node == "full" else self.ready

    def reply(self, value):
        self.died = value is not None and self.dies(value)
        if value is not None:
            self.tasks.append(value)
        if value is not None and self.hangs(value):
            self._message = "begin", ()
        elif value is not None and self.lacks(self.node, value.candidate):
            what = value.candidate or "the target"
            if value.candidate is None:
                self._message = "fatal", ("ModelError", f"{what} is not there", "mount it")
            else:
                error = ModelError(f"{what} is not there", hint="mount it")
                self._message = "done", (failure(value.candidate, error, "load"),)
        elif not self.died:
            super().reply(value)

    def end(self):
        self.ended = True

    def hear(self):
        if self.died:
            raise WorkerDiedError("was ended by SIGKILL", "a smaller model may fit")
        return super().hear()

    @staticmethod
    def wait(places, seconds):
        assert seconds < 10
        time.sleep(min(seconds, 0.01))


def never(*task):
    return False


@pytest.fixture
def crew(small, monkeypatch):
    """crew(drafts, workers=3, dies=…, hangs=…, lacks=…, odd=…, born=…, nodes=…, **options): the
    folder of a sweep over six requests in groups of two, shared by workers that `began`, each on
    its own node unless its number is one of `nodes`.
    """
    monkeypatch.setattr(trajectories, "GROUP", 2)
    began = []

    def sweep(
        *drafts,
        dies=never,
        hangs=never,
        lacks=never,
        odd=never,
        born=None,
        nodes=lambda number: f"node{number}",
        **changes,
    ):
        def begin(pool, card):
            node = nodes(len(began))
            began.append(Mortal(pool, dies, hangs, node, lacks, odd(node)))
            began[-1].died = born is not None and node not in born
            return began[-1]

        monkeypatch.setattr(Pool, "_begin", begin)
        return small.sweep(*drafts, **{"requests": 6, "workers": 3, "measure": "none"} | changes)

    sweep.began = began
    return sweep


def measured(folder):
    """What does not depend on time, in the order in which a reader finds it."""
    found = read_run(folder)
    texts = {text.key: text for text in folder.records(PrivateText)}
    return texts, found.trajectories, found.replays, found.candidates, found.failures


BY_ONE = []


@pytest.fixture
def alone(crew):
    """What one worker finds, asked once."""
    if not BY_ONE:
        BY_ONE.append(measured(crew(workers=1, out="alone")))
        crew.began.clear()
    return BY_ONE[0]


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.slow)])
def test_several_workers_find_what_one_finds_in_the_same_order(crew, temperature):
    asked = {"controls": True, "temperature": temperature}
    alone = crew(workers=1, out="alone", **asked)
    assert measured(crew(workers=3, **asked)) == measured(alone)


def test_one_worker_times_and_decodes_while_nobody_else_is_there(crew):
    at_work = []

    def look(task):
        if isinstance(task.step, (Timing, Decoding)):
            at_work.append(sum(not worker.ended for worker in crew.began))
        return False

    found = read_run(crew(hangs=look, measure="all"))
    assert len(crew.began) == 3
    assert set(at_work) == {1}
    assert len({row.process for row in (*found.costs, *found.decodes)}) == 1


def test_no_more_workers_begin_than_there_are_tasks(crew):
    """Two groups of requests, then two replays of one candidate."""
    crew("ngram", workers=9, requests=4)
    assert len(crew.began) == 2


def test_a_worker_that_cannot_load_the_target_is_let_go(crew, alone, small):
    folder = crew(lacks=lambda node, candidate: candidate is None and node == "node1")
    assert measured(folder) == alone
    assert [worker.node for worker in crew.began if worker.tasks] == ["node0", "node1", "node2"]
    assert len(crew.began) == 3
    assert "going on without a worker on node1: the target is not there" in small.notes


def test_a_worker_that_never_begins_is_let_go(crew, alone, small):
    """The second one, and both that take its place, die before they say anything."""
    assert measured(crew(born=("node0", "node2"))) == alone
    assert len(crew.began) == 2 + MOST_TRIES
    gone = "going on without a worker that does not begin: its process was ended by SIGKILL"
    assert gone in small.notes
    with pytest.raises(ModelError, match="its process was ended by SIGKILL"):
        crew(born=(), out="nobody")


def test_a_target_that_no_worker_can_load_ends_the_sweep(crew):
    with pytest.raises(ModelError, match=r"^the target is not there$"):
        crew(lacks=lambda node, candidate: candidate is None)
    assert len(crew.began) == 3


def test_a_machine_that_differs_replays_and_does_not_time(crew):
    folder = crew(odd=lambda node: node != "node0", measure="all", measure_requests=2)
    found = read_run(folder)
    assert {worker.node for worker in crew.began if worker.tasks} == {"node0", "node1", "node2"}
    assert len(found.workers) == 3
    assert {row.process for row in found.decodes} == {crew.began[0]._worker.process}
    with pytest.raises(ModelError, match=r"is left where this run times .* node4 differs in proc"):
        crew(
            odd=lambda node: node != "node3",
            lacks=lambda node, candidate: candidate is None and node == "node3",
            measure="all",
            out="again",
        )


def test_a_draft_that_a_node_cannot_load_is_replayed_on_another(crew, alone, small):
    draft = Candidate(draft="draft")

    def lacks(node, candidate):
        return candidate == draft and node != "node2"

    assert measured(crew(lacks=lacks, measure="replay")) == alone
    assert sum("cannot load draft, others try: draft is not there" in n for n in small.notes) == 2
    replayed = [w.node for w in crew.began if any(t.candidate == draft for t in w.tasks)]
    assert "node2" in replayed


def test_a_draft_that_no_node_can_load_costs_its_candidate(crew):
    draft = Candidate(draft="draft")
    (failed,) = read_run(crew(lacks=lambda node, candidate: candidate == draft)).failures
    assert (failed.candidate, failed.reason) == (draft, "draft is not there")


def test_the_seconds_of_a_candidate_are_those_of_all_its_workers_together(crew, small):
    """Three workers that hang use up three seconds in one."""
    lookup, begun = Candidate(draft="ngram"), []

    def hangs(task):
        if task.candidate == lookup:
            begun.append(time.monotonic())
        return task.candidate == lookup

    (failed,) = read_run(crew("ngram", hangs=hangs, candidate_timeout=3)).failures
    assert failed.candidate == lookup
    assert failed.reason == "it took longer than the 3 seconds of --candidate-timeout"
    assert len(begun) == 3
    assert 1 <= time.monotonic() - begun[0] < 2.9


def test_a_worker_that_dies_costs_its_task_alone(crew, alone):
    """Every fourth task ends its worker. All are on one machine, so no other can do the task."""
    number = count(1)
    folder = crew(dies=lambda task: next(number) % 4 == 0, nodes=lambda number: "node0")
    assert len(crew.began) > 3
    assert measured(folder) == alone


def test_a_machine_that_ends_every_worker_costs_no_candidate(crew, alone):
    """Whatever is begun anew in place of the second worker is on the same machine again."""
    folder = crew(nodes=lambda number: f"node{number}" if number in (0, 2) else "broken")
    assert measured(folder) == alone
    # Target and two candidates were tried once there.
    tried = [task.candidate for worker in crew.began[1:] for task in worker.tasks if worker.died]
    assert len(tried) == len(set(tried)) > 0


@pytest.fixture
def on_cluster(monkeypatch):
    """Options of a sweep whose workers are on a cluster, which nothing is asked of."""
    of_node = RayCluster(None, workers=3, timing_node="node0")
    monkeypatch.setattr(decoder_prepare, "find_spec", lambda name: True)
    made = SimpleNamespace(workers_of=lambda options, *_: (of_node, 1, environment(1, None)))
    monkeypatch.setitem(sys.modules, "draftbench.sweep.ray_cluster", made)
    return {"workers": RayCluster(None), "measure": "all", "measure_requests": 2}


def test_times_are_taken_where_a_worker_is_and_not_waited_for_where_none_begins(crew, on_cluster):
    """The machine that should time has no room. The one that times in its place is like it."""
    folder = crew(
        **on_cluster,
        nodes=["full", "other", "like it"].__getitem__,
        odd=lambda node: node == "other",
    )
    assert {row.process for row in read_run(folder).decodes} == {crew.began[2]._worker.process}


def test_it_is_said_that_a_sweep_waits_for_the_cluster(crew, small, on_cluster, monkeypatch):
    monkeypatch.setattr(pool, "_PATIENCE_SECONDS", 0.05)
    said = []

    def note(text, *, always=False):
        if text.startswith("waiting for Ray to begin a worker"):
            said.append(text)
            crew.began[0]._message = crew.began[0].ready

    monkeypatch.setattr(small.notes, "note", note)
    crew("ngram", **on_cluster | {"measure": "none"}, nodes=lambda number: "full")
    assert len(said) == 1


@pytest.mark.slow
def test_a_task_that_ends_every_worker_costs_its_candidate(crew, small):
    draft = Candidate(draft="draft")
    deaths = []

    def dies(task):
        deaths.append(task.candidate == draft)
        return deaths[-1]

    found = read_run(crew(dies=dies))
    (failed,) = found.failures
    assert sum(deaths) == MOST_TRIES
    assert failed.reason == "its process was ended by SIGKILL"
    assert failed.hint == "a smaller model may fit"
    assert found.candidates == (Candidate(draft="ngram"),)


def test_a_target_that_ends_every_worker_ends_the_sweep(crew):
    with pytest.raises(ModelError, match=r"^the target's process was ended by SIGKILL$"):
        crew(dies=lambda task: task.candidate is None)


def test_a_fault_in_choosing_the_next_step_costs_its_candidate(small, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(resume, "lengths_to_decode", broken)
    found = small.found("ngram", measure="best")
    assert [str(failure.candidate) for failure in found.failures] == ["ngram"]
    assert "ZeroDivisionError" in found.failures[0].reason
    assert found.replays


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cards": (0,), "device": "cpu"}, "--cards with the device `cpu`"),
        ({"cards": (0, 1), "workers": 2}, "--cards with --workers"),
    ],
)
def test_cards_that_workers_cannot_have_are_refused(small, changes, message):
    with pytest.raises(UsageError, match=message):
        small.prepared("ngram", **changes)


@pytest.mark.parametrize(
    ("text", "workers"),
    [("4", 4), ("ray", RayCluster(None)), ("ray://head:10001", RayCluster("ray://head:10001"))],
)
def test_workers_are_a_number_or_a_ray_cluster(text, workers):
    assert workers_named(text) == workers


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "rays", "http://head", "ray://head"])
def test_other_workers_are_refused(text):
    with pytest.raises(UsageError, match=f"^--workers {text}: expected a number from 1, ray or"):
        workers_named(text)


def test_workers_share_the_cores(small, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("draftbench.sweep.decoder_prepare.cores_here", lambda: 6)
    prepared = small.prepared("ngram", threads=None, workers=3)
    assert prepared.manifest.environment.threads == 2
    assert any("2, for each of 3 workers" in note for note in small.notes)


# Once, or always, it is ended by the kernel, leaving a process that holds its end of the pipe or
# none.
KILLS_ITSELF = """
import os, pathlib, signal, time
from transformers import LlamaForCausalLM
class Model(LlamaForCausalLM):
    pass
left, always, leaves = pathlib.Path({file!r}), {always}, {leaves}
if always or not left.exists():
    child = os.fork() if leaves else None
    if child != 0:
        with left.open("a") as file:
            file.write(f"{{child}} " if leaves else "")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)
"""


@pytest.fixture
def killer(tmp_path, small, monkeypatch):
    """killer(always, leaves): a draft whose code ends the worker that loads it."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    left = tmp_path / "left"

    def make(always, leaves):
        folder = small.copy("draft", "killer")
        with_fields(folder / "config.json", auto_map={"AutoModelForCausalLM": "code.Model"})
        code = KILLS_ITSELF.format(file=str(left), always=always, leaves=leaves)
        (folder / "code.py").write_text(code)
        return folder

    yield make
    for process in left.read_text().split():
        os.kill(int(process), signal.SIGKILL)  # fails if it is gone


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [True, False])
def test_a_process_that_is_killed_once_costs_its_task_which_is_done_again(small, killer, leaves):
    trust, once = Trust(remote_code=True), killer(False, leaves)
    found = small.found(once, "ngram", trust=trust, workers=2, measure="none")
    assert not found.failures
    assert {row.candidate.draft for row in found.replays} == {"killer", "ngram"}


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [True, False])
def test_a_candidate_that_ends_every_process_is_recorded_and_the_next_is_measured(
    small, killer, leaves
):
    trust = Trust(remote_code=True)
    found = small.found(killer(True, leaves), "ngram", trust=trust, workers=1, measure="none")
    assert [(str(f.candidate), f.reason) for f in found.failures] == [
        ("killer", "its process was ended by SIGKILL")
    ]
    assert "out-of-memory killer" in found.failures[0].hint
    assert found.candidates == (Candidate(draft="ngram"),)
    assert len(found.trajectories) == 2


@pytest.mark.slow
def test_processes_that_share_a_sweep_find_what_this_one_finds(small):
    asked = {"requests": 40, "measure": "replay", "temperature": 0.7}
    alone = measured(small.sweep(out="alone", **asked))
    assert measured(small.sweep(workers=2, **asked)) == alone


@pytest.mark.slow
def test_several_processes_measure_each_candidate(small):
    found = small.found("ngram", processes=2, max_new_tokens=4)
    assert len({row.process for row in found.decodes}) == 2
    assert {point.process for point in found.costs} == {row.process for row in found.decodes}


def test_several_workers_end_with_the_wave_that_settles_the_answer(crew, monkeypatch):
    """Six requests come as two, two and two; four settle it."""
    monkeypatch.setattr(run_folder, "WAVE", 2)
    monkeypatch.setattr(resume, "settled", lambda run, _: len(run.trajectories) >= 4)
    asked = {"until": "settled", "controls": True}
    alone = crew(workers=1, out="alone", **asked)
    assert len(read_run(alone).trajectories) == 4
    assert measured(crew(workers=3, **asked)) == measured(alone)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_draft_that_fails_in_the_second_wave_is_left_out_of_later_ones(
    crew, monkeypatch, workers
):
    """Six requests come as two, two and two, a group each."""
    monkeypatch.setattr(run_folder, "WAVE", 2)
    monkeypatch.setattr(resume, "settled", lambda run, _: False)
    tried, replay = [], LoadedCandidate.replay

    def failing(loaded, group):
        tried.append(loaded.candidate.draft)
        if loaded.candidate.draft == "draft" and tried.count("draft") == 2:
            raise RuntimeError("broken")
        return replay(loaded, group)

    monkeypatch.setattr(LoadedCandidate, "replay", failing)
    found = read_run(crew(until="settled", workers=workers))
    assert (tried.count("draft"), tried.count("ngram")) == (2, 3)
    assert [failed.candidate.draft for failed in found.failures] == ["draft"]
