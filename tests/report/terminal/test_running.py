"""The running figures of a sweep are those of `acceptance`, and its speeds those that count."""

from __future__ import annotations

from pathlib import Path

from draftbench.acceptance.card import acceptance_report
from draftbench.report.card import render
from draftbench.report.terminal.running import Running
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.observed import read_run

REFERENCE = Path(__file__).parents[3] / "results/reference/qwen2.5-coder"


def test_the_line_of_a_candidate_shows_the_figures_of_acceptance():
    run = read_run(RunFolder(REFERENCE))
    running = Running(run.manifest.question.ks)
    running.add([*run.trajectories, *run.replays])
    report = acceptance_report(run, run.candidates, run.manifest.question.ks, 0.02)
    rows = render(report, "markdown", 80, whole=False).splitlines()
    assert rows[2].startswith("| candidate | α | τ k=1 | τ k=4 |")
    for candidate in map(str, run.candidates):
        (row,) = [row for row in rows if row.startswith(f"| {candidate} |")]
        rate, _, length = row.split(" | ")[1:4]
        found = [f"τ {length} at k = 4"] if rate == "–" else [f"α {rate}", f"τ {length} at k = 4"]
        assert running.words(candidate) == ["   ".join(found)]


def test_of_a_batch_only_what_its_last_process_decoded_counts(hand):
    running = Running([1, 2])
    running.add([hand.decode("r1", 0, 16.0, batch=4, process="before")])
    running.add([hand.decode("r1", 2, 16.0, batch=4, process="before")])
    running.add([hand.decode("r1", 0, 8.0, batch=4, process="after")])
    # Eight tokens in 8 s; k = 2 is not decoded beside them yet.
    assert running.words("small") == ["tokens/s, each of 4 rows: 1 plain"]


def test_a_row_alone_counts_from_every_process(hand):
    running = Running([1, 2])
    for process, seconds in (("before", 8.0), ("after", 24.0)):
        running.add([hand.decode("r1", 0, seconds, process=process)])
    assert running.words("small") == ["tokens/s: 0.5 plain"]


def test_a_draft_that_stops_when_unsure_is_not_counted_as_its_k(hand):
    running = Running([1, 2])
    running.add([hand.decode("r1", 2, 4.0), hand.decode("r1", 2, 400.0, stop_below=0.4)])
    assert running.words("small") == ["tokens/s: 2 at k = 2"]
