"""What a sweep shows while it works, on a console of known width."""

import io

import pytest
from rich.console import Console

from draftbench.records import Candidate
from draftbench.report.terminal import progress
from draftbench.report.terminal.progress import TerminalWatcher


@pytest.fixture
def console():
    """A watcher and everything that it printed so far."""

    def make(*, terminal=False, quiet=False, verbose=False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=80, color_system=None)
        return TerminalWatcher(console, quiet=quiet, verbose=verbose), stream.getvalue

    return make


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only a test moves."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("done", "line"),
    [(1, "small: replay (stopped after 1 of 5): 2.0 s"), (5, "small: replay (5): 2.0 s")],
)
def test_a_stage_ends_with_its_time_and_what_was_done_of_it(console, clock, done, line):
    watcher, text = console(verbose=True)
    with watcher:
        watcher.stage("replay", 5, Candidate(draft="small"))
        watcher.advance(done)
        clock[0] = 2.0
    assert text().splitlines() == [f"small: replay: {done} of 5", line]


@pytest.mark.parametrize(
    ("how", "printed"),
    [
        ({}, "a note\n"),
        ({"quiet": True, "verbose": True}, ""),
        ({"quiet": True, "verbose": True, "terminal": True}, ""),
    ],
)
def test_without_a_terminal_only_notes_are_printed_and_quietly_nothing(console, how, printed):
    watcher, text = console(**how)
    with watcher:
        watcher.expect(["small"], [1])
        watcher.stage("replay", 2, Candidate(draft="small"))
        watcher.advance()
        watcher.note("a note")
    assert text() == printed


def test_without_a_terminal_a_long_stage_prints_a_line_a_minute(console, clock):
    watcher, text = console()
    with watcher:
        watcher.stage("replay", 10, Candidate(draft="small"))
        for clock[0] in (20.0, 40.0, 61.0, 80.0, 125.0):
            watcher.advance()
    assert text().splitlines() == [
        "small: replay: 3 of 10, about 2.4 min left",  # 61 s / 3 * 7
        "small: replay: 5 of 10, about 2.1 min left",
    ]


def test_while_no_unit_is_done_no_time_left_is_guessed(console, clock):
    """A model that takes long to load is kept before its first replay."""
    watcher, text = console()
    with watcher:
        watcher.stage("replay", 10, Candidate(draft="small"))
        clock[0] = 61.0
        watcher.advance(0)
    assert text() == "small: replay: 0 of 10\n"


def test_a_note_counts_as_the_line_of_its_minute(console, clock):
    watcher, text = console()
    with watcher:
        clock[0] = 50.0
        watcher.note("loading small")
        watcher.stage("replay", 10, Candidate(draft="small"))
        clock[0] = 100.0
        watcher.advance()
    assert text() == "loading small\n"


def test_what_has_to_be_known_is_printed_quietly_too(console):
    watcher, text = console(quiet=True)
    watcher.note("device: cpu, 2 threads", always=True)
    assert text() == "device: cpu, 2 threads\n"


def test_the_view_shows_alpha_tau_and_the_speed_of_the_candidate_at_work(console, clock, hand):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.expect(["small", "big"], [1, 2])
        watcher.kept([hand.trajectory(f"r{at}") for at in range(5)])
        watcher.stage("replay", 4, Candidate(draft="small"))
        watcher.kept([hand.replay(f"r{at}", (1.0,) * 8) for at in range(5)])
        # Eight tokens: 8 s without a draft, 4 s with k = 2.
        watcher.kept([hand.decode("r1", 0, 8.0), hand.decode("r1", 2, 4.0)])
        clock[0] = 3.0
        watcher.advance()
    # All accepted at k = 2: rounds of 3, 3 and 2 tokens.
    assert "α 1.00 ±0.00   τ 2.67 ±0.00 at k = 2\n" in text()
    assert "tokens/s: 1 without a draft, 2 at k = 2\n" in text()
    assert "1/4  9 s left" in text()
    assert "candidate 1 of 2" in text()


def test_a_row_of_a_batch_is_shown_with_its_share_of_the_speed(console, hand):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.expect(["small"], [1, 2])
        watcher.kept([hand.decode("r1", 0, 8.0, concurrency=4)])
        watcher.stage("decode", 2, Candidate(draft="small"))
    # Eight tokens in 8 s.
    assert "tokens/s, each of 4 rows: 1 without a draft\n" in text()


def test_candidates_to_come_are_taken_to_be_as_slow_as_finished_ones(console, clock):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.expect(["a", "b", "c"], [1])
        watcher.stage("replay", 1, Candidate(draft="a"))
        clock[0] = 60.0
        watcher.advance()
        assert "left in all" not in text()  # before one is finished nothing is known
        watcher.stage("replay", 2, Candidate(draft="b"))
    # All of b and all of c.
    assert "candidate 2 of 3, about 2 min left in all" in text()


def test_drawing_is_a_small_share_of_the_time(console, clock, monkeypatch):
    """A view that takes 1 s to draw is drawn once in 50 s."""
    watcher, _ = console(terminal=True)
    drawn = []

    def slow(renderable, refresh):
        drawn.append(clock[0])
        clock[0] += 1.0

    with watcher:
        monkeypatch.setattr(watcher._view, "update", slow)
        watcher.stage("replay", 100, Candidate(draft="a"))
        for _ in range(100):
            clock[0] += 1.0
            watcher.advance()
        monkeypatch.undo()
    assert len(drawn) == 2


def test_names_from_files_do_not_move_the_cursor(console):
    watcher, text = console(terminal=True)
    with watcher:
        watcher.stage("replay", 1, Candidate(draft="evil\x1b[31m"))
        watcher.advance()
    assert "\x1b[31m" not in text()
