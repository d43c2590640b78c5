"""A Ray cluster of three workers measures what one process measures, whoever of it dies.

The cluster is this machine, with three processors as far as Ray knows. Skipped where Ray is not
installed (the extra `ray`).
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import psutil
import pytest
from scenes import with_fields
from sweep.conftest import EMBEDDED
from sweep.test_pool import measured

from draftbench.errors import UsageError
from draftbench.hub import Trust
from draftbench.measure import trajectories
from draftbench.records import Candidate
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.run import read_run
from draftbench.sweep import decoder_prepare
from draftbench.sweep.options import RayCluster
from draftbench.traffic import TrafficQuery

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[client]'")
from draftbench.sweep.ray_cluster import OnRay  # noqa: E402

CLUSTER = RayCluster(None)
MODELS = os.environ.get("DRAFTBENCH_MODELS") or None
ON_RAY = {"workers": CLUSTER, "measure": "replay", "requests": 24}


def test_without_ray_it_is_said_how_to_install_it(small, monkeypatch):
    monkeypatch.setattr(decoder_prepare, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^--workers ray needs Ray, which is not installed$"):
        small.prepared("ngram", workers=CLUSTER)


def test_a_cluster_that_does_not_answer_is_named(small, monkeypatch):
    def refused(*arguments, **options):
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379\nmore")

    monkeypatch.setattr(ray, "init", refused)
    with pytest.raises(UsageError) as raised:
        small.prepared("ngram", workers=RayCluster("ray://head:10001"))
    assert raised.value.message == (
        "no Ray cluster can be used at ray://head:10001: Failed to connect to Ray cluster at "
        "10.0.0.1:6379"
    )
    assert "RAY_AUTH_MODE=token" in raised.value.hint


def test_a_lost_connection_ends_the_sweep_with_an_error(monkeypatch):
    """Ray's client raises this once its cluster does not answer any more."""

    def without(*arguments, **options):
        raise AssertionError

    worker = OnRay.__new__(OnRay)
    worker._next = worker._actor = None
    monkeypatch.setattr(ray, "wait", without)
    monkeypatch.setattr(ray, "kill", without)
    for ask in (worker.hear, lambda: OnRay.wait([worker], 0.0)):
        with pytest.raises(UsageError, match=r"^the connection to the Ray cluster was lost$"):
            ask()
    worker.end()


@pytest.fixture(scope="module")
def session():
    """The folder of a running cluster, with everything that Ray writes."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Its processes outlive a sweep that is killed.
    context = ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    yield Path(context.address_info["session_dir"])
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()


@pytest.fixture(autouse=True)
def _groups_of_two(monkeypatch):
    monkeypatch.setattr(trajectories, "GROUP", 2)


def workers():
    """The processes of workers on this cluster, which Ray renames while they are at work."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "".join(process.cmdline()).startswith("ray::SweepWorker"):
                found.append(process)
    return found


@pytest.mark.slow
def test_three_workers_find_what_this_process_finds(small, session):
    asked = {"controls": True, "temperature": 0.7}
    alone = measured(small.sweep(out="alone", **ON_RAY | asked | {"workers": None}))
    folder = small.sweep(**ON_RAY | asked)
    assert measured(folder) == alone
    assert len(read_run(folder).workers) == 3


@pytest.mark.slow
@pytest.mark.skipif(MODELS is None, reason="DRAFTBENCH_MODELS names no folder of real models")
def test_three_workers_find_of_a_real_model_what_this_process_finds(small, session):
    asked = {
        "target": f"{MODELS}/smollm2",
        "measure": "replay",
        "requests": 6,
        "max_new_tokens": 12,
    }
    alone = measured(small.sweep("self", "ngram", out="alone", **asked))
    assert measured(small.sweep("self", "ngram", workers=CLUSTER, **asked)) == alone


@pytest.mark.slow
def test_workers_that_fit_on_no_node_are_refused(small, session):
    assert small.prepared("ngram", workers=CLUSTER).options.worker_count == 3
    assert small.prepared("ngram", workers=CLUSTER, threads=2).options.worker_count == 1
    with pytest.raises(UsageError, match=r"^no node of the Ray cluster has 4 CPUs$"):
        small.prepared("ngram", workers=CLUSTER, threads=4)


@pytest.mark.slow
def test_all_times_come_from_one_worker_whose_machine_the_run_names(small, session):
    found = small.found(workers=CLUSTER, max_new_tokens=4, requests=6)
    (process,) = {row.process for row in (*found.costs, *found.decodes)}
    here = found.manifest.environment.machine
    assert process in {w.process for w in found.workers if w.environment.machine == here}


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_task_alone(small, session, monkeypatch, capfd):
    alone, number = measured(small.sweep(out="alone", **ON_RAY | {"workers": None})), count(1)
    hand_over, killed = OnRay.reply, []

    def reply(place, value):
        hand_over(place, value)
        if value is not None and next(number) in (5, 9, 14):
            killed.append(workers()[0])
            killed[-1].kill()

    monkeypatch.setattr(OnRay, "reply", reply)
    folder = small.sweep(**ON_RAY)
    assert len(killed) == 3
    assert measured(folder) == alone
    assert len(read_run(folder).workers) == 3 + 3
    assert capfd.readouterr().out == ""  # which belongs to the result of a command


KILLS_ITSELF = """
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def with_code(small, monkeypatch, code):
    """A draft that brings code."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(small.out.parent / "modules"))
    folder = small.copy("draft", "bringer")
    with_fields(folder / "config.json", auto_map={"AutoModelForCausalLM": "code.Model"})
    (folder / "code.py").write_text(code)
    return folder


@pytest.mark.slow
def test_a_draft_that_ends_every_worker_costs_its_candidate(small, session, monkeypatch):
    killer = with_code(small, monkeypatch, KILLS_ITSELF)
    found = small.found(killer, "ngram", trust=Trust(remote_code=True), **ON_RAY)
    (failed,) = found.failures
    assert str(failed.candidate) == "bringer"
    assert failed.reason.startswith("its process was ended on its node (")
    assert found.candidates == (Candidate(draft="ngram"),)


@pytest.mark.slow
def test_workers_end_with_a_sweep_that_is_killed_and_the_same_command_resumes(
    small, session, tmp_path
):
    words = [
        *(sys.executable, "-m", "draftbench", "sweep", "--target", str(EMBEDDED / "target")),
        *("--drafts", str(EMBEDDED / "draft"), "--traffic", "suite:completion", "--threads", "1"),
        *("--max-new-tokens", "24", "--no-controls", "--measure", "replay", "--quiet"),
    ]

    def kept(out):
        folder = RunFolder(out)
        records = [*folder.observations(resumes=True), *folder.records(PrivateText)]
        return [record for record in records if type(record).__name__ != "WorkerFacts"]

    subprocess.run([*words, "--out", "alone"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    on_ray = [*words, "--workers", "ray", "--out", "shared"]
    sweep = subprocess.Popen(on_ray, cwd=tmp_path, stdout=subprocess.DEVNULL)
    replays = tmp_path / "shared" / "observations" / "trajectory.jsonl"
    while not (replays.exists() and replays.stat().st_size):
        assert sweep.poll() is None
        time.sleep(0.02)
    assert workers()
    sweep.kill()
    sweep.wait()
    before = kept(tmp_path / "shared")
    patience = time.monotonic() + 60
    while workers() and time.monotonic() < patience:
        time.sleep(0.5)
    assert not workers()
    subprocess.run(on_ray, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    after = kept(tmp_path / "shared")
    assert all(record in after for record in before)
    assert measured(RunFolder(tmp_path / "shared")) == measured(RunFolder(tmp_path / "alone"))


QUOTES = """
import sys
from transformers import LlamaForCausalLM as Model
from draftbench.measure.candidate import LoadedCandidate
def replay(loaded, group):
    quoted = " ".join(map(str, group[0].prompt.tokens))
    print(quoted, flush=True)
    print(quoted, file=sys.stderr, flush=True)
    raise ValueError(quoted)
LoadedCandidate.replay = replay
"""


@pytest.mark.slow
def test_nothing_of_a_prompt_is_in_the_files_of_ray(small, session, monkeypatch):
    """A draft's code prints the tokens that it should replay, and raises them."""
    log = small.out.parent / "log.jsonl"
    prompts = [f"The zanzibar marker {number} of a private prompt" for number in range(4)]
    log.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    draft = with_code(small, monkeypatch, QUOTES)
    folder = small.sweep(
        draft,
        traffic=TrafficQuery(str(log), b"key"),
        trust=Trust(remote_code=True),
        **ON_RAY,
    )
    (failed,) = read_run(folder).failures
    assert failed.reason.startswith("the model's code failed (ValueError in code.py:")
    quoted = {" ".join(map(str, text.prompt[:8])) for text in folder.records(PrivateText)}
    signs = [b"zanzibar", *(each.encode() for each in quoted)]
    time.sleep(2)  # Ray's files follow
    files = [file for file in session.rglob("*") if file.is_file()]
    assert any(file.name.startswith("worker-") for file in files)
    written = [(file, file.read_bytes()) for file in files]
    assert [file for file, held in written if any(sign in held for sign in signs)] == []
