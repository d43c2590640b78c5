"""What is known of a candidate while its sweep is running."""

from pathlib import Path

import pytest
from scenes import SMALL, decode, replay, trajectory

from draftbench.acceptance.running import RunningFigures
from draftbench.acceptance.summary import acceptance_report
from draftbench.records import Candidate
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

REFERENCE = Path(__file__).parents[2] / "results/reference/qwen2.5-coder"


@pytest.fixture
def running():
    return RunningFigures([1, 2])


def test_four_requests_have_no_interval_and_no_figure(running):
    for at in range(4):
        running.add([trajectory(f"r{at}"), replay((1.0,) * 8, request=f"r{at}")])
    assert running.alpha("small") is None
    assert running.mean_accepted_length("small") is None


def test_the_figures_do_not_depend_on_the_parts_in_which_records_were_added(running):
    accepted = {"r1": (1.0, 0.5) * 4, "r2": (0.25,) * 8, "r3": (1.0,) * 8}
    accepted |= {f"{name} again": accept for name, accept in accepted.items()}
    in_parts = RunningFigures([1, 2])
    for figures in (running, in_parts):
        figures.add([trajectory(request) for request in accepted])
    replays = [replay(accept, request=request) for request, accept in accepted.items()]
    running.add(replays)
    for each in replays:
        in_parts.add([each])
    # Twice (6 + 2 + 8) / 24 positions.
    assert running.alpha("small").value == pytest.approx(2 / 3)
    assert in_parts.alpha("small") == running.alpha("small")
    assert in_parts.mean_accepted_length("small") == running.mean_accepted_length("small")


@pytest.mark.parametrize(("ks", "k"), [([1, 2], 2), (range(1, 9), 4), ([8, 16], 8), ([3, 5], 3)])
def test_the_running_length_is_of_the_k_nearest_to_4(ks, k):
    assert RunningFigures(ks).k == k


def test_the_figures_are_those_of_the_acceptance_command():
    run, candidate = read_run(RunFolder(REFERENCE)), Candidate("qwen0.5", "int4")
    running = RunningFigures(run.manifest.question.ks)
    running.add([*run.trajectories, *run.replays])
    (whole,) = acceptance_report(run, [candidate], (4,), 0.02).candidates
    (length,) = (figure for figure in whole.at_each_k if figure.symbol == "τ")
    assert running.k == 4
    assert running.alpha("qwen0.5:int4") == whole.alpha.pooled
    assert running.mean_accepted_length("qwen0.5:int4") == length.pooled


def test_a_row_of_a_batch_has_its_share_of_the_last_process(running):
    running.add([decode(SMALL, 0, 8.0, output_tokens=9)])
    for k in (0, 2):
        running.add([decode(SMALL, k, 16.0, output_tokens=9, concurrency=4, process="before")])
    running.add([decode(SMALL, 0, 8.0, output_tokens=9, concurrency=4, process="after")])
    # Eight tokens in 8 s; k = 2 is not decoded in that process yet.
    assert (running.concurrency, running.tokens_per_second("small")) == (4, {0: 1.0})


def test_a_request_alone_counts_from_every_process(running):
    for process, seconds in (("before", 8.0), ("after", 24.0)):
        running.add([decode(SMALL, 0, seconds, output_tokens=9, process=process)])
    assert running.tokens_per_second("small") == {0: 0.5}
