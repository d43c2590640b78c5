"""What a sweep says while it works, on a console of known width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from draftbench.report.terminal import progress
from draftbench.report.terminal.progress import TerminalWatcher
from draftbench.report.terminal.running import Running


@pytest.fixture
def said():
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


def test_a_stage_that_was_cut_short_is_not_called_done(said, clock):
    watcher, text = said()
    with watcher:
        watcher.stage("small: replay", 5)
        watcher.advance()
        clock[0] = 2.0
    assert text() == "small: replay (stopped after 1 of 5): 2.0 s\n"


def test_a_finished_stage_says_its_units_and_time(said, clock):
    watcher, text = said()
    with watcher:
        watcher.stage("small: replay", 1)
        clock[0] = 2.0
        watcher.advance()
    assert text() == "small: replay (1): 2.0 s\n"


def test_quiet_says_nothing(said):
    watcher, text = said(terminal=True, quiet=True)
    with watcher:
        watcher.expect(["small"], [1])
        watcher.stage("small: replay", 1)
        watcher.advance()
        watcher.note("a note")
    assert text() == ""


def test_the_view_shows_alpha_tau_and_the_speed_of_the_candidate_at_work(said, clock, hand):
    watcher, text = said(terminal=True)
    with watcher:
        watcher.expect(["small", "big"], [1, 2])
        watcher.kept([hand.trajectory(r) for r in ("r1", "r2")])
        watcher.stage("small: replay", 4)
        watcher.kept([hand.replay(r, (1.0,) * 8) for r in ("r1", "r2")])
        # Eight tokens: 8 s without, 4 s with k = 2.
        watcher.kept([hand.decode("r1", 0, 8.0), hand.decode("r1", 2, 4.0)])
        clock[0] = 3.0
        watcher.advance()
    # All accepted at k = 2: rounds of 3, 3 and 2 tokens.
    assert "α 1.00 ±0.00   τ 2.67 ±0.00 at k = 2\n" in text()
    assert "tokens/s: 1 plain, 2 at k = 2\n" in text()
    assert "1/4  9 s left" in text()
    assert "candidate 1 of 2" in text()


def test_time_left_in_all_takes_the_rest_for_as_slow_as_what_is_done(said, clock):
    watcher, text = said(terminal=True)
    with watcher:
        watcher.expect(["a", "b", "c"], [1])
        watcher.stage("a: replay", 1)
        clock[0] = 60.0
        watcher.advance()
        watcher.stage("b: replay", 2)
    # All of b and all of c.
    assert "candidate 2 of 3, about 2:00 min left in all" in text()


def test_before_a_candidate_is_done_the_time_left_in_all_is_not_guessed(said, clock):
    watcher, text = said(terminal=True)
    with watcher:
        watcher.expect(["a", "b"], [1])
        watcher.stage("a: replay", 2)
        clock[0] = 60.0
        watcher.advance()
    assert "left in all" not in text()


def test_drawing_is_a_small_share_of_the_time(said, clock, monkeypatch):
    """A view that takes 1 s to draw is drawn once in 50 s."""
    watcher, _ = said(terminal=True)
    drawn = []

    def slow(renderable, refresh):
        drawn.append(clock[0])
        clock[0] += 1.0

    with watcher:
        monkeypatch.setattr(watcher._view, "update", slow)
        watcher.stage("a: replay", 100)
        for _ in range(100):
            clock[0] += 1.0
            watcher.advance()
        monkeypatch.undo()
    assert len(drawn) == 2


def test_names_from_files_do_not_move_the_cursor(said):
    watcher, text = said(terminal=True)
    with watcher:
        watcher.stage("evil\x1b[31m: replay", 1)
        watcher.advance()
    assert "\x1b[31m" not in text()


def test_verbose_has_a_line_for_every_unit_where_there_is_no_terminal(said):
    watcher, text = said(verbose=True)
    with watcher:
        watcher.stage("small: replay", 2)
        watcher.advance()
        watcher.advance()
    assert text().splitlines()[:2] == ["  1 of 2", "  2 of 2"]


def test_one_request_has_no_interval_and_no_figure(hand):
    running = Running([1, 2])
    running.add([hand.trajectory("r1"), hand.replay("r1", (1.0,) * 8)])
    assert running.words("small") == []


def test_the_running_figures_do_not_depend_on_the_parts_in_which_records_were_kept(hand):
    accepted = {"r1": (1.0, 0.5) * 4, "r2": (0.25,) * 8, "r3": (1.0,) * 8}
    at_once, in_parts = Running([1, 2]), Running([1, 2])
    for running in (at_once, in_parts):
        running.add([hand.trajectory(request) for request in accepted])
    replays = [hand.replay(request, accept) for request, accept in accepted.items()]
    at_once.add(replays)
    for replay in replays:
        in_parts.add([replay])
    # (6 + 2 + 8) / 24 positions
    assert at_once.words("small")[0].startswith("α 0.67")
    assert in_parts.words("small") == at_once.words("small")


def test_the_running_length_is_of_the_usual_k_where_it_was_asked(hand):
    assert [Running(ks).k for ks in ([1, 2], range(1, 9), [8, 16], [3, 5])] == [2, 4, 8, 3]


def test_several_rows_are_shown_by_a_rows_share(hand):
    running = Running([1, 2])
    running.add([hand.decode("r1", 0, 8.0), hand.decode("r1", 0, 16.0, batch=4)])
    assert running.words("small") == ["tokens/s, each of 4 rows: 0.5 plain"]


def test_without_a_terminal_a_long_stage_says_from_time_to_time_how_far_it_is(said, clock):
    """Six turns of 20 s: a line is due at 30 s and comes at 40, the next one at 70 and 80."""
    watcher, text = said()
    with watcher:
        watcher.stage("small: step times", 6)
        for _ in range(6):
            clock[0] += 20.0
            watcher.advance()
    assert text().splitlines() == [
        "small: step times: 2 of 6, about 1:20 min left",
        "small: step times: 4 of 6, about 40 s left",
        "small: step times (6): 120.0 s",
    ]


def test_units_that_were_done_side_by_side_count_at_once(said, clock):
    watcher, text = said()
    with watcher:
        watcher.stage("responses", 48)
        clock[0] = 60.0
        watcher.advance(16)
    assert "responses: 16 of 48, about 2:00 min left\n" in text()


def test_a_terminal_or_quiet_has_no_lines_from_time_to_time(said, clock):
    for options in ({"terminal": True}, {"quiet": True}):
        watcher, text = said(**options)
        with watcher:
            watcher.stage("small: step times", 6)
            clock[0] += 60.0
            watcher.advance()
        assert "1 of 6, about" not in text()
